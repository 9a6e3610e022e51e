#!/bin/bash
# glibc.sh BINARY [MOST]: prints the lowest glibc that BINARY runs on, which is the newest version any
# of its symbols asks for. Fails if that is newer than MOST, and then names the symbols.
set -euo pipefail
binary=$1 most=${2:-}

# "memcpy GLIBC_2.14", one line for each symbol that has to be found at start.
wanted() {
  readelf -W --dyn-syms "$binary" |
    sed -nE 's/.* UND +([^ @]+)@+(GLIBC_[0-9.]+).*/\1 \2/p' | sort -u
}

lowest=$(wanted | sed -E 's/.* GLIBC_//' | sort -Vu | tail -1)
[ -n "$lowest" ] || { echo "glibc: $binary asks for no version of glibc at all" >&2; exit 1; }
echo "$lowest"
[ -n "$most" ] || exit 0
if [ "$(printf '%s\n' "$lowest" "$most" | sort -V | tail -1)" != "$most" ]; then
  echo "glibc: $binary needs glibc $lowest, and may need at most $most, for:" >&2
  wanted | while read -r symbol version; do
    newest=$(printf '%s\n' "${version#GLIBC_}" "$most" | sort -V | tail -1)
    [ "$newest" = "$most" ] || echo "  $symbol $version" >&2
  done
  exit 1
fi
