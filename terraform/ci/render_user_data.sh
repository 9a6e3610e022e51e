#!/bin/bash
# Writes what the user data of an example lays down on its instance, out of the example's plan:
#
#   render_user_data.sh EXAMPLE DIR      EXAMPLE: minimal (tail on a volume, .tar.gz) or complete
#
# DIR/user_data.yaml is what cloud-init gets; DIR/root holds the files at their places: environment
# file, cloud.conf, units, the drop-in of the agent's unit, and the scripts in usr/local/lib/esker.
#
# AGENT_PACKAGE names another package than a made-up one, as JSON with s3_bucket, s3_key and sha256.
#
# The scripts obey AWS_EC2_METADATA_SERVICE_ENDPOINT (base URL of the instance metadata, also that of
# the AWS CLI and of the agent's credentials), ESKER_CLOUD_DIR (/etc/esker), ESKER_LIB
# (/usr/local/lib/esker), ESKER_RUN_DIR (/run), ESKER_START_PAUSE and ESKER_WATCH_PAUSE (seconds).
# `setup` looks for no disk when /var/lib/esker is a mount point already.
set -euo pipefail
[ $# = 2 ] || { sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 2; }
# shellcheck source-path=SCRIPTDIR source=tools.sh
. "$(dirname "$0")/tools.sh"
out=$(realpath -m "$2")
work=$(mktemp -d "${TMPDIR:-/tmp}/esker-plan.XXXXXX")
trap 'stop_provider; rm -rf "$work"' EXIT
mkdir -p "$CACHE"
venv tools "$CI/tools.txt"
find_terraform
provider_schema
start_provider
copy_module "$work/tree"
plan_example "$1" "$work/tree" "$work/plan.json"
"$tools/python" "$CI/render_user_data.py" "$work/plan.json" "$out"
