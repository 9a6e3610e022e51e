#!/bin/sh
# First process of the machine under test: what a container lacks of an instance, then systemd.
set -e
# Whoever answers for AWS here is trusted.
cp /cloud/ca.crt /usr/local/share/ca-certificates/cloud.crt
update-ca-certificates >/dev/null 2>&1
# cloud-init knows EC2 by its firmware, which a container has not: it is handed the user data.
mkdir -p /var/lib/cloud/seed
cp -r /cloud/seed /var/lib/cloud/seed/nocloud
printf 'datasource_list: [NoCloud]\nnetwork: {config: disabled}\n' >/etc/cloud/cloud.cfg.d/90-container.cfg
mkdir -p /var/log/journal
# systemd makes control groups below its own; nothing else of the kernel is writable.
for group in /sys/fs/cgroup /sys/fs/cgroup/systemd; do
  ! mountpoint -q "$group" || mount -o remount,bind,rw "$group"
done
exec /sbin/init
