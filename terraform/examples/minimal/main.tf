provider "aws" {
  region = var.region
}

module "network" {
  source = "../../modules/network"

  name = "esker"
  azs  = { for zone in ["a", "b", "c"] : zone => "${var.region}${zone}" }
}

module "esker" {
  source = "../.."

  name            = "esker"
  vpc_id          = module.network.vpc_id
  subnet_ids      = module.network.subnet_ids
  route_table_ids = module.network.route_table_ids
  client_cidrs    = { vpc = "10.64.0.0/16" }
  agent_package   = var.agent_package
}

output "bootstrap_endpoint" {
  description = "Where clients start."
  value       = module.esker.bootstrap_endpoint
}

output "store" {
  description = "The agent's store URL."
  value       = module.esker.store
}
