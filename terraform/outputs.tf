output "bootstrap_endpoint" {
  description = "host:port for clients (`esker --bootstrap`); null without the load balancer."
  value       = var.nlb.enabled ? "${var.dns != null ? var.dns.name : aws_lb.this[0].dns_name}:${local.grpc_port}" : null
}

output "store" {
  description = "The agent's store URL, as `esker bucket` and `esker-agent check-store` take it."
  value       = local.store
}

output "bucket_name" {
  description = "The bucket."
  value       = local.bucket_name
}

output "agent_security_group_id" {
  description = "Security group of the agent."
  value       = aws_security_group.agent.id
}

output "autoscaling_group_name" {
  description = "Auto Scaling group of the agent."
  value       = aws_autoscaling_group.agent.name
}

output "role_arn" {
  description = "Role of the agent's instance."
  value       = aws_iam_role.agent.arn
}

output "prometheus_scrape_config" {
  description = "Scrape job for Prometheus, which needs ec2:DescribeInstances."
  value = yamlencode([{
    job_name = "esker-${var.name}"
    ec2_sd_configs = [{
      region  = local.region
      port    = local.http_port
      filters = [{ name = "tag:esker:cluster", values = [var.name] }]
    }]
    relabel_configs = [
      { source_labels = ["__meta_ec2_availability_zone_id"], target_label = "zone" },
      { source_labels = ["__meta_ec2_instance_id"], target_label = "instance" },
    ]
  }])
}
