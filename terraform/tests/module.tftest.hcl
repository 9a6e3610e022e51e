# What the module makes of its inputs. Values that only AWS knows are made up.
mock_provider "aws" {
  override_during = plan

  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_region" {
    defaults = { region = "eu-central-1" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_data "aws_ssm_parameter" {
    defaults = { insecure_value = "ami-0123456789abcdef0" }
  }
}

variables {
  name            = "tst"
  vpc_id          = "vpc-1"
  subnet_ids      = { a = "subnet-a", b = "subnet-b", c = "subnet-c" }
  route_table_ids = ["rtb-1"]
  client_cidrs    = { vpc = "10.0.0.0/16" }
  agent_package   = { s3_bucket = "packages", s3_key = "esker.tar.gz", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
}

run "bucket_is_private_and_expires_nothing" {
  command = plan

  assert {
    condition     = aws_s3_bucket.this[0].bucket == "tst-123456789012-eu-central-1" && !aws_s3_bucket.this[0].force_destroy
    error_message = "the bucket has another name, or can be destroyed with its data"
  }
  assert {
    condition     = alltrue([for key in ["block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets"] : aws_s3_bucket_public_access_block.this[0][key]])
    error_message = "public access is not blocked"
  }
  assert {
    condition     = alltrue([for rule in aws_s3_bucket_lifecycle_configuration.this[0].rule : length(rule.expiration) == 0 && length(rule.transition) == 0])
    error_message = "a rule expires or moves live data"
  }
  assert {
    condition     = length(aws_s3_bucket_versioning.this) == 0
    error_message = "versioning is on by default"
  }
}

run "instance_is_locked_down" {
  command = plan

  assert {
    condition     = aws_launch_template.agent.metadata_options[0].http_tokens == "required" && aws_launch_template.agent.metadata_options[0].http_put_response_hop_limit == 1
    error_message = "IMDSv2 is optional"
  }
  assert {
    condition     = alltrue([for device in aws_launch_template.agent.block_device_mappings : device.ebs[0].encrypted == "true"])
    error_message = "a volume is not encrypted"
  }
  assert {
    condition     = alltrue([for rule in aws_vpc_security_group_ingress_rule.client_cidr : rule.from_port == 7771 && rule.to_port == 7771])
    error_message = "clients reach other ports than the agent's"
  }
}

run "tail_volume_outlives_its_instance" {
  command = plan

  assert {
    condition     = [for device in aws_launch_template.agent.block_device_mappings : device.ebs[0].delete_on_termination] == ["true", "false"]
    error_message = "the root volume stays, or the tail goes, with the instance"
  }
}

run "tail_volume_goes_when_asked" {
  command = plan
  variables {
    tail_volume = { keep = false }
  }

  assert {
    condition     = aws_launch_template.agent.block_device_mappings[1].ebs[0].delete_on_termination == "true"
    error_message = "the tail stays"
  }
}

run "one_agent_whose_replacement_comes_after_it" {
  command = plan

  assert {
    condition     = aws_autoscaling_group.agent.min_size == 1 && aws_autoscaling_group.agent.max_size == 1 && length(aws_autoscaling_group.agent.vpc_zone_identifier) == 3
    error_message = "not one agent over three zones"
  }
  assert {
    condition     = !aws_autoscaling_group.agent.capacity_rebalance && contains(aws_autoscaling_group.agent.suspended_processes, "AZRebalance")
    error_message = "a second agent may be launched before the first is told to go"
  }
  assert {
    condition = alltrue([
      for range in [aws_autoscaling_group.agent.instance_maintenance_policy[0], aws_autoscaling_group.agent.instance_refresh[0].preferences[0]] :
      range.min_healthy_percentage == 0 && range.max_healthy_percentage == 100
    ])
    error_message = "a replacement is launched before the old instance goes"
  }
  assert {
    condition     = aws_autoscaling_group.agent.health_check_type == "EC2"
    error_message = "an agent that cannot serve would be replaced for ever"
  }
}

run "drain_has_its_time" {
  command = plan
  variables {
    drain_timeout_secs = 60
  }

  assert {
    condition     = aws_autoscaling_lifecycle_hook.drain.heartbeat_timeout == 90 && aws_autoscaling_lifecycle_hook.drain.lifecycle_transition == "autoscaling:EC2_INSTANCE_TERMINATING"
    error_message = "the hook ends before the drain, its stop and a margin"
  }
  assert {
    condition     = strcontains(local.user_data, "ESKER_DRAIN_TIMEOUT=60s") && strcontains(local.user_data, "TimeoutStopSec=75")
    error_message = "agent and unit have another time than the hook"
  }
}

run "role_has_no_wildcard_action" {
  command = plan

  assert {
    condition     = alltrue([for statement in jsondecode(aws_iam_role_policy.agent.policy).Statement : !contains(statement.Resource, "*") && alltrue([for action in statement.Action : !strcontains(action, "*")])])
    error_message = "a wildcard action or resource"
  }
  assert {
    condition     = !strcontains(aws_iam_role_policy.agent.policy, "kms:")
    error_message = "a permission that nothing needs"
  }
}

run "user_data_is_yaml_and_small" {
  command = plan

  assert {
    condition     = length(base64gzip(local.user_data)) < 8192 && length(yamldecode(local.user_data).write_files) == 9
    error_message = "user data is large, or lacks files"
  }
  assert {
    condition     = startswith(local.user_data, "#cloud-config\n") && reverse(yamldecode(local.user_data).runcmd)[0] == ["/usr/local/lib/esker/start"]
    error_message = "cloud-init would not start the agent"
  }
}

run "optional_parts_are_off" {
  command = plan
  variables {
    nlb = { enabled = false }
  }

  assert {
    condition     = length(aws_lb.this) == 0 && output.bootstrap_endpoint == null && length(aws_cloudwatch_metric_alarm.not_serving) + length(aws_cloudwatch_metric_alarm.no_instance) == 0
    error_message = "an optional part is on"
  }
}

run "everything_applied" {
  variables {
    bucket_kms_key_arn     = "arn:aws:kms:eu-central-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    bucket_noncurrent_days = 3
    bucket_lifecycle_rules = [
      { id = "reports", prefix = "reports/", expiration_days = 30 },
      { id = "cheaper", prefix = "esker/topics/", transition = { days = 30, storage_class = "GLACIER_IR" } },
    ]
    alarm_topic_arns = ["arn:aws:sns:eu-central-1:123456789012:oncall"]
    dns              = { zone_id = "Z1", name = "esker.example.internal" }
    spot             = true
    instance_types   = ["t4g.medium", "t4g.large", "t4g.xlarge"]
    agent_config     = { ESKER_RETENTION = "30d" }
  }

  assert {
    condition     = output.bootstrap_endpoint == "esker.example.internal:7771" && output.store == "s3://tst-123456789012-eu-central-1/esker?region=eu-central-1"
    error_message = "clients and tools are sent elsewhere"
  }
  assert {
    condition     = yamldecode(output.prometheus_scrape_config)[0].job_name == "esker-tst"
    error_message = "scrape config"
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.not_serving[0].metric_name == "HealthyHostCount" && aws_lb_target_group.grpc[0].health_check[0].path == "/readyz"
    error_message = "nobody hears when no agent serves"
  }
  assert {
    condition     = aws_launch_template.agent.credit_specification[0].cpu_credits == "standard"
    error_message = "burstable types would bill for bursts"
  }
}
