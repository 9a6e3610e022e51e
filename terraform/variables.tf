variable "name" {
  description = "Cluster name; prefixes every resource and is part of the bucket's name."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,21}[a-z0-9]$", var.name))
    error_message = "name must be 2 to 23 characters of a-z, 0-9 and '-', begin with a letter and not end with '-'."
  }
}

variable "tags" {
  description = "Tags for every resource, instances and volumes included (the provider's default_tags do not reach those)."
  type        = map(string)
  default     = {}
}

# --- network ---------------------------------------------------------------

variable "vpc_id" {
  description = "VPC to deploy into."
  type        = string
}

variable "subnet_ids" {
  description = "One private subnet per Availability Zone, keyed by a static name such as the zone's letter. The agent runs in one of them, and its replacement in any."
  type        = map(string)

  validation {
    condition     = length(var.subnet_ids) >= 1
    error_message = "subnet_ids is empty: give at least one subnet; three, each in its own zone, let the agent move when a zone fails."
  }
}

variable "route_table_ids" {
  description = "Route tables of those subnets, for the S3 gateway endpoint."
  type        = list(string)
  default     = []
}

variable "create_s3_endpoint" {
  description = "Create the S3 gateway endpoint, which is free. False when the VPC has one."
  type        = bool
  default     = true
}

variable "client_cidrs" {
  description = "CIDR blocks that may reach the agent (gRPC, port 7771, no TLS yet), keyed by a static name."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for cidr in values(var.client_cidrs) : can(cidrnetmask(cidr)) && !endswith(cidr, "/0")])
    error_message = "client_cidrs must be IPv4 blocks such as 10.0.0.0/16, and never all of the internet: the agent has neither TLS nor logins yet."
  }
}

variable "client_security_group_ids" {
  description = "Security groups that may reach the agent, keyed by a static name."
  type        = map(string)
  default     = {}
}

variable "metrics_security_group_ids" {
  description = "Security groups that may reach /metrics (port 7772), keyed by a static name."
  type        = map(string)
  default     = {}
}

# --- bucket ----------------------------------------------------------------

variable "create_bucket" {
  description = "Create the bucket. False, together with bucket_name, to use one that lives in another state."
  type        = bool
  default     = true
}

variable "bucket_name" {
  description = "Name of the bucket. Null: NAME-ACCOUNT-REGION."
  type        = string
  default     = null

  validation {
    condition     = var.create_bucket || var.bucket_name != null
    error_message = "bucket_name is needed when create_bucket is false."
  }
}

variable "bucket_prefix" {
  description = "Where in the bucket the cluster lives, without slashes at its ends. The agent may touch nothing else."
  type        = string
  default     = "esker"

  validation {
    condition     = can(regex("^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$", var.bucket_prefix))
    error_message = "bucket_prefix must look like 'esker' or 'a/b', without slashes at its ends."
  }
}

variable "bucket_force_destroy" {
  description = "Let terraform destroy delete the bucket with all its data. For tests."
  type        = bool
  default     = false
}

variable "bucket_noncurrent_days" {
  description = "Switch versioning on, as a guard against a deletion by mistake, and keep deleted objects this many days. Null: no versioning."
  type        = number
  default     = null

  validation {
    condition     = var.bucket_noncurrent_days == null ? true : var.bucket_noncurrent_days >= 1 && floor(var.bucket_noncurrent_days) == var.bucket_noncurrent_days
    error_message = "bucket_noncurrent_days must be a whole number of days from 1 on, or null for no versioning."
  }
}

variable "bucket_lifecycle_rules" {
  description = "More lifecycle rules for the bucket, which can have only one configuration. A rule that would expire or archive what lies under bucket_prefix is refused."
  type = list(object({
    id              = string
    prefix          = string
    expiration_days = optional(number)
    transition      = optional(object({ days = number, storage_class = string }))
  }))
  default = []

  # The agent asks the bucket the same at each start, and refuses it with exit code 65.
  validation {
    condition = alltrue([
      for rule in var.bucket_lifecycle_rules : rule.expiration_days == null
      || !(startswith(rule.prefix, "${var.bucket_prefix}/") || startswith("${var.bucket_prefix}/", rule.prefix))
    ])
    error_message = "bucket_lifecycle_rules: a rule with expiration_days covers bucket_prefix and would delete live data by age. Retention belongs to the agent (ESKER_RETENTION, or the topic's own); give the rule another prefix."
  }

  validation {
    condition = alltrue([
      for rule in var.bucket_lifecycle_rules : rule.transition == null ? true : !contains(["GLACIER", "DEEP_ARCHIVE"], rule.transition.storage_class)
      || !(startswith(rule.prefix, "${var.bucket_prefix}/") || startswith("${var.bucket_prefix}/", rule.prefix))
    ])
    error_message = "bucket_lifecycle_rules: a rule moves what lies under bucket_prefix to GLACIER or DEEP_ARCHIVE, from where the agent cannot read it; GLACIER_IR, STANDARD_IA and INTELLIGENT_TIERING it can."
  }
}

variable "manage_bucket_lifecycle" {
  description = "Manage the bucket's lifecycle configuration. False for stand-ins of S3 on which applying one hangs."
  type        = bool
  default     = true

  validation {
    condition     = var.manage_bucket_lifecycle || length(var.bucket_lifecycle_rules) == 0
    error_message = "bucket_lifecycle_rules are given, but manage_bucket_lifecycle is false."
  }
}

variable "bucket_kms_key_arn" {
  description = "KMS key for the bucket (with an S3 Bucket Key). Null: SSE-S3, which costs nothing per request."
  type        = string
  default     = null
}

variable "ebs_kms_key_arn" {
  description = "KMS key for the volumes. Its policy must let AWSServiceRoleForAutoScaling create grants, or no instance starts. Null: the account's key for EBS."
  type        = string
  default     = null
}

# --- agent -----------------------------------------------------------------

variable "agent_count" {
  description = "Agents to run. One for now: this version of Esker has no replication, and a bucket prefix has one owner."
  type        = number
  default     = 1

  validation {
    condition     = var.agent_count == 1
    error_message = "agent_count must be 1: this version of Esker has no replication, and a second agent on the same bucket prefix is refused (exit code 75)."
  }
}

variable "instance_types" {
  description = "Instance types in order of preference, all of one CPU architecture."
  type        = list(string)
  default     = ["c7g.large"]

  validation {
    condition     = length(var.instance_types) >= 1
    error_message = "instance_types is empty."
  }

  validation {
    condition     = length(distinct([for type in var.instance_types : can(regex(local.arm64_types, type))])) <= 1
    error_message = "instance_types mixes arm64 (Graviton) and x86_64; one AMI and one package serve one architecture."
  }

  validation {
    condition     = !var.spot || length(distinct(var.instance_types)) >= 3
    error_message = "spot needs at least three different instance_types: spot capacity of one type can be gone in every zone at once, and then no agent runs."
  }
}

variable "spot" {
  description = "Run the agent as a spot instance. It drains on the two-minute notice; clients see it gone for some minutes."
  type        = bool
  default     = false
}

variable "ami_id" {
  description = "AMI with systemd, cloud-init, curl and the AWS CLI. Null: the newest Amazon Linux 2023, so that an apply may replace the agent when it moves."
  type        = string
  default     = null
}

variable "root_device_name" {
  description = "Root device of the AMI: /dev/xvda on Amazon Linux and Debian, /dev/sda1 on Ubuntu. A wrong name adds a volume instead."
  type        = string
  default     = "/dev/xvda"
}

variable "agent_package" {
  description = "Esker's package (.tar.gz or .deb) in an S3 bucket of this region, and its SHA-256."
  type = object({
    s3_bucket = string
    s3_key    = string
    sha256    = string
  })

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.agent_package.sha256))
    error_message = "agent_package.sha256 must be 64 hexadecimal digits in lower case, as sha256sum prints them."
  }

  validation {
    condition     = can(regex("^[a-z0-9.-]+$", var.agent_package.s3_bucket)) && can(regex("^[A-Za-z0-9._/+=-]+\\.(deb|tar\\.gz)$", var.agent_package.s3_key))
    error_message = "agent_package: s3_bucket is the bucket's name alone, s3_key must end with .deb or .tar.gz and hold only letters, digits and . _ / + = -"
  }
}

variable "agent_config" {
  description = "Settings of the agent by their environment variables, such as { ESKER_RETENTION = \"30d\" }; docs/config.md lists them."
  type        = map(string)
  default     = {}

  # The agent leaves variables it does not know alone, so a misspelt one would go unnoticed.
  validation {
    condition     = alltrue([for name in keys(var.agent_config) : contains(local.agent_settings, name)])
    error_message = "agent_config: no such setting, or one that this module sets itself: ${join(", ", setsubtract(keys(var.agent_config), local.agent_settings))}. docs/config.md lists the settings."
  }

  validation {
    condition     = alltrue([for value in values(var.agent_config) : can(regex("^[A-Za-z0-9._,:/?&=%+-]*$", value))])
    error_message = "agent_config: a value may hold only letters, digits and . _ , : / ? & = % + -"
  }
}

variable "tail_volume" {
  description = "gp3 volume of the hot tail. With keep it outlives its instance, so that what was not uploaded can be rescued; drained ones are to be deleted by hand. Null: the instance store, which dies with the instance."
  type = object({
    size_gib   = optional(number, 30)
    iops       = optional(number, 3000)
    throughput = optional(number, 125)
    keep       = optional(bool, true)
  })
  default = {}

  validation {
    condition     = var.tail_volume != null ? true : alltrue([for type in var.instance_types : can(regex(local.instance_store_types, type))])
    error_message = "tail_volume is null, but not every one of instance_types has an instance store; take types such as c7gd.large or i4g.large."
  }

  validation {
    condition     = var.tail_volume == null ? true : var.tail_volume.size_gib >= 10
    error_message = "tail_volume.size_gib must be at least 10: the agent holds up to 8 GiB that are not uploaded yet (ESKER_UNUPLOADED_BYTES_MAX) and keeps a tenth free."
  }
}

variable "drain_timeout_secs" {
  description = "How long the agent may upload its tail when it is told to go (ESKER_DRAIN_TIMEOUT). Spot leaves two minutes in all."
  type        = number
  default     = 90

  validation {
    condition     = var.drain_timeout_secs >= 10 && var.drain_timeout_secs <= (var.spot ? 100 : 3600) && floor(var.drain_timeout_secs) == var.drain_timeout_secs
    error_message = "drain_timeout_secs must be a whole number from 10 to 3600, and at most 100 with spot, which takes the instance two minutes after its notice."
  }
}

variable "enable_ssm" {
  description = "Let people open a shell through Session Manager. There is never an SSH port."
  type        = bool
  default     = true
}

variable "permissions_boundary_arn" {
  description = "Permissions boundary of the instance's role."
  type        = string
  default     = null
}

# --- address ---------------------------------------------------------------

variable "nlb" {
  description = "Internal load balancer with an address that stays when the agent is replaced. Clients use it to find the agent; data goes to the agent directly."
  type = object({
    enabled             = optional(bool, true)
    deletion_protection = optional(bool, false)
  })
  default = {}
}

variable "dns" {
  description = "Route 53 record `name` in zone `zone_id` for the load balancer."
  type = object({
    zone_id = string
    name    = string
  })
  default = null

  validation {
    condition     = var.dns == null ? true : var.nlb.enabled
    error_message = "dns names the load balancer, but nlb.enabled is false."
  }
}

# --- alarms ----------------------------------------------------------------

variable "alarm_topic_arns" {
  description = "SNS topics that hear when no agent serves. Empty: no alarms."
  type        = list(string)
  default     = []
}
