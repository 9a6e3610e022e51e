#!/bin/bash
# Builds what is released, into OUT: esker-VERSION-ARCH-linux.tar.gz, a .deb, and their SHA-256.
#
# The programs are linked with zig, which can aim at a glibc older than this machine's; C and assembly
# in dependencies are compiled with it too. Needs rustup's cargo, python3 with venv, readelf; fetches
# zig, cargo-zigbuild and cargo-deb once, into the cache.
#
#   OUT               where packages go; default packages/ in the target directory
#   ARCH              x86_64 (default) or aarch64, which wants: rustup target add aarch64-unknown-linux-gnu
#   ESKER_CI_CACHE    where tools are kept; default ~/.cache/esker-ci
#   CARGO_TARGET_DIR  as for cargo
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

GLIBC=2.31
ZIG=0.15.2
ZIGBUILD=0.24.1
CARGO_DEB=3.8.0

arch=${ARCH:-x86_64}
triple=$arch-unknown-linux-gnu
tools=${ESKER_CI_CACHE:-$HOME/.cache/esker-ci}/packaging
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR=$target
release=$target/$triple/release
out=$(realpath -m "${OUT:-$target/packages}")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
name=esker-$version-$arch-linux

say() { echo "build: $*"; }

tools() {
  local venv=$tools/zig-$ZIG-$ZIGBUILD
  if [ ! -e "$venv/.complete" ]; then
    say "zig $ZIG and cargo-zigbuild $ZIGBUILD"
    "${PYTHON:-python3}" -m venv --clear "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check "ziglang==$ZIG" "cargo-zigbuild==$ZIGBUILD"
    touch "$venv/.complete"
  fi
  if [ ! -x "$tools/cargo-deb-$CARGO_DEB/bin/cargo-deb" ]; then
    say "cargo-deb $CARGO_DEB"
    # It packs two files a year: no need to optimize it, nor to build another xz.
    CARGO_TARGET_DIR=$target/tools cargo install -q --locked --debug --no-default-features \
      --root "$tools/cargo-deb-$CARGO_DEB" --version "$CARGO_DEB" cargo-deb
    rm -rf "$target/tools"
  fi
  export PATH=$venv/bin:$tools/cargo-deb-$CARGO_DEB/bin:$PATH
}

# Both at once, so that what they share is built once. No debug information: it is stripped anyway.
programs() {
  say "programs for $triple, glibc $GLIBC"
  CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=symbols \
    RUSTFLAGS="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo --remap-path-prefix=$PWD=esker" \
    cargo zigbuild -q --locked --release --target "$triple.$GLIBC" --bins -p esker-agent -p esker-client
  local program
  for program in esker-agent esker; do
    say "$program: glibc $("$here/glibc.sh" "$release/$program" "$GLIBC") or newer," \
      "$(stat -c %s "$release/$program") bytes"
  done
}

# The folder that becomes the archive. The .deb is made from it too.
tree() {
  local tree=$release/tree
  rm -rf "$tree"
  mkdir -p "$tree"/{bin,systemd}
  # With the whole workspace, so that what its tests have built is used again.
  cargo build -q --locked --workspace --example pages
  "$target/debug/examples/pages" "$tree"
  install -m 755 "$release"/esker{,-agent} "$tree/bin/"
  install -m 644 "$here/esker-agent.service" "$tree/systemd/"
  install -m 644 LICENSE README.md "$tree/"
  rm -rf "$release/man"
  cp -r "$tree/man" "$release/man"
  gzip -9n "$release"/man/*
}

# The same bytes whoever builds it, and whenever.
archive() {
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" \
    --transform "s,^tree,$name," -C "$release" -c tree | gzip -9n >"$out/$name.tar.gz"
}

package() {
  cargo deb -q -p esker-agent --no-build --no-strip --target "$triple" --output "$out/"
}

mkdir -p "$out"
rm -f "$out"/esker*-"$arch"-linux.tar.gz "$out"/esker_*.deb "$out/SHA256SUMS"
tools
programs
tree
archive
package
(cd "$out" && sha256sum -- *.tar.gz *.deb >SHA256SUMS)
say "$out:"
(cd "$out" && stat -c '  %n, %s bytes' -- *)
