# The agent itself: also fires when it was refused because the one before it did not drain.
resource "aws_cloudwatch_metric_alarm" "not_serving" {
  count = length(var.alarm_topic_arns) > 0 && var.nlb.enabled ? 1 : 0

  alarm_name          = "${var.name}-not-serving"
  alarm_description   = "No Esker agent of ${var.name} has served for five minutes. See the operations section of the module's README."
  namespace           = "AWS/NetworkELB"
  metric_name         = "HealthyHostCount"
  dimensions          = { LoadBalancer = aws_lb.this[0].arn_suffix, TargetGroup = aws_lb_target_group.grpc[0].arn_suffix }
  statistic           = "Maximum"
  comparison_operator = "LessThanThreshold"
  threshold           = var.agent_count
  period              = 60
  evaluation_periods  = 5
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = local.tags
}

# The instance: no capacity, or an AMI that does not boot.
resource "aws_cloudwatch_metric_alarm" "no_instance" {
  count = length(var.alarm_topic_arns) > 0 ? 1 : 0

  alarm_name          = "${var.name}-no-instance"
  alarm_description   = "No instance of ${var.name} has been in service for five minutes."
  namespace           = "AWS/AutoScaling"
  metric_name         = "GroupInServiceInstances"
  dimensions          = { AutoScalingGroupName = aws_autoscaling_group.agent.name }
  statistic           = "Maximum"
  comparison_operator = "LessThanThreshold"
  threshold           = var.agent_count
  period              = 60
  evaluation_periods  = 5
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = local.tags
}
