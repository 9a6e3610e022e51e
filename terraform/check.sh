#!/bin/bash
# Runs every check of terraform/, with no account and without AWS's own provider: format, READMEs,
# validate, tests, plans, policies, user data, scripts, cost page, checkov. Changes nothing here.
#
#   check.sh           all checks
#   check.sh --docs    writes the tables of the READMEs instead
#
# Wants python3.11 with venv, terraform 1.9 or newer, systemd-analyze, curl, and root or fetched
# package lists. The rest comes from PyPI and Debian, pinned in ci/, into ~/.cache/esker-ci/terraform
# ($ESKER_CI_CACHE/terraform).
set -uo pipefail
# shellcheck source-path=SCRIPTDIR source=ci/tools.sh
. "$(dirname "$0")/ci/tools.sh"
tools='' checkov='' # set by venv

passed=0
failures=()

# check NAME COMMAND...: runs the command, shows what it says, and goes on in any case.
check() {
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  if "$@"; then
    passed=$((passed + 1))
  else
    failures+=("$name")
    echo "== $name: FAILED"
  fi
  [ $((SECONDS - start)) -lt 5 ] || echo "== $name: $((SECONDS - start)) s"
}

prepare() {
  [ -n "$PYTHON" ] || die "python3.11 is missing: apt-get install python3 python3-venv"
  command -v curl >/dev/null || die "curl is missing: apt-get install curl"
  command -v systemd-analyze >/dev/null || die "systemd-analyze is missing: apt-get install systemd"
  mkdir -p "$CACHE"
  # One at a time by the clock of the slower: checkov brings a hundred packages.
  (venv checkov "$CI/checkov.txt") &
  local checkov_pid=$!
  venv tools "$CI/tools.txt"
  find_terraform
  provider_schema
  cloud_init_schema
  wait "$checkov_pid" || exit 1
  venv checkov "$CI/checkov.txt"
  PATH=$tools:$PATH
}

readmes() { python "$CI/tfdocs.py" "$1" "$MODULE" "$MODULE"/modules/* "$MODULE"/examples/*; }

shell_scripts() { shellcheck -x "$MODULE/check.sh" "$CI"/*.sh && echo "check.sh and its tools are clean"; }

validate() {
  local dir
  for dir in . modules/network examples/minimal examples/complete examples/localstack; do
    if ! { terraform -chdir="$tree/$dir" init -backend=false -no-color &&
      terraform -chdir="$tree/$dir" validate -no-color; } >"$work/validate" 2>&1; then
      cat "$work/validate"
      return 1
    fi
    echo "$dir is valid"
  done
}

# The first screen of the README, word for word: its commands, and what it says they print.
first_screen() {
  local commands promised
  commands=$(awk '/^```sh$/ {on = 1; next} /^```$/ && on {exit} on' "$MODULE/README.md")
  promised=$(awk '/^```text$/ {on = 1; next} /^```$/ && on {exit} on' "$MODULE/README.md")
  mkdir "$work/clone" && ln -s "$tree" "$work/clone/terraform"
  (cd "$work/clone" && bash -euc "$commands") >"$work/first" 2>&1 || { tail -20 "$work/first"; return 1; }
  sed 's/\x1b\[[0-9;]*m//g' "$work/first" | grep -Fx "$promised" || { echo "it did not print: $promised"; return 1; }
}

# Each run of `terraform test` counts as one check.
tests() {
  local status=0 runs
  terraform -chdir="$tree" test -no-color >"$work/tests" 2>&1 || status=1
  grep -vE '^(Success|Failure)!|^$' "$work/tests"
  runs=$(grep -c '^  run .*pass$' "$work/tests")
  passed=$((passed + runs - 1 + status))
  [ "$runs" -gt 30 ] && return "$status"
}

plans() {
  local example
  for example in minimal complete; do
    plan_example "$example" "$tree" "$work/$example.json" || return 1
    python "$CI/render_user_data.py" "$work/$example.json" "$work/$example"
  done
}

for_both() {
  local example
  for example in minimal complete; do "$1" "$example" || return 1; done
}

policies() { python "$CI/policies.py" "$work/$1.json" "$REPO/tiering/src/keys/actions.rs"; }
user_data() { "$CI/user_data.sh" "$work/$1" "$CLOUD_INIT_SCHEMA"; }

checkov_run() {
  "$checkov/checkov" --compact --quiet --skip-download "$@" >"$work/checkov" 2>&1 || { cat "$work/checkov"; return 1; }
  # Nothing passed would mean that nothing was looked at.
  grep -E '^Passed checks: [1-9][0-9]+' "$work/checkov"
}

main() {
  prepare
  echo "== tools are there after $SECONDS s; $(terraform version | head -1)"
  work=$(mktemp -d "${TMPDIR:-/tmp}/esker-terraform.XXXXXX")
  tree=$work/tree
  trap 'stop_provider; rm -rf "$work"' EXIT
  [ "${1:-}" != --docs ] || { readmes --write; exit; }
  copy_module "$tree"
  start_provider

  check "format" terraform fmt -check -recursive -diff "$tree"
  check "READMEs and lint" readmes --check
  check "shell scripts" shell_scripts
  check "validate" validate
  check "first screen of the README" first_screen
  check "tests" tests
  check "refusals" "$CI/refusals.sh" "$tree"
  check "plans" plans
  check "policies" for_both policies
  check "settings" python "$CI/settings.py" "$MODULE" "$REPO" "$work/minimal.json" "$work/complete.json"
  check "user data" for_both user_data
  check "scripts of the instance" python "$CI/test_instance.py" "$work/minimal"
  check "cost page" python "$CI/costs.py" "$MODULE" "$REPO" "$work/minimal.json"
  check "checkov, code" checkov_run -d "$tree" --framework terraform --skip-path '\.terraform'
  check "checkov, plan" checkov_run -f "$work/complete.json" --framework terraform_plan --repo-root-for-plan-enrichment "$tree"

  echo
  echo "$passed passed, ${#failures[@]} failed"
  if [ ${#failures[@]} -gt 0 ]; then
    printf 'terraform checks: failed: %s\n' "${failures[@]}"
    exit 1
  fi
  echo "terraform checks: all passed"
}

main "$@"
