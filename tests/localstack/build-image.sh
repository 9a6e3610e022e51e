#!/bin/bash
# Builds the image localstack/localstack:4.13.1 (S3 only) without any image registry: a Debian 12
# root by debootstrap, pinned wheels by pip, `docker import` into the local daemon.
#
# Does nothing where the daemon already has the image. Needs root, debootstrap, tar, python3.11
# (Debian 12's own python, so that wheels chosen on the host fit the image) and a Docker daemon.
# Takes a minute or two and 700 MB under WORK, which is removed at the end (KEEP_WORK=1 keeps it).
#
# 4.13.1 because it is the newest community version that runs on Debian 12's python.
set -euo pipefail

VERSION=4.13.1
SUITE=bookworm
PYTHON=${PYTHON:-python3.11}
IMAGE=${IMAGE:-localstack/localstack:$VERSION}
WORK=${WORK:-${TMPDIR:-/tmp}/esker-localstack-image}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$WORK/root
WHEELS=$WORK/wheels

say() { echo "build-image: $*"; }
die() { say "$*" >&2; exit 1; }

docker version --format '{{.Server.Version}}' >/dev/null 2>&1 || die "no docker daemon answers"
if docker image inspect "$IMAGE" >/dev/null 2>&1; then
  say "$IMAGE is there already"
  exit 0
fi
[ "$(id -u)" = 0 ] || die "must be root: debootstrap and chroot need it"
for tool in debootstrap tar "$PYTHON"; do
  command -v "$tool" >/dev/null || die "needs $tool"
done
want=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || die "$PYTHON does not run"
[ "$want" = 3.11 ] || die "$PYTHON is python $want, the image has 3.11: its wheels would not fit"

mkdir -p "$WHEELS"
if [ ! -e "$WHEELS/.complete" ]; then
  say "1/4 wheels from the python package index"
  "$PYTHON" -m venv "$WORK/venv"
  "$WORK/venv/bin/pip" --disable-pip-version-check wheel -q --no-deps --wheel-dir "$WHEELS" \
    -r "$HERE/requirements.txt"
  touch "$WHEELS/.complete"
fi

if [ ! -e "$ROOT/.complete" ]; then
  say "2/4 a Debian $SUITE root"
  rm -rf "$ROOT"
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$SUITE" "$ROOT" \
    >"$WORK/debootstrap.log" 2>&1 || { tail -20 "$WORK/debootstrap.log" >&2; die "debootstrap failed"; }
  touch "$ROOT/.complete"
fi

say "3/4 LocalStack $VERSION into /opt/localstack"
rm -rf "$ROOT/wheels" "$ROOT/opt/localstack"
cp -a "$WHEELS" "$ROOT/wheels"
cp "$HERE/requirements.txt" "$ROOT/wheels/requirements.txt"
in_root() { chroot "$ROOT" env -i PATH=/usr/bin:/bin HOME=/root "$@"; }
in_root python3 -m venv /opt/localstack
in_root /opt/localstack/bin/pip --disable-pip-version-check install -q --no-cache-dir --no-index \
  --no-deps --find-links /wheels -r /wheels/requirements.txt
rm -rf "$ROOT/wheels"

cat > "$ROOT/usr/local/bin/docker-entrypoint.sh" <<'EOF'
#!/bin/sh
# Prints "Ready." once the gateway listens and S3 is loaded.
exec /opt/localstack/bin/python -m localstack.runtime.main
EOF
chmod 755 "$ROOT/usr/local/bin/docker-entrypoint.sh"
mkdir -p "$ROOT"/var/lib/localstack "$ROOT"/etc/localstack/init/{boot,start,ready,shutdown}.d
rm -f "$ROOT/etc/resolv.conf" "$ROOT/etc/hostname"
touch "$ROOT/etc/resolv.conf"
rm -rf "$ROOT"/var/cache/apt/archives/*.deb "$ROOT"/var/lib/apt/lists/* \
  "$ROOT"/usr/share/{doc,man}/*

say "4/4 docker import"
# EXPOSE is needed: testcontainers publishes the exposed ports and then asks for 4566.
changes=(--change 'EXPOSE 4566' --change 'WORKDIR /opt/localstack'
  --change 'ENTRYPOINT ["/usr/local/bin/docker-entrypoint.sh"]' --change 'VOLUME /var/lib/localstack')
for env in SERVICES=s3 EAGER_SERVICE_LOADING=1 GATEWAY_LISTEN=0.0.0.0:4566 DISABLE_EVENTS=1 \
  SKIP_SSL_CERT_DOWNLOAD=1 DNS_ADDRESS=0 PYTHONUNBUFFERED=1 \
  PATH=/opt/localstack/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; do
  changes+=(--change "ENV $env")
done
tar -C "$ROOT" --numeric-owner --one-file-system \
  --exclude='./proc/*' --exclude='./sys/*' --exclude='./dev/*' --exclude=./.complete -c . \
  | docker import "${changes[@]}" - "$IMAGE-building" >/dev/null
# Named last: an import of half a root must never be taken for the image.
docker tag "$IMAGE-building" "$IMAGE"
docker rmi "$IMAGE-building" >/dev/null
[ -n "${KEEP_WORK:-}" ] || rm -rf "$WORK"
say "$(docker image inspect "$IMAGE" --format '{{index .RepoTags 0}} {{.Size}} bytes, ports {{.Config.ExposedPorts}}')"
