#!/bin/bash
# Makes a base for the Dockerfile without any registry: a plain Debian 12 by debootstrap, imported as
# IMAGE. Does nothing where the daemon has it. The root is kept as a tar in the cache, where check.sh
# finds it too; with --tar-only no Docker is needed. Needs root, debootstrap, tar.
set -euo pipefail

IMAGE=${IMAGE:-esker-base:bookworm}
cache=${ESKER_CI_CACHE:-$HOME/.cache/esker-ci}/packaging
tar=$cache/debian-bookworm.tar

say() { echo "base-image: $*"; }

make_tar() {
  [ ! -e "$tar" ] || return 0
  local work
  work=$(mktemp -d "${TMPDIR:-/tmp}/esker-base.XXXXXX")
  say "a plain Debian 12 into $tar"
  debootstrap --variant=minbase --include=ca-certificates bookworm "$work/root" >"$work/log" 2>&1 || {
    tail -20 "$work/log" >&2
    rm -rf "$work"
    say "debootstrap failed" >&2
    return 1
  }
  rm -rf "$work"/root/var/{cache/apt/archives/*.deb,lib/apt/lists/*}
  rm -f "$work"/root/etc/{resolv.conf,hostname}
  mkdir -p "$cache"
  # Named last: half a root must never be taken for a whole one.
  tar -C "$work/root" --numeric-owner --one-file-system --exclude='./proc/*' --exclude='./sys/*' \
    --exclude='./dev/*' -cf "$tar.part" .
  mv "$tar.part" "$tar"
  rm -rf "$work"
}

if [ "${1:-}" = --tar-only ]; then
  make_tar
  exit
fi
docker version >/dev/null 2>&1 || { say "no docker daemon answers" >&2; exit 1; }
if docker image inspect "$IMAGE" >/dev/null 2>&1; then
  say "$IMAGE is there already"
  exit
fi
make_tar
docker import "$tar" "$IMAGE" >/dev/null
say "$IMAGE, $(docker image inspect "$IMAGE" --format '{{.Size}}') bytes"
