variable "name" {
  description = "Name of the VPC, and prefix of its parts."
  type        = string
}

variable "cidr" {
  description = "Addresses of the VPC; each subnet gets a sixteenth."
  type        = string
  default     = "10.64.0.0/16"
}

variable "azs" {
  description = "Availability Zones of the subnets, keyed by a static name such as the zone's letter."
  type        = map(string)
}

variable "tags" {
  description = "Tags for every resource."
  type        = map(string)
  default     = {}
}
