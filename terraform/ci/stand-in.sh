#!/bin/bash
# Runs a command with a stand-in for Terraform's AWS provider, for whoever has no account or no
# network: stand-in.sh COMMAND [ARGUMENT...], or stand-in.sh alone for a shell. What it plans is
# checked against the provider's schema; what only AWS knows is made up, and nothing is made.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=tools.sh
. "$(dirname "$0")/tools.sh"
trap stop_provider EXIT
mkdir -p "$CACHE"
venv tools "$CI/tools.txt"
find_terraform
provider_schema
start_provider
[ $# -gt 0 ] || set -- "${SHELL:-bash}"
"$@"
