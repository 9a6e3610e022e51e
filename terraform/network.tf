resource "aws_vpc_endpoint" "s3" {
  count = var.create_s3_endpoint ? 1 : 0

  vpc_id            = var.vpc_id
  service_name      = "com.amazonaws.${local.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = var.route_table_ids
  tags              = local.tags

  lifecycle {
    precondition {
      condition     = length(var.route_table_ids) > 0
      error_message = "create_s3_endpoint needs route_table_ids: without a route the agent does not reach S3, or pays a NAT gateway for every byte."
    }
  }
}

# Rules are resources of their own: inline ones fight with them and with other states.
resource "aws_security_group" "agent" {
  name_prefix = "${var.name}-agent-"
  description = "Esker agent"
  vpc_id      = var.vpc_id
  tags        = local.tags

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "client_cidr" {
  for_each = var.client_cidrs

  security_group_id = aws_security_group.agent.id
  description       = "clients ${each.key}"
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = local.grpc_port
  to_port           = local.grpc_port
}

resource "aws_vpc_security_group_ingress_rule" "client_group" {
  for_each = var.client_security_group_ids

  security_group_id            = aws_security_group.agent.id
  description                  = "clients ${each.key}"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = local.grpc_port
  to_port                      = local.grpc_port
}

resource "aws_vpc_security_group_ingress_rule" "metrics_group" {
  for_each = var.metrics_security_group_ids

  security_group_id            = aws_security_group.agent.id
  description                  = "metrics ${each.key}"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = local.http_port
  to_port                      = local.http_port
}

resource "aws_vpc_security_group_egress_rule" "https" {
  #checkov:skip=CKV_AWS_382:TCP 443 only, for S3 and, where there is a route, Auto Scaling and Session Manager
  security_group_id = aws_security_group.agent.id
  description       = "AWS APIs"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}
