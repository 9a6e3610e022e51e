# Every part of the module that has a switch, on cheap instances: spot, with the tail on the instance
# store. An instance that spot takes without its notice loses what was not uploaded yet, which a
# shorter ESKER_SEGMENT_AGE makes less; leave out tail_volume = null to keep it on a volume.
provider "aws" {
  region = var.region
}

module "network" {
  source = "../../modules/network"

  name = "esker-prod"
  azs  = { for zone in ["a", "b", "c"] : zone => "${var.region}${zone}" }
}

resource "aws_security_group" "prometheus" {
  #checkov:skip=CKV2_AWS_5:stands for the one that Prometheus has
  name_prefix = "prometheus-"
  description = "Prometheus"
  vpc_id      = module.network.vpc_id
}

resource "aws_route53_zone" "internal" {
  #checkov:skip=CKV2_AWS_38:DNSSEC does not exist for private zones
  #checkov:skip=CKV2_AWS_39:neither do query logs in their form
  name = "example.internal"

  vpc {
    vpc_id = module.network.vpc_id
  }
}

module "esker" {
  source = "../.."

  name = "esker-prod"
  tags = { environment = "prod" }

  vpc_id                     = module.network.vpc_id
  subnet_ids                 = module.network.subnet_ids
  route_table_ids            = module.network.route_table_ids
  client_cidrs               = { vpc = "10.64.0.0/16" }
  metrics_security_group_ids = { prometheus = aws_security_group.prometheus.id }

  agent_package      = var.agent_package
  agent_config       = { ESKER_RETENTION = "30d", ESKER_SEGMENT_AGE = "1m", ESKER_CACHE_DISK_BYTES = "16GiB" }
  instance_types     = ["c7gd.large", "c6gd.large", "m7gd.large", "m6gd.large"]
  spot               = true
  tail_volume        = null
  drain_timeout_secs = 80

  bucket_noncurrent_days = 3
  bucket_lifecycle_rules = [{ id = "reports", prefix = "reports/", expiration_days = 90 }]
  bucket_kms_key_arn     = "arn:aws:kms:${var.region}:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"

  nlb              = { deletion_protection = true }
  dns              = { zone_id = aws_route53_zone.internal.zone_id, name = "esker.example.internal" }
  alarm_topic_arns = ["arn:aws:sns:${var.region}:123456789012:oncall"]
}

output "bootstrap_endpoint" {
  description = "Where clients start."
  value       = module.esker.bootstrap_endpoint
}

output "prometheus_scrape_config" {
  description = "Scrape job for Prometheus."
  value       = module.esker.prometheus_scrape_config
}
