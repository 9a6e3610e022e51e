# shellcheck shell=bash disable=SC2154 # run.sh, which sources it, sets $here, $REGION and the like
# Machines, and what is around them. All of it is named after $id, and goes at the end.

CLOUD_PORT=4566
LOCALSTACK=${LOCALSTACK_IMAGE:-localstack/localstack:4.13.1}
image=esker-machine:$(sha256sum "$here/image.sh" | cut -c1-8)
id=esker-first-start-$$
work='' s3='' # set by begin and start_s3

say() { echo "first start: $SECONDS s: $*"; }
die() {
  echo "first start: $*" >&2
  exit 1
}

# fail NAME WHAT: says also what the machine has to say.
fail() {
  {
    echo "== $1: cloud-init"
    in_machine "$1" tail -n 40 /var/log/cloud-init-output.log
    echo "== $1: units"
    in_machine "$1" systemctl --no-pager --lines=0 status 'esker-*'
    echo "== $1: journal"
    in_machine "$1" journalctl --no-pager -o short-monotonic -u 'esker-*' -n 80
    echo "== $1: console"
    docker logs --tail 20 "$id-$1"
    echo "== $1: around it"
    docker logs --tail 20 "$id-$1-cloud"
  } >&2 2>&1 || true
  die "$1: $2"
}

finish() {
  local status=$? containers
  trap - EXIT
  containers=$(docker ps -aq --filter "name=^$id-")
  # shellcheck disable=SC2086 # one word for each container
  [ -z "$containers" ] || docker rm -fv $containers >/dev/null
  docker network rm "$id" >/dev/null 2>&1 || true
  rm -rf "$work"
  [ "$status" = 0 ] || echo "first start: FAILED"
  exit "$status"
}

make_images() {
  docker version >/dev/null 2>&1 || die "no docker daemon answers"
  "$here/../localstack/build-image.sh"
  "$here/image.sh" "$image"
}

begin() {
  make_images
  work=$(mktemp -d "${TMPDIR:-/tmp}/$id.XXXXXX")
  trap finish EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  certificates 2>"$work/openssl.log" || die "no certificates: $(cat "$work/openssl.log")"
  docker network create "$id" >/dev/null
}

# wait_for SECONDS WHAT COMMAND...: until the command succeeds.
wait_for() {
  local until=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$until" ] || fail "${what%% *}" "in vain: $what"
    [ -z "$(docker ps -aq --filter "name=^$id-" --filter status=exited)" ] ||
      fail "${what%% *}" "it ended before: $what"
    sleep 0.5
  done
}

# For TLS as AWS has it: an authority, and what it says of the hosts that cloud.py stands for.
certificates() {
  local key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes) names
  names="subjectAltName=DNS:s3.$REGION.amazonaws.com,DNS:*.s3.$REGION.amazonaws.com,DNS:autoscaling.$REGION.amazonaws.com"
  (
    cd "$work" || exit
    openssl req -x509 "${key[@]}" -days 2 -subj '/CN=first start' -keyout ca.key -out ca.crt
    openssl req "${key[@]}" -subj '/CN=cloud' -keyout cloud.key -out cloud.csr
    openssl x509 -req -in cloud.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
      -extfile <(echo "$names") -out cloud.crt
    cat cloud.crt cloud.key >cloud.pem
  )
}

address() { docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$1"; }

start_s3() {
  docker run -d --name "$id-s3" --network "$id" "$LOCALSTACK" >/dev/null
  s3=$(address "$id-s3"):$CLOUD_PORT
  local tries
  for tries in $(seq 120); do
    ! curl -sf -m 2 "http://$s3/_localstack/health" >/dev/null || return 0
    sleep 0.5
  done
  die "LocalStack does not answer after $tries tries: $(docker logs --tail 5 "$id-s3" 2>&1)"
}

make_bucket() {
  curl -sfS -o "$work/answer" -X PUT "http://$s3/$1" -d "<CreateBucketConfiguration><LocationConstraint>$REGION</LocationConstraint></CreateBucketConfiguration>" ||
    die "no bucket $1: $(cat "$work/answer")"
}

put() { curl -sfS -o /dev/null -T "$3" "http://$s3/$1/$2" || die "$3 cannot be put into the bucket $1"; }

# tell NAME PATH TEXT: puts a value into the machine's metadata.
tell() {
  local path=$work/$1/latest/meta-data/$2
  mkdir -p "${path%/*}"
  # Whole or not at all.
  printf '%s' "$3" >"$work/told" && mv "$work/told" "$path"
}

told() { cat "$work/$1/latest/meta-data/$2"; }

# boot NAME ZONE: the metadata of an instance, then the machine.
boot() {
  local name=$1 zone=$2 hosts=() bucket
  tell "$name" instance-id "i-$name"
  tell "$name" placement/region "$REGION"
  tell "$name" placement/availability-zone "$REGION${zone#1}"
  tell "$name" placement/availability-zone-id "euc1-az${zone%[a-z]}"
  tell "$name" autoscaling/target-lifecycle-state InService
  tell "$name" iam/security-credentials/agent '{"Code": "Success", "Type": "AWS-HMAC",
    "LastUpdated": "2026-01-01T00:00:00Z", "Expiration": "'"$(date -u -d '+6 hours' +%FT%TZ)"'",
    "AccessKeyId": "test", "SecretAccessKey": "test", "Token": "token"}'
  mkdir "$work/$name/machine" "$work/$name/machine/seed"
  gzip -c "$work/rendered/$name/user_data.yaml" >"$work/$name/machine/seed/user-data"
  echo "instance-id: i-$name" >"$work/$name/machine/seed/meta-data"
  cp "$work/ca.crt" "$work/$name/machine/"
  cp "$work/cloud.pem" "$work/$name/"
  for bucket in packages. "$STORE_BUCKET". ''; do
    hosts+=(--add-host "${bucket}s3.$REGION.amazonaws.com:127.0.0.2")
  done
  docker run -d --name "$id-$name-cloud" --network "$id" --cap-add NET_ADMIN "${hosts[@]}" \
    --add-host "autoscaling.$REGION.amazonaws.com:127.0.0.3" -v "$work/$name:/cloud:ro" \
    -v "$here/cloud.py:/cloud.py:ro" "$image" \
    sh -c "ip addr add 169.254.169.254/32 dev lo && exec python3 /cloud.py /cloud $id-s3:$CLOUD_PORT" >/dev/null
  tell "$name" local-ipv4 "$(address "$id-$name-cloud")"
  wait_for 20 "$name has a cloud around it" eval "docker logs $id-$name-cloud | grep -q ready"
  # With the network of what is around it, and a disk of its own. SYS_ADMIN is for systemd.
  docker run -d -t --name "$id-$name" --network "container:$id-$name-cloud" --cgroupns private \
    --cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
    --env container=docker --stop-signal RTMIN+3 --tmpfs /run --tmpfs /run/lock \
    -v /var/lib/esker -v "$work/$name/machine:/cloud:ro" \
    -v "$here/boot.sh:/boot.sh:ro" "$image" /boot.sh >/dev/null
}

# The machine and its disk are gone.
remove() { docker rm -fv "$id-$1" "$id-$1-cloud" >/dev/null; }

in_machine() {
  local name=$1
  shift
  timeout 120 docker exec -i "$id-$name" "$@"
}

said() { in_machine "$1" grep -qF "$3" "$2"; }
is() { [ "$(in_machine "$1" systemctl show -p "${3%%=*}" "$2")" = "$3" ]; }
journal() { in_machine "$1" journalctl -q --no-pager -o cat -u "$2"; }

# has NAME UNIT PROPERTY=VALUE...: the unit is so.
has() {
  local name=$1 unit=$2 property found
  shift 2
  for property in "$@"; do
    found=$(in_machine "$name" systemctl show -p "${property%%=*}" "$unit")
    [ "$found" = "$property" ] || fail "$name" "$unit has ${found:-no ${property%%=*}}, not $property"
  done
}
