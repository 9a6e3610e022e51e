#!/bin/bash
# Checks what is laid down on an instance: user_data.sh DIR SCHEMA, DIR as render_user_data.py writes
# it, SCHEMA that of cloud-init. Wants shellcheck, and a python with jsonschema, on PATH.
set -euo pipefail
dir=$1
python - "$dir/user_data.yaml" "$2" <<'PY'
import json, sys
import jsonschema, yaml

with open(sys.argv[1], encoding="utf-8") as data, open(sys.argv[2], encoding="utf-8") as schema:
    config, schema = yaml.safe_load(data), json.load(schema)
known = set()
for part in schema["$defs"].values():
    known |= set(part.get("properties", {}))
faults = [error.message for error in jsonschema.Draft4Validator(schema).iter_errors(config)]
faults += [f"{key} is no key of cloud-init" for key in set(config) - known]
print("\n".join(faults) or "cloud-init takes the user data")
sys.exit(bool(faults))
PY
shellcheck -x "$dir"/root/usr/local/lib/esker/*
# Unknown keys are only warned of, so any word is a fault. The programs are not on this machine.
units=$(mktemp -d)
trap 'rm -rf "$units"' EXIT
cp -r "$dir"/root/etc/systemd/system/. "$units"
printf '[Unit]\nDescription=stands for the packaged unit\n[Service]\nExecStart=/bin/true\n' >"$units/esker-agent.service"
sed -i -E 's#^ExecStart=.*#ExecStart=/bin/true#' "$units"/*.service
said=$(SYSTEMD_UNIT_PATH=$units: systemd-analyze verify "$units"/*.service 2>&1) || true
[ -z "$said" ] || { echo "$said"; exit 1; }
echo "scripts and units are clean"
