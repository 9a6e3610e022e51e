# The examples, applied to a provider that makes everything up.
mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_region" {
    defaults = { region = "eu-central-1" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
}

variables {
  agent_package = { s3_bucket = "packages", s3_key = "esker.deb", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
}

run "minimal" {
  module {
    source = "./examples/minimal"
  }

  assert {
    condition     = endswith(output.bootstrap_endpoint, ":7771") && output.store == "s3://esker-123456789012-eu-central-1/esker?region=eu-central-1"
    error_message = "clients and tools are sent elsewhere"
  }
}

run "complete" {
  module {
    source = "./examples/complete"
  }

  assert {
    condition     = output.bootstrap_endpoint == "esker.example.internal:7771"
    error_message = "clients are sent elsewhere"
  }
}

run "localstack" {
  module {
    source = "./examples/localstack"
  }

  assert {
    condition     = output.bucket_name == "esker-local-123456789012-eu-central-1"
    error_message = "bucket"
  }
}
