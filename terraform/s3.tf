resource "aws_s3_bucket" "this" {
  #checkov:skip=CKV_AWS_18:access logs are the account's choice; they would be about as many requests again
  #checkov:skip=CKV_AWS_144:one region by design
  #checkov:skip=CKV_AWS_145:SSE-S3 by default, KMS through bucket_kms_key_arn
  #checkov:skip=CKV_AWS_21:objects are written once under names of their own; bucket_noncurrent_days turns it on
  #checkov:skip=CKV2_AWS_62:nobody listens for event notifications
  count = var.create_bucket ? 1 : 0

  bucket        = local.bucket_name
  force_destroy = var.bucket_force_destroy
  tags          = local.tags
}

resource "aws_s3_bucket_public_access_block" "this" {
  count = var.create_bucket ? 1 : 0

  bucket                  = aws_s3_bucket.this[0].id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "this" {
  count = var.create_bucket ? 1 : 0

  bucket = aws_s3_bucket.this[0].id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  count = var.create_bucket ? 1 : 0

  bucket = aws_s3_bucket.this[0].id

  rule {
    bucket_key_enabled = var.bucket_kms_key_arn != null

    apply_server_side_encryption_by_default {
      sse_algorithm     = var.bucket_kms_key_arn == null ? "AES256" : "aws:kms"
      kms_master_key_id = var.bucket_kms_key_arn
    }
  }
}

# Without it a new bucket is unversioned already; AWS has no way back but to suspend.
resource "aws_s3_bucket_versioning" "this" {
  count = var.create_bucket && var.bucket_noncurrent_days != null ? 1 : 0

  bucket = aws_s3_bucket.this[0].id

  versioning_configuration {
    status = "Enabled"
  }
}

# Nothing here expires a live object of the cluster: retention belongs to the agent.
resource "aws_s3_bucket_lifecycle_configuration" "this" {
  #checkov:skip=CKV_AWS_300:the first rule does; the check wants it in every rule
  count = var.create_bucket && var.manage_bucket_lifecycle ? 1 : 0

  bucket = aws_s3_bucket.this[0].id

  # The agent uploads in one piece; others may not.
  rule {
    id     = "abort-incomplete-multipart"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }
  }

  dynamic "rule" {
    for_each = var.bucket_noncurrent_days == null ? [] : [var.bucket_noncurrent_days]

    content {
      id     = "noncurrent"
      status = "Enabled"

      filter {}

      noncurrent_version_expiration {
        noncurrent_days = rule.value
      }

      expiration {
        expired_object_delete_marker = true
      }
    }
  }

  dynamic "rule" {
    for_each = var.bucket_lifecycle_rules

    content {
      id     = rule.value.id
      status = "Enabled"

      filter {
        prefix = rule.value.prefix
      }

      dynamic "expiration" {
        for_each = rule.value.expiration_days == null ? [] : [rule.value.expiration_days]

        content {
          days = expiration.value
        }
      }

      dynamic "transition" {
        for_each = rule.value.transition == null ? [] : [rule.value.transition]

        content {
          days          = transition.value.days
          storage_class = transition.value.storage_class
        }
      }
    }
  }

  depends_on = [aws_s3_bucket_versioning.this]
}

resource "aws_s3_bucket_policy" "this" {
  count = var.create_bucket ? 1 : 0

  bucket = aws_s3_bucket.this[0].id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "DenyPlainHttp"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [local.bucket_arn, "${local.bucket_arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })

  depends_on = [aws_s3_bucket_public_access_block.this]
}
