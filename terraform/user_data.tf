# What cloud-init lays down on an instance. The scripts are plain files, the same on every instance;
# what differs stands in /etc/esker/cloud.conf, and for the agent in /etc/esker/esker-agent.env.
locals {
  hook_name     = "drain"
  stop_secs     = var.drain_timeout_secs + 15 # the agent closes its streams and logs after the drain
  hook_secs     = local.stop_secs + 15
  user_data_max = 16384

  agent_env = merge(var.agent_config, {
    ESKER_STORE         = local.store
    ESKER_LISTEN        = "0.0.0.0:${local.grpc_port}"
    ESKER_HTTP_LISTEN   = "0.0.0.0:${local.http_port}"
    ESKER_DRAIN_TIMEOUT = "${var.drain_timeout_secs}s"
  })

  cloud_conf = {
    REGION         = local.region
    GROUP          = local.group_name
    HOOK           = local.hook_name
    TAIL           = var.tail_volume == null ? "instance-store" : "ebs"
    GRPC_PORT      = local.grpc_port
    PACKAGE        = "s3://${var.agent_package.s3_bucket}/${var.agent_package.s3_key}"
    PACKAGE_SHA256 = var.agent_package.sha256
    WAIT_SECS      = local.hook_secs + 60
  }

  scripts = ["imds", "setup", "start", "drain-watch"]

  files = concat(
    [
      { path = "/etc/esker/esker-agent.env", mode = "0644", text = join("", [for key, value in local.agent_env : "${key}=${value}\n"]) },
      { path = "/etc/esker/cloud.conf", mode = "0644", text = join("", [for key, value in local.cloud_conf : "${key}=${value}\n"]) },
      { path = "/etc/systemd/system/esker-setup.service", mode = "0644", text = file("${path.module}/instance/esker-setup.service") },
      { path = "/etc/systemd/system/esker-drain.service", mode = "0644", text = file("${path.module}/instance/esker-drain.service") },
      { path = "/etc/systemd/system/esker-agent.service.d/cloud.conf", mode = "0644", text = templatefile("${path.module}/instance/esker-agent.conf.tftpl", { stop_secs = local.stop_secs }) },
    ],
    [for script in local.scripts : { path = "/usr/local/lib/esker/${script}", mode = "0755", text = file("${path.module}/instance/${script}") }],
  )

  user_data = join("\n", ["#cloud-config", yamlencode({
    write_files = [for file in local.files : { path = file.path, permissions = file.mode, content = file.text }]
    runcmd = [
      ["systemctl", "daemon-reload"],
      ["systemctl", "enable", "--now", "esker-drain.service"],
      ["/usr/local/lib/esker/start"],
    ]
  })])
}
