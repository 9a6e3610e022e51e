variable "region" {
  description = "AWS region; its zones a, b and c are used."
  type        = string
  default     = "eu-central-1"
}

variable "agent_package" {
  description = "Esker's package in an S3 bucket of that region."
  type = object({
    s3_bucket = string
    s3_key    = string
    sha256    = string
  })
}
