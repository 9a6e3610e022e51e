#!/bin/bash
# Builds the packages (build.sh) and checks what is in them; ends with "package checks: all passed".
# Needs, besides what build.sh does, dpkg, systemd-analyze, groff; as root also debootstrap, to install
# the .deb into a plain Debian. BUILT=1 takes packages that are there.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

out=$(realpath -m "${OUT:-${CARGO_TARGET_DIR:-target}/packages}")
tar=${ESKER_CI_CACHE:-$HOME/.cache/esker-ci}/packaging/debian-bookworm.tar
scratch=$(mktemp -d "${TMPDIR:-/tmp}/esker-packages.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

say() { echo "packages: $*"; }
die() { say "$*" >&2; exit 1; }

# same WHAT WANTED FOUND: two files that have to be the same.
same() { diff -u --label wanted --label found "$2" "$3" || die "$1 is not what it should be"; }

archive() {
  tar -xzf "$out"/esker-*-x86_64-linux.tar.gz -C "$scratch"
  tree=$(echo "$scratch"/esker-*-x86_64-linux)
  [ -x "$tree/bin/esker" ] || die "the archive's folder is not esker-VERSION-x86_64-linux"
  (cd "$tree" && find . -type f ! -path './man/*-*-*' ! -path './man/esker-[^a]*' -printf '%M %P\n') |
    LC_ALL=C sort -k2 >"$scratch/files"
  cat >"$scratch/wanted" <<'LIST'
-rw-r--r-- LICENSE
-rw-r--r-- README.md
-rwxr-xr-x bin/esker
-rwxr-xr-x bin/esker-agent
-rw-r--r-- completions/_esker
-rw-r--r-- completions/_esker-agent
-rw-r--r-- completions/esker-agent.bash
-rw-r--r-- completions/esker-agent.fish
-rw-r--r-- completions/esker.bash
-rw-r--r-- completions/esker.fish
-rw-r--r-- etc/esker-agent.env
-rw-r--r-- man/esker-agent.1
-rw-r--r-- man/esker.1
-rw-r--r-- systemd/esker-agent.service
LIST
  same "the list of files in the archive" "$scratch/wanted" "$scratch/files"
}

programs() {
  local program
  for program in esker esker-agent; do
    "$here/glibc.sh" "$tree/bin/$program" 2.31 >"$scratch/glibc"
    # The check would be worth nothing if it found nothing to complain of.
    ! "$here/glibc.sh" "$tree/bin/$program" 2.2 >/dev/null 2>&1 || die "glibc.sh lets all pass"
    readelf -WS "$tree/bin/$program" >"$scratch/sections"
    ! grep -qE '\.(symtab|debug_info)' "$scratch/sections" || die "$program is not stripped"
    readelf -Wd "$tree/bin/$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort >"$scratch/needed"
    ! grep -vE '^(lib(c|m|dl|rt|pthread)\.so\.[0-9]+|ld-linux-x86-64\.so\.2)$' "$scratch/needed" ||
      die "$program needs a library that is not glibc's"
    say "$program: glibc $(cat "$scratch/glibc") or newer, $(stat -c %s "$tree/bin/$program") bytes"
  done
  "$tree/bin/esker-agent" config >"$scratch/config.md"
  same "what esker-agent config prints" docs/config.md "$scratch/config.md"
}

settings() {
  grep -oE 'ESKER_[A-Z_]+' docs/config.md | sort -u >"$scratch/wanted"
  sed -nE 's/^#?(ESKER_[A-Z_]+)=.*/\1/p' "$tree/etc/esker-agent.env" | sort >"$scratch/found"
  same "the list of settings in esker-agent.env" "$scratch/wanted" "$scratch/found"
  # With every default taken in, they are still the defaults.
  sed -E 's/^#(ESKER_)/\1/' "$tree/etc/esker-agent.env" >"$scratch/all.env"
  local said
  said=$(env -i bash -c 'set -a; . "$1"; exec "$2" check-store' - "$scratch/all.env" \
    "$tree/bin/esker-agent" 2>&1) && die "a store was found where none is set"
  grep -q 'no store is set' <<<"$said" || die "esker-agent.env cannot be used: $said"
}

pages() {
  local page said
  for page in "$tree"/man/*; do
    said=$(groff -man -ww -z "$page" 2>&1)
    [ -z "$said" ] || die "man page ${page##*/}: $said"
  done
  grep -q 'drain-timeout\|drain\\-timeout' "$tree/man/esker-agent-run.1" ||
    die "esker-agent-run.1 does not name the settings"
  say "$(find "$tree/man" -type f | wc -l) man pages render"
}

completions() {
  local program
  for program in esker esker-agent; do
    bash -n "$tree/completions/$program.bash"
    # shellcheck disable=SC1090
    (. "$tree/completions/$program.bash" && complete -p "$program") >/dev/null ||
      die "completion of $program is not set up in bash"
    ! command -v zsh >/dev/null || zsh -n "$tree/completions/_$program"
    ! command -v fish >/dev/null || fish -n "$tree/completions/$program.fish"
  done
}

unit() {
  local said
  # It looks at whether the program is there, so it has to be told where.
  sed "s,^ExecStart=/usr/bin,ExecStart=$tree/bin," "$tree/systemd/esker-agent.service" \
    >"$scratch/esker-agent.service"
  said=$(systemd-analyze verify --man=no "$scratch/esker-agent.service" 2>&1) || die "unit: $said"
  [ -z "$said" ] || die "unit: $said"
}

deb_files() {
  deb=$(echo "$out"/esker_*_amd64.deb)
  dpkg-deb --fsys-tarfile "$deb" | tar -t | grep -v '/$' | sed 's,^\.,,' | LC_ALL=C sort |
    grep -v '^/usr/share/man/' >"$scratch/files"
  cat >"$scratch/wanted" <<'LIST'
/etc/esker/esker-agent.env
/lib/systemd/system/esker-agent.service
/usr/bin/esker
/usr/bin/esker-agent
/usr/share/bash-completion/completions/esker
/usr/share/bash-completion/completions/esker-agent
/usr/share/doc/esker/README.md
/usr/share/doc/esker/copyright
/usr/share/fish/vendor_completions.d/esker-agent.fish
/usr/share/fish/vendor_completions.d/esker.fish
/usr/share/zsh/vendor-completions/_esker
/usr/share/zsh/vendor-completions/_esker-agent
LIST
  same "the list of files in the .deb" "$scratch/wanted" "$scratch/files"
  [ "$(dpkg-deb -f "$deb" Depends)" = 'ca-certificates, libc6 (>= 2.31), passwd' ] || die "Depends: is wrong"
}

# Into a plain Debian, as a user would.
deb_install() {
  local root=$scratch/root
  mkdir "$root"
  tar -C "$root" -xf "$tar"
  mknod -m 666 "$root/dev/null" c 1 3
  cp "$deb" "$root/tmp/esker.deb"
  in_root() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
  in_root dpkg -i /tmp/esker.deb >"$scratch/dpkg.log" 2>&1 || die "dpkg -i: $(cat "$scratch/dpkg.log")"
  grep -q 'set ESKER_STORE' "$scratch/dpkg.log" || die "the package does not say what to do next"
  in_root getent passwd esker >"$scratch/user" || die "there is no user esker"
  grep -q ':/var/lib/esker:/usr/sbin/nologin$' "$scratch/user" || die "the user esker can log in"
  [ "$(stat -c '%a %u' "$root/etc/esker/esker-agent.env")" = '600 0' ] || die "esker-agent.env is open to others"
  [ -z "$(find "$root/etc/systemd" -name 'esker*')" ] || die "the package switches its unit on by itself"
  in_root esker-agent --version
  in_root esker --version
  # Nobody's own settings are lost by an upgrade, nor data by a purge.
  echo ESKER_STORE=file:///var/lib/esker/bucket >"$root/etc/esker/esker-agent.env"
  in_root dpkg -i /tmp/esker.deb >"$scratch/dpkg.log" 2>&1 || die "dpkg -i: $(cat "$scratch/dpkg.log")"
  grep -q bucket "$root/etc/esker/esker-agent.env" || die "an upgrade overwrites esker-agent.env"
  mkdir -p "$root/var/lib/esker/data"
  in_root dpkg --purge esker >"$scratch/dpkg.log" 2>&1 || die "dpkg --purge: $(cat "$scratch/dpkg.log")"
  [ -d "$root/var/lib/esker/data" ] || die "a purge deletes data"
  [ ! -e "$root/etc/esker/esker-agent.env" ] && [ ! -e "$root/usr/bin/esker" ] || die "a purge leaves files"
}

[ "${BUILT:-}" = 1 ] || OUT=$out "$here/build.sh"
(cd "$out" && sha256sum -c --quiet SHA256SUMS)
archive
programs
settings
pages
completions
unit
deb_files
if [ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null; then
  "$here/base-image.sh" --tar-only
  deb_install
else
  say "not root, or no debootstrap: the .deb was not installed"
fi
echo "package checks: all passed"
