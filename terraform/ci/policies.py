"""Checks the policies of a plan: policies.py PLAN_JSON ACTIONS_RS

Every policy is linted. What the agent's role may do in its bucket has to be what tiering's table of
actions has, kind of object by kind of object.
"""

import itertools
import json
import re
import sys

from parliament import analyze_policy_string

import plan

# The role's other rights: fetch the package, end a lifecycle hook, use the bucket's key.
OTHER_ACTIONS = {"autoscaling:CompleteLifecycleAction", "kms:GenerateDataKey", "kms:Decrypt"}


def lint(module):
    for address, kind, values in plan.resources(module):
        if kind.startswith(("aws_iam", "aws_s3")) and values.get("policy"):
            for finding in analyze_policy_string(values["policy"]).findings:
                yield f"{address}: {finding.issue} {finding.detail}"


def table(path):
    """The table in Rust: names of actions, patterns of kinds, and what is asked of which."""
    with open(path, encoding="utf-8") as file:
        code = file.read().split("#[cfg(test)]")[0]
    names = dict(re.findall(r'Self::(\w+) => "(s3:\w+)"', code))
    patterns = {kind: text for kind, text in re.findall(r'Self::(\w+) => "([^"]+)"', code) if kind not in names}
    rows = {(kind, names[action]) for kind, action in re.findall(r"\(KeyClass::(\w+), Action::(\w+)\)", code)}
    listed = re.search(r"BUCKET_ACTIONS: &\[Action\] = &\[(.*?)\];", code, re.S).group(1)
    on_bucket = {names[action] for action in re.findall(r"Action::(\w+)", listed)}
    assert len(names) > 3 and len(patterns) > 5 and len(rows) > 10 and on_bucket, f"{path} reads differently"
    return names, patterns, rows, on_bucket


def covers(pattern, text):
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None


def allows(statements, action, resource):
    return any(
        action in statement["Action"] and any(covers(each, resource) for each in statement["Resource"])
        for statement in statements
    )


def compare(module, path):
    names, patterns, rows, on_bucket = table(path)
    policy = json.loads(plan.one(module, "aws_iam_role_policy")["policy"])
    statements = policy["Statement"]
    bucket = "arn:aws:s3:::" + plan.one(module, "aws_s3_bucket")["bucket"]
    if any(statement["Effect"] != "Allow" or "Condition" in statement for statement in statements):
        yield "a statement denies or has a condition: this check reads neither"
    granted = set(itertools.chain(*(statement["Action"] for statement in statements)))
    for action in sorted(granted - OTHER_ACTIONS - {action for _, action in rows} - on_bucket):
        yield f"{action} is allowed, but nothing in tiering asks for it"
    for action in names.values():
        if allows(statements, action, bucket) != (action in on_bucket):
            yield f"{action} on the bucket: table and policy differ"
    for kind, pattern in patterns.items():
        key = pattern.replace("*", "0000/0000" if pattern.startswith("topics") else "0000", 1).replace("*", "0000")
        for action in names.values():
            is_allowed = allows(statements, action, f"{bucket}/esker/{key}")
            if is_allowed != ((kind, action) in rows):
                yield f"{action} on {kind} ({pattern}): the policy {'allows' if is_allowed else 'lacks'} it"
    for stranger in ("esker/other", "esker/topics/0000/0000/other/0000", "other/cluster.json", "cluster.json"):
        for action in names.values():
            if allows(statements, action, f"{bucket}/{stranger}"):
                yield f"{action} is allowed on {stranger}, which is no object of ours"


def main(plan_path, table_path):
    module = plan.load(plan_path)
    faults = [*lint(module), *compare(module, table_path)]
    print("\n".join(faults) or "policies hold, and allow what the table has")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
