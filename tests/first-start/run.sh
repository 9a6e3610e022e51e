#!/bin/bash
# Starts an agent on a machine of the cloud for the first time, takes the machine away, and starts
# another, without a cloud: run.sh PACKAGES, the folder that agent/packaging/build.sh fills.
#
# A machine is a container of plain Debian 12 with systemd as its first process (image.sh), which
# finds around it what cloud.py stands for: instance metadata, S3 with LocalStack behind, Auto
# Scaling. cloud-init runs the user data of terraform/examples/minimal as its plan has it, letter by
# letter; from there on everything is the machine's own doing. The first one installs the .tar.gz and
# gets 100,000 records. The second one installs the .deb, and is refused as long as the first one
# owns the cluster. Spot takes the first one, which drains and is removed with its disk. Then the
# second one has to serve every record, from an empty disk. A shutdown drains it, too.
#
# Needs root, a Docker daemon, debootstrap, openssl, curl, and what terraform/ci/render_user_data.sh
# needs. Takes a minute or two once its images are there, which run.sh --images makes: minutes of
# waiting for packages of Debian, the first time.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$here/../.." && pwd)
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$here/machine.sh"

RECORDS=100000
STORE_BUCKET=esker-123456789012-eu-central-1 # as the plan names it
REGION=eu-central-1
GROUP=esker-agents

[ $# = 1 ] || die "usage: run.sh PACKAGES, the folder that agent/packaging/build.sh fills"
for tool in docker debootstrap openssl curl python3; do
  command -v "$tool" >/dev/null || die "needs $tool"
done
if [ "$1" = --images ]; then
  make_images
  exit
fi
packages=$(realpath "$1")

# package KIND: the one of this kind for this machine's architecture.
package() {
  local found
  found=$(find "$packages" -maxdepth 1 -name "esker*$1")
  [ -f "$found" ] || die "not one $1 in $packages, but: ${found:-none}"
  echo "$found"
}

# render NAME KIND: the user data of the plan, with this package.
render() {
  local file sum
  file=$(package "$2")
  sum=$(sha256sum "$file" | cut -d' ' -f1)
  put packages "esker$2" "$file"
  AGENT_PACKAGE='{"s3_bucket":"packages","s3_key":"esker'$2'","sha256":"'$sum'"}' \
    "$repo/terraform/ci/render_user_data.sh" minimal "$work/rendered/$1" >"$work/render.log" 2>&1 ||
    die "the user data cannot be rendered: $(tail -5 "$work/render.log")"
  grep -qx "ESKER_STORE=s3://$STORE_BUCKET/esker?region=$REGION" "$work/rendered/$1/root/etc/esker/esker-agent.env" ||
    die "the plan names another bucket than $STORE_BUCKET in $REGION"
}

segments_in_bucket() {
  curl -sfS -o "$work/listing" "http://$s3/$STORE_BUCKET?list-type=2&prefix=esker/topics/" ||
    die "the bucket cannot be listed"
  { grep -o '/segments/' "$work/listing" || true; } | wc -l
}

# serves NAME: its first start is over, and the unit is as it should be.
serves() {
  local name=$1 files clients
  wait_for 240 "$name serves" said "$name" /var/log/cloud-init-output.log 'esker start: the agent serves'
  has "$name" esker-agent Type=notify ActiveState=active SubState=running User=esker NRestarts=0 \
    "ExecMainStatus=0" UnitFileState=enabled TimeoutStopUSec=1min\ 45s WatchdogUSec=2min \
    "StateDirectory=esker"
  has "$name" esker-setup ActiveState=active SubState=exited Result=success UnitFileState=enabled
  has "$name" esker-drain ActiveState=active SubState=running UnitFileState=enabled
  [ "$(in_machine "$name" stat -c '%U %a' /var/lib/esker)" = 'esker 750' ] || fail "$name" "the state directory is not the agent's"
  files=$(in_machine "$name" cat /etc/esker/esker-agent.env)
  [ "$files" = "$(cat "$work/rendered/$name/root/etc/esker/esker-agent.env")" ] ||
    fail "$name" "the settings are not those of the plan: $files"
  clients=$(in_machine "$name" esker cluster)
  grep -qE " $(told "$name" local-ipv4):7771 +$(told "$name" placement/availability-zone-id) " <<<"$clients" ||
    fail "$name" "clients are told of another address or zone: $clients"
  in_machine "$name" esker-agent health >/dev/null || fail "$name" "the agent says that it is not well"
  say "$name serves: $(in_machine "$name" systemctl show -p StatusText --value esker-agent)"
}

# drained NAME JOURNAL: what the agent said on its way out, all of it.
drained() {
  local step
  for step in 'draining; a second signal' 'seal the logs' 'upload and commit what was sealed' \
    'record the drain' 'close streams and logs' 'drained: everything acknowledged is in the bucket'; do
    grep -qF "$step" "$2" || fail "$1" "the agent's journal does not say: $step"
  done
}

produce() { seq -f 'record %06g of the first start' "$2" "$3" | in_machine "$1" esker produce first; }

# replayed NAME COUNT: every record comes back, in its order.
replayed() {
  in_machine "$1" esker replay first --output /tmp/again >/dev/null || fail "$1" "replay failed"
  in_machine "$1" cat /tmp/again >"$work/again"
  seq -f 'record %06g of the first start' "$2" >"$work/sent"
  cmp "$work/sent" "$work/again" ||
    fail "$1" "of $2 records sent $(wc -l <"$work/again") came back, or others than were sent"
  say "$1 serves all of $2 records, as they were sent"
}

verified() {
  in_machine "$1" esker bucket verify --deep --store "s3://$STORE_BUCKET/esker?region=$REGION" ||
    fail "$1" "the bucket is not whole"
}

# Spot gives two minutes.
interrupt() {
  local name=$1 began=$SECONDS
  [ "$(segments_in_bucket)" = 0 ] || fail "$name" "there is something in the bucket before the drain"
  tell "$name" spot/instance-action '{"action": "terminate", "time": "2030-01-01T00:00:00Z"}'
  wait_for 110 "$name is drained" is "$name" esker-drain ActiveState=inactive
  say "$name was told that spot takes it, and was done $((SECONDS - began)) s later"
  has "$name" esker-agent ActiveState=inactive SubState=dead ExecMainStatus=0 Result=success
  has "$name" esker-drain Result=success ExecMainStatus=0
  journal "$name" esker-drain >"$work/drain.log"
  grep -q 'spot takes this instance: {"action": "terminate"' "$work/drain.log" ||
    fail "$name" "the watcher's journal does not say why it stopped the agent"
  grep -q 'esker drain: drained in [0-9]* s' "$work/drain.log" ||
    fail "$name" "the watcher's journal does not say that the agent drained"
  journal "$name" esker-agent >"$work/agent.log"
  drained "$name" "$work/agent.log"
  docker logs "$id-$name-cloud" 2>&1 | grep -q "Action=CompleteLifecycleAction AutoScalingGroupName=$GROUP InstanceId=i-$name LifecycleActionResult=CONTINUE LifecycleHookName=drain" ||
    fail "$name" "the group was not told that the drain is over"
  [ "$(segments_in_bucket)" -gt 0 ] || fail "$name" "there is nothing in the bucket after the drain"
  verified "$name"
}

shut_down() {
  local name=$1
  docker stop -t 120 "$id-$name" >/dev/null
  rm -rf "$work/journal"
  docker cp "$id-$name:/var/log/journal" "$work/journal" >/dev/null
  docker run --rm -v "$work/journal:/journal:ro" "$image" \
    journalctl -q -D /journal -u esker-agent -o cat >"$work/agent.log"
  drained "$name" "$work/agent.log"
  say "$name was shut down, and drained"
}

begin
start_s3
make_bucket packages
make_bucket "$STORE_BUCKET"
render first .tar.gz
render second .deb

boot first 1a
serves first
in_machine first esker topic create first >/dev/null
produce first 1 "$RECORDS"

boot second 1b
wait_for 180 "second is refused" is second esker-agent ExecMainStatus=75
say "second is refused, and tries again"
interrupt first
remove first
serves second
in_machine second dpkg-query -W esker >/dev/null || fail second "the .deb is not installed"
replayed second "$RECORDS"
produce second $((RECORDS + 1)) $((RECORDS + 1000))
replayed second $((RECORDS + 1000))
before=$(segments_in_bucket)
shut_down second
[ "$(segments_in_bucket)" -gt "$before" ] || fail second "the shutdown brought nothing into the bucket"

say "done"
echo "first start: all passed"
