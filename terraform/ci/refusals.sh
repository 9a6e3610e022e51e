#!/bin/bash
# Plans the module with inputs that cannot work, and looks for the reason in what people get to read:
# refusals.sh MODULE, an initialized copy.
set -uo pipefail
cd "$1" || exit 1
package='{s3_bucket="packages",s3_key="esker.deb",sha256="'$(printf '%064d' 0)'"}'
given=(-var name=tst -var vpc_id=vpc-1 -var 'subnet_ids={a="subnet-a"}' -var 'route_table_ids=["rtb-1"]')
failed=0

# refused REASON VARIABLE...: the plan has to fail, and to say so.
refused() {
  local reason=$1 said
  shift
  said=$(terraform plan -no-color -lock=false -refresh=false "${given[@]}" -var "agent_package=$package" "${@/#/-var=}" 2>&1) && {
    echo "planned in spite of: $*"
    failed=1
  }
  # Terraform frames its lines and breaks them anywhere.
  said=$(tr -d '│╷╵' <<<"$said" | tr -s '[:space:]' ' ')
  [[ $said == *"$reason"* ]] || { echo "no word of '$reason' for $*: $said" && failed=1; }
}

refused 'mixes arm64 (Graviton) and x86_64' 'instance_types=["c7g.large","c7i.large"]'
refused 'not every one of instance_types has an instance store' tail_volume=null
refused 'spot needs at least three different instance_types' spot=true
refused 'would delete live data by age' 'bucket_lifecycle_rules=[{id="old",prefix="",expiration_days=30}]'
refused 'from where the agent cannot read it' 'bucket_lifecycle_rules=[{id="old",prefix="esker/",transition={days=1,storage_class="GLACIER"}}]'
refused 'must be 64 hexadecimal digits' 'agent_package={s3_bucket="packages",s3_key="esker.deb",sha256="abc"}'
refused 'a second agent on the same bucket prefix is refused' agent_count=2
refused 'no such setting, or one that this module sets itself: ESKER_SEGMET_AGE' 'agent_config={ESKER_SEGMET_AGE="1m"}'
refused 'over EC2'"'"'s limit of 16 KiB' "agent_config={ESKER_LOG_LEVEL=\"$(head -c 30000 /dev/urandom | base64 -w0 | tr -dc A-Za-z0-9)\"}"
[ "$failed" = 0 ] && echo "what cannot work is refused with its reason"
exit "$failed"
