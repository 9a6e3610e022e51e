# Against a stand-in of AWS on this machine: LocalStack, or `moto_server -p 4566`. It makes the
# resources; nothing boots there.
provider "aws" {
  region                      = "us-east-1"
  access_key                  = "test"
  secret_key                  = "test"
  s3_use_path_style           = true
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_requesting_account_id  = false

  endpoints {
    autoscaling = var.endpoint
    cloudwatch  = var.endpoint
    ec2         = var.endpoint
    elbv2       = var.endpoint
    iam         = var.endpoint
    s3          = var.endpoint
    s3control   = var.endpoint
    ssm         = var.endpoint
    sts         = var.endpoint
  }
}

variable "endpoint" {
  description = "Where it listens."
  type        = string
  default     = "http://127.0.0.1:4566"
}

module "network" {
  source = "../../modules/network"

  name = "esker-local"
  azs  = { a = "us-east-1a", b = "us-east-1b", c = "us-east-1c" }
}

module "esker" {
  source = "../.."

  name                    = "esker-local"
  vpc_id                  = module.network.vpc_id
  subnet_ids              = module.network.subnet_ids
  route_table_ids         = module.network.route_table_ids
  client_cidrs            = { vpc = "10.64.0.0/16" }
  ami_id                  = "ami-12c6146b"
  manage_bucket_lifecycle = false
  bucket_force_destroy    = true
  nlb                     = { enabled = false }

  agent_package = {
    s3_bucket = "packages"
    s3_key    = "esker.tar.gz"
    sha256    = "0000000000000000000000000000000000000000000000000000000000000000"
  }
}

output "bucket_name" {
  description = "The bucket."
  value       = module.esker.bucket_name
}
