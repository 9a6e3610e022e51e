resource "aws_security_group" "nlb" {
  count = var.nlb.enabled ? 1 : 0

  name_prefix = "${var.name}-nlb-"
  description = "Esker load balancer"
  vpc_id      = var.vpc_id
  tags        = local.tags

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "nlb_cidr" {
  for_each = var.nlb.enabled ? var.client_cidrs : {}

  security_group_id = aws_security_group.nlb[0].id
  description       = "clients ${each.key}"
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = local.grpc_port
  to_port           = local.grpc_port
}

resource "aws_vpc_security_group_ingress_rule" "nlb_group" {
  for_each = var.nlb.enabled ? var.client_security_group_ids : {}

  security_group_id            = aws_security_group.nlb[0].id
  description                  = "clients ${each.key}"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = local.grpc_port
  to_port                      = local.grpc_port
}

resource "aws_vpc_security_group_egress_rule" "nlb" {
  for_each = var.nlb.enabled ? { grpc = local.grpc_port, readiness = local.http_port } : {}

  security_group_id            = aws_security_group.nlb[0].id
  description                  = "to the agent, ${each.key}"
  referenced_security_group_id = aws_security_group.agent.id
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value
}

resource "aws_vpc_security_group_ingress_rule" "from_nlb" {
  for_each = var.nlb.enabled ? { grpc = local.grpc_port, readiness = local.http_port } : {}

  security_group_id            = aws_security_group.agent.id
  description                  = "from the load balancer, ${each.key}"
  referenced_security_group_id = aws_security_group.nlb[0].id
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value
}

resource "aws_lb" "this" {
  #checkov:skip=CKV_AWS_91:clients only find the agent through it, access logs are the account's choice
  #checkov:skip=CKV_AWS_150:deletion protection through nlb.deletion_protection
  #checkov:skip=CKV_AWS_152:names resolve only to the zone that has a ready agent, so nothing crosses zones twice
  count = var.nlb.enabled ? 1 : 0

  name                             = var.name
  internal                         = true
  load_balancer_type               = "network"
  subnets                          = values(var.subnet_ids)
  security_groups                  = [aws_security_group.nlb[0].id]
  enable_cross_zone_load_balancing = false
  enable_deletion_protection       = var.nlb.deletion_protection
  tags                             = local.tags
}

resource "aws_lb_target_group" "grpc" {
  count = var.nlb.enabled ? 1 : 0

  name_prefix          = "esker-"
  port                 = local.grpc_port
  protocol             = "TCP"
  vpc_id               = var.vpc_id
  deregistration_delay = 30
  preserve_client_ip   = false
  tags                 = local.tags

  # Ready means serving: an agent that recovers, drains or was refused gets nobody.
  health_check {
    protocol            = "HTTP"
    port                = tostring(local.http_port)
    path                = "/readyz"
    matcher             = "200"
    interval            = 10
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_lb_listener" "grpc" {
  count = var.nlb.enabled ? 1 : 0

  load_balancer_arn = aws_lb.this[0].arn
  port              = local.grpc_port
  protocol          = "TCP"
  tags              = local.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.grpc[0].arn
  }
}

resource "aws_route53_record" "bootstrap" {
  count = var.dns == null ? 0 : 1

  zone_id = var.dns.zone_id
  name    = var.dns.name
  type    = "A"

  alias {
    name                   = aws_lb.this[0].dns_name
    zone_id                = aws_lb.this[0].zone_id
    evaluate_target_health = false
  }
}
