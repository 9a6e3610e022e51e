data "aws_ssm_parameter" "ami" {
  count = var.ami_id == null ? 1 : 0

  name = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-${local.is_arm64 ? "arm64" : "x86_64"}"
}

resource "aws_launch_template" "agent" {
  name_prefix            = "${var.name}-agent-"
  description            = "Esker agent"
  image_id               = var.ami_id != null ? var.ami_id : data.aws_ssm_parameter.ami[0].insecure_value
  instance_type          = var.instance_types[0]
  update_default_version = true
  ebs_optimized          = true
  vpc_security_group_ids = [aws_security_group.agent.id]
  user_data              = base64gzip(local.user_data)
  tags                   = local.tags

  iam_instance_profile {
    arn = aws_iam_instance_profile.agent.arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "disabled"
  }

  # Left alone, t4g would bill for bursts.
  dynamic "credit_specification" {
    for_each = alltrue([for type in var.instance_types : startswith(type, "t")]) ? [1] : []

    content {
      cpu_credits = "standard"
    }
  }

  block_device_mappings {
    device_name = var.root_device_name

    ebs {
      volume_type           = "gp3"
      volume_size           = 8
      encrypted             = true
      kms_key_id            = var.ebs_kms_key_arn
      delete_on_termination = true
    }
  }

  dynamic "block_device_mappings" {
    for_each = var.tail_volume == null ? [] : [var.tail_volume]

    content {
      device_name = "/dev/sdf"

      ebs {
        volume_type           = "gp3"
        volume_size           = block_device_mappings.value.size_gib
        iops                  = block_device_mappings.value.iops
        throughput            = block_device_mappings.value.throughput
        encrypted             = true
        kms_key_id            = var.ebs_kms_key_arn
        delete_on_termination = !block_device_mappings.value.keep
      }
    }
  }

  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume", "network-interface"])

    content {
      resource_type = tag_specifications.value
      tags          = local.tags
    }
  }

  lifecycle {
    create_before_destroy = true

    precondition {
      condition     = length(base64gzip(local.user_data)) <= local.user_data_max
      error_message = "user data is ${length(base64gzip(local.user_data))} bytes, over EC2's limit of 16 KiB: give fewer or shorter agent_config entries."
    }
  }
}

# A second agent on the same prefix is refused until the first has drained. So nothing here launches
# a replacement before the old instance is told to go: no capacity_rebalance, no AZRebalance, 0 % to
# 100 % healthy. EC2 may still launch it while the old one drains; instance/start waits for that.
resource "aws_autoscaling_group" "agent" {
  name                      = local.group_name
  min_size                  = var.agent_count
  max_size                  = var.agent_count
  vpc_zone_identifier       = values(var.subnet_ids)
  target_group_arns         = [for group in aws_lb_target_group.grpc : group.arn]
  health_check_type         = "EC2" # a new instance would not help an agent that cannot serve
  default_instance_warmup   = 60
  capacity_rebalance        = false
  suspended_processes       = ["AZRebalance"]
  wait_for_capacity_timeout = "10m"
  enabled_metrics           = ["GroupInServiceInstances", "GroupTerminatingInstances"]

  availability_zone_distribution {
    capacity_distribution_strategy = "balanced-best-effort"
  }

  instance_maintenance_policy {
    min_healthy_percentage = 0
    max_healthy_percentage = 100
  }

  mixed_instances_policy {
    instances_distribution {
      on_demand_base_capacity                  = 0
      on_demand_percentage_above_base_capacity = var.spot ? 0 : 100
      on_demand_allocation_strategy            = "prioritized"
      spot_allocation_strategy                 = "price-capacity-optimized"
    }

    launch_template {
      launch_template_specification {
        launch_template_id = aws_launch_template.agent.id
        version            = aws_launch_template.agent.latest_version # "$Latest" would never start a refresh
      }

      dynamic "override" {
        for_each = var.instance_types

        content {
          instance_type = override.value
        }
      }
    }
  }

  instance_refresh {
    strategy = "Rolling"

    preferences {
      min_healthy_percentage = 0
      max_healthy_percentage = 100
      skip_matching          = true
    }
  }

  dynamic "tag" {
    for_each = local.tags

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = false # the launch template tags them
    }
  }

  depends_on = [aws_iam_role_policy.agent, aws_vpc_endpoint.s3]
}

# A resource of its own: a change of initial_lifecycle_hook would recreate the group.
resource "aws_autoscaling_lifecycle_hook" "drain" {
  name                   = local.hook_name
  autoscaling_group_name = aws_autoscaling_group.agent.name
  lifecycle_transition   = "autoscaling:EC2_INSTANCE_TERMINATING"
  heartbeat_timeout      = local.hook_secs
  default_result         = "CONTINUE"
}
