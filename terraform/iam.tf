resource "aws_iam_role" "agent" {
  name_prefix          = "${var.name}-agent-"
  permissions_boundary = var.permissions_boundary_arn
  tags                 = local.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

locals {
  # What the agent asks of S3, no more and no less: tiering/src/keys/actions.rs has the table, and
  # check.sh compares. The identity of the cluster and its metadata it cannot delete.
  bucket_actions = ["s3:ListBucket", "s3:GetBucketVersioning", "s3:GetLifecycleConfiguration"]
  object_actions = {
    "s3:GetObject"            = ["cluster.json", "meta/log/*", "meta/boundary/*", "topics/*/manifest/*", "topics/*/boundary/*", "topics/*/pages/*", "topics/*/segments/*", "probe/*"]
    "s3:PutObject"            = ["cluster.json", "meta/log/*", "topics/*/manifest/*", "topics/*/boundary/*", "topics/*/pages/*", "topics/*/segments/*", "probe/*"]
    "s3:AbortMultipartUpload" = ["topics/*/segments/*"]
    "s3:DeleteObject"         = ["topics/*/manifest/*", "topics/*/boundary/*", "topics/*/pages/*", "topics/*/segments/*", "probe/*"]
  }
}

resource "aws_iam_role_policy" "agent" {
  name = "agent"
  role = aws_iam_role.agent.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        # ListBucket bears no condition on s3:prefix: a GET carries no such key, so S3 would answer a
        # missing object by 403 instead of 404, and the agent could not find the end of a chain.
        {
          Sid      = "Bucket"
          Effect   = "Allow"
          Action   = local.bucket_actions
          Resource = [local.bucket_arn]
        },
      ],
      [for action, keys in local.object_actions : {
        Sid      = replace(action, "s3:", "")
        Effect   = "Allow"
        Action   = [action]
        Resource = [for key in keys : "${local.bucket_arn}/${var.bucket_prefix}/${key}"]
      }],
      [
        {
          Sid      = "Package"
          Effect   = "Allow"
          Action   = ["s3:GetObject"]
          Resource = ["arn:${local.partition}:s3:::${var.agent_package.s3_bucket}/${var.agent_package.s3_key}"]
        },
        {
          Sid      = "EndOfDrain"
          Effect   = "Allow"
          Action   = ["autoscaling:CompleteLifecycleAction"]
          Resource = [local.group_arn]
        },
      ],
      var.bucket_kms_key_arn == null ? [] : [{
        Sid      = "BucketKey"
        Effect   = "Allow"
        Action   = ["kms:GenerateDataKey", "kms:Decrypt"]
        Resource = [var.bucket_kms_key_arn]
      }],
    )
  })
}

resource "aws_iam_role_policy_attachment" "ssm" {
  count = var.enable_ssm ? 1 : 0

  role       = aws_iam_role.agent.name
  policy_arn = "arn:${local.partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_instance_profile" "agent" {
  name_prefix = "${var.name}-agent-"
  role        = aws_iam_role.agent.name
  tags        = local.tags
}
