#!/bin/bash
# Builds the agent's image from the packages, starts compose.yaml, and restarts each part of it under
# data, as a user would. Ends with "compose checks: all passed". Needs a Docker daemon, docker-compose,
# LocalStack's image (tests/localstack/build-image.sh) and packages (build.sh). Leaves nothing running.
#
#   OUT   where the packages are; default packages/ in the target directory
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

out=${OUT:-${CARGO_TARGET_DIR:-target}/packages}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/esker-compose.XXXXXX")
export ESKER_IMAGE=esker-agent:check-$$
ESKER_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
ESKER_HTTP_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export ESKER_PORT ESKER_HTTP_PORT
project=eskercheck$$

say() { echo "compose: $*"; }
compose() { timeout 240 docker-compose -f "$here/esker-localstack/compose.yaml" -p "$project" "$@"; }
esker() { compose exec -T agent esker "$@"; }

finish() {
  local status=$?
  trap - EXIT
  [ "$status" = 0 ] || compose logs --tail=40 2>&1 || true
  compose down -v -t 5 >"$scratch/down.log" 2>&1 || cat "$scratch/down.log"
  docker rmi -f "$ESKER_IMAGE" >/dev/null 2>&1 || true
  rm -rf "$scratch"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

# within SECONDS WHAT COMMAND...: waits until the command succeeds.
within() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || { say "in vain: $what" >&2; return 1; }
    sleep 1
  done
}

health_of() { docker inspect -f '{{.State.Health.Status}}' "$(compose ps -q "$1")"; }
is_healthy() { [ "$(health_of "$1")" = healthy ]; }
is_running() { [ "$(docker inspect -f '{{.State.Running}}' "$(compose ps -q "$1")")" = true ]; }
is_over() { ! is_running "$1"; }
started_at() { docker inspect -f '{{.State.StartedAt}}' "$(compose ps -q "$1")"; }

# said SERVICE TEXT: whether it logged that. By way of a file: a pipe that grep closes is an error.
said() {
  compose logs "$1" >"$scratch/log"
  grep "$2" "$scratch/log"
}

# Lines that nobody else writes, and that are in the log from then on.
produce() {
  seq -f "$1 %.0f" 20000 >>"$scratch/sent"
  seq -f "$1 %.0f" 20000 | esker produce check
}

# Everything that was ever sent comes back, byte for byte.
all_there() {
  esker replay check --output - >"$scratch/got" 2>"$scratch/replay.log" || { cat "$scratch/replay.log"; return 1; }
  cmp "$scratch/sent" "$scratch/got"
}

image() {
  IMAGE=esker-base:bookworm "$here/base-image.sh"
  tar -xzf "$out"/esker-*-x86_64-linux.tar.gz -C "$scratch"
  docker build -q -f "$here/Dockerfile" --build-arg BASE=esker-base:bookworm -t "$ESKER_IMAGE" \
    "$scratch"/esker-*-x86_64-linux
  local user
  user=$(docker run --rm --entrypoint /usr/bin/id "$ESKER_IMAGE" -u)
  [ "$user" = 7771 ] || { say "the image runs as user $user" >&2; return 1; }
}

up() {
  compose up -d
  within 150 "the agent becomes healthy" is_healthy agent
  esker topic create check --partitions 1
  produce first
  esker topic seal check --drop-local
  produce 'on disk only'
  all_there
}

restart_agent() {
  compose restart agent
  within 150 "the agent is healthy again" is_healthy agent
  said agent 'drained: everything acknowledged is in the bucket'
  all_there
  produce 'after the agent'
}

restart_s3() {
  local before
  before=$(started_at agent)
  compose restart s3
  within 150 "s3 is healthy again" is_healthy s3
  produce 'after s3'
  esker topic seal check --drop-local
  all_there
  [ "$(started_at agent)" = "$before" ] || { say "the agent was started anew" >&2; return 1; }
}

restart_both() {
  produce 'before both'
  compose restart
  within 150 "both are healthy again" is_healthy s3
  within 150 "both are healthy again" is_healthy agent
  all_there
}

kill_s3() {
  compose kill s3
  compose start s3 || true
  within 60 "s3 refuses to start with lost buckets" is_over s3
  said s3 'esker: was killed, and its buckets with it'
}

step() {
  local begin=$SECONDS
  say "== $1"
  "${@:2}"
  say "ok, $((SECONDS - begin)) s"
}

step "image" image
step "up, produce, upload" up
step "restart of the agent" restart_agent
step "restart of s3" restart_s3
step "restart of both" restart_both
step "kill of s3" kill_s3
echo "compose checks: all passed"
