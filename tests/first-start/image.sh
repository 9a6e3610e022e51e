#!/bin/bash
# Makes IMAGE, the machine of the first-start test, without any registry: Debian 12 by debootstrap
# with what the module wants of an AMI: systemd, cloud-init, curl, the AWS CLI. Nothing of Esker.
#
# Does nothing where the daemon has it. The tree is kept as a tar in the cache. Needs root,
# debootstrap, tar and a Docker daemon; takes some minutes and 400 MB the first time.
#
#   ESKER_CI_CACHE  where it is kept; default ~/.cache/esker-ci
set -euo pipefail

image=$1
cache=${ESKER_CI_CACHE:-$HOME/.cache/esker-ci}/first-start
# python3-cffi-backend is what debootstrap does not find by itself: others want it by another name.
include=systemd-sysv,dbus,cloud-init,curl,ca-certificates,awscli,python3-cffi-backend
tar=$cache/debian-bookworm-$(sha256sum "$0" | cut -c1-8).tar

say() { echo "image: $*"; }

make_tar() {
  [ ! -e "$tar" ] || return 0
  local work
  work=$(mktemp -d "${TMPDIR:-/tmp}/esker-machine.XXXXXX")
  # shellcheck disable=SC2064 # this folder, whatever the variable is then
  trap "rm -rf '$work'" EXIT
  say "a Debian 12 with cloud-init and the AWS CLI into $tar"
  debootstrap --variant=minbase --include="$include" bookworm "$work/root" >"$work/log" 2>&1 || {
    tail -20 "$work/log" >&2
    say "debootstrap failed" >&2
    return 1
  }
  rm -rf "$work"/root/var/{cache/apt/archives/*.deb,lib/apt/lists/*} "$work"/root/usr/share/{doc,man}/*
  rm -f "$work"/root/etc/{resolv.conf,hostname,machine-id}
  mkdir -p "$cache"
  # Named last: half a tree must never be taken for a whole one.
  tar -C "$work/root" --numeric-owner --one-file-system --exclude='./proc/*' --exclude='./sys/*' \
    --exclude='./dev/*' -cf "$tar.part" .
  mv "$tar.part" "$tar"
}

if docker image inspect "$image" >/dev/null 2>&1; then
  say "$image is there already"
  exit
fi
make_tar
docker import "$tar" "$image" >/dev/null
say "$image, $(docker image inspect "$image" --format '{{.Size}}') bytes"
