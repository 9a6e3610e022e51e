data "aws_caller_identity" "current" {}
data "aws_region" "current" {}
data "aws_partition" "current" {}

locals {
  account_id = data.aws_caller_identity.current.account_id
  region     = data.aws_region.current.region
  partition  = data.aws_partition.current.partition

  tags = merge({ Name = var.name, "esker:cluster" = var.name }, var.tags)

  bucket_name = var.bucket_name != null ? var.bucket_name : "${var.name}-${local.account_id}-${local.region}"
  bucket_arn  = "arn:${local.partition}:s3:::${local.bucket_name}"
  store       = "s3://${local.bucket_name}/${var.bucket_prefix}?region=${local.region}"

  # The agent's own defaults.
  grpc_port = 7771
  http_port = 7772

  # The part of a type's name before the dot: family, generation, attributes.
  arm64_types          = "^(a1|[a-z]+[0-9]+g[a-z]*)\\."
  instance_store_types = "^([a-z]+[0-9]+[a-z]*d[a-z]*|(i|im|is|d|h)[0-9]+[a-z]*)\\."
  is_arm64             = can(regex(local.arm64_types, var.instance_types[0]))

  # The group's name is fixed here so that IAM can name it without a cycle.
  group_name = "${var.name}-agents"
  group_arn  = "arn:${local.partition}:autoscaling:${local.region}:${local.account_id}:autoScalingGroup:*:autoScalingGroupName/${local.group_name}"

  # What agent_config may hold: docs/config.md without what the module and the instance set.
  # check.sh compares.
  agent_settings = [
    "ESKER_TAKE_OVER",
    "ESKER_FLUSH",
    "ESKER_PARTITIONS",
    "ESKER_RETENTION",
    "ESKER_RETENTION_BYTES",
    "ESKER_LOCAL_RETENTION_BYTES",
    "ESKER_SEGMENT_BYTES",
    "ESKER_SEGMENT_AGE",
    "ESKER_BATCH_BYTES_MAX",
    "ESKER_TIMESTAMPS",
    "ESKER_TIMESTAMP_BEFORE_MAX",
    "ESKER_TIMESTAMP_AFTER_MAX",
    "ESKER_CHECK_COMPRESSED",
    "ESKER_PRODUCE_BUFFER_BYTES",
    "ESKER_CACHE_MEMORY_BYTES",
    "ESKER_CACHE_DISK_BYTES",
    "ESKER_READ_BUDGET_BYTES",
    "ESKER_UNUPLOADED_BYTES_MAX",
    "ESKER_DISK_RESERVE",
    "ESKER_CONNECTIONS_MAX",
    "ESKER_UPLOAD_MEMORY_BYTES",
    "ESKER_STORE_REQUESTS_MAX",
    "ESKER_STORE_STALL_TIMEOUT",
    "ESKER_RETENTION_INTERVAL",
    "ESKER_METADATA_POLL",
    "ESKER_LOG_FORMAT",
    "ESKER_LOG_LEVEL",
  ]
}
