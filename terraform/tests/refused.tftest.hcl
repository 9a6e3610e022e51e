# Inputs that are refused, by the validation or precondition that says why.
mock_provider "aws" {
  override_during = plan

  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_region" {
    defaults = { region = "eu-central-1" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_data "aws_ssm_parameter" {
    defaults = { insecure_value = "ami-0123456789abcdef0" }
  }
}

variables {
  name            = "tst"
  vpc_id          = "vpc-1"
  subnet_ids      = { a = "subnet-a", b = "subnet-b", c = "subnet-c" }
  route_table_ids = ["rtb-1"]
  client_cidrs    = { vpc = "10.0.0.0/16" }
  agent_package   = { s3_bucket = "packages", s3_key = "esker.tar.gz", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
}

run "mixed_architectures" {
  command = plan
  variables {
    instance_types = ["c7g.large", "c7i.large"]
  }
  expect_failures = [var.instance_types]
}

run "instance_store_on_types_without_one" {
  command = plan
  variables {
    tail_volume    = null
    instance_types = ["c7gd.large", "c7g.large"]
  }
  expect_failures = [var.tail_volume]
}

run "spot_with_too_few_types" {
  command = plan
  variables {
    spot           = true
    instance_types = ["c7g.large", "c6g.large", "c7g.large"]
  }
  expect_failures = [var.instance_types]
}

run "rule_that_expires_live_data" {
  command = plan
  variables {
    bucket_lifecycle_rules = [{ id = "old", prefix = "esker/topics/", expiration_days = 30 }]
  }
  expect_failures = [var.bucket_lifecycle_rules]
}

run "rule_that_expires_the_whole_bucket" {
  command = plan
  variables {
    bucket_lifecycle_rules = [{ id = "old", prefix = "", expiration_days = 30 }]
  }
  expect_failures = [var.bucket_lifecycle_rules]
}

run "rule_that_archives_live_data" {
  command = plan
  variables {
    bucket_lifecycle_rules = [{ id = "old", prefix = "es", transition = { days = 30, storage_class = "DEEP_ARCHIVE" } }]
  }
  expect_failures = [var.bucket_lifecycle_rules]
}

run "rules_that_nobody_would_apply" {
  command = plan
  variables {
    manage_bucket_lifecycle = false
    bucket_lifecycle_rules  = [{ id = "reports", prefix = "reports/", expiration_days = 30 }]
  }
  expect_failures = [var.manage_bucket_lifecycle]
}

run "bad_sha256" {
  command = plan
  variables {
    agent_package = { s3_bucket = "packages", s3_key = "esker.tar.gz", sha256 = "000000000000000000000000000000000000000000000000000000000000000G" }
  }
  expect_failures = [var.agent_package]
}

run "package_of_another_kind" {
  command = plan
  variables {
    agent_package = { s3_bucket = "packages", s3_key = "esker.rpm", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  }
  expect_failures = [var.agent_package]
}

run "more_than_one_agent" {
  command = plan
  variables {
    agent_count = 3
  }
  expect_failures = [var.agent_count]
}

run "setting_that_does_not_exist" {
  command = plan
  variables {
    agent_config = { ESKER_SEGMET_AGE = "1m" }
  }
  expect_failures = [var.agent_config]
}

run "setting_that_the_module_sets" {
  command = plan
  variables {
    agent_config = { ESKER_STORE = "file:///tmp" }
  }
  expect_failures = [var.agent_config]
}

run "setting_that_breaks_out_of_its_line" {
  command = plan
  variables {
    agent_config = { ESKER_LOG_LEVEL = "info\nESKER_STORE=file:///tmp" }
  }
  expect_failures = [var.agent_config]
}

run "small_tail_volume" {
  command = plan
  variables {
    tail_volume = { size_gib = 8 }
  }
  expect_failures = [var.tail_volume]
}

run "long_drain_on_spot" {
  command = plan
  variables {
    spot               = true
    instance_types     = ["c7g.large", "c6g.large", "m7g.large"]
    drain_timeout_secs = 110
  }
  expect_failures = [var.drain_timeout_secs]
}

run "open_to_the_internet" {
  command = plan
  variables {
    client_cidrs = { all = "0.0.0.0/0" }
  }
  expect_failures = [var.client_cidrs]
}

run "prefix_with_a_slash" {
  command = plan
  variables {
    bucket_prefix = "esker/"
  }
  expect_failures = [var.bucket_prefix]
}

run "bucket_without_a_name" {
  command = plan
  variables {
    create_bucket = false
  }
  expect_failures = [var.bucket_name]
}

run "versions_for_no_days" {
  command = plan
  variables {
    bucket_noncurrent_days = 0
  }
  expect_failures = [var.bucket_noncurrent_days]
}

run "record_without_a_load_balancer" {
  command = plan
  variables {
    nlb = { enabled = false }
    dns = { zone_id = "Z1", name = "esker.example.internal" }
  }
  expect_failures = [var.dns]
}

run "endpoint_without_a_route" {
  command = plan
  variables {
    route_table_ids = []
  }
  expect_failures = [aws_vpc_endpoint.s3]
}

run "no_subnet" {
  command = plan
  variables {
    subnet_ids = {}
  }
  expect_failures = [var.subnet_ids]
}

run "no_instance_type" {
  command = plan
  variables {
    instance_types = []
  }
  expect_failures = [var.instance_types]
}

run "long_name" {
  command = plan
  variables {
    name = "a-name-that-is-too-long-x"
  }
  expect_failures = [var.name]
}

run "user_data_over_16_kib" {
  command = plan
  variables {
    agent_config = { ESKER_LOG_LEVEL = join(",", [for number in range(900) : sha256(tostring(number))]) }
  }
  expect_failures = [aws_launch_template.agent]
}
