"""Checks what the module sets against what the agent takes: settings.py MODULE REPO PLAN_JSON...

- locals.tf lists the settings of docs/config.md, but for those that the module and the instance set;
- what the user data of each plan sets is a setting, and so is what the setup script writes;
- the ports are the agent's;
- the exit code that the start script waits on is the one docs/exit-codes.md has.
"""

import re
import sys

import plan

INSTANCE = {"ESKER_ZONE", "ESKER_ADVERTISE"}
MODULE = {"ESKER_STORE", "ESKER_LISTEN", "ESKER_HTTP_LISTEN", "ESKER_DRAIN_TIMEOUT"}
# The unit's own directory is its default.
UNIT = {"ESKER_DATA_DIR"}


def read(*parts):
    with open("/".join(parts), encoding="utf-8") as file:
        return file.read()


def env_names(text):
    return set(re.findall(r"^(ESKER_\w+)=", text, re.M))


def faults(module, repo, plans):
    reference = read(repo, "docs/config.md")
    documented = set(re.findall(r"`(ESKER_\w+)`", reference))
    assert len(documented) > 20, "docs/config.md reads differently"
    listed = set(re.findall(r'"(ESKER_\w+)"', read(module, "locals.tf")))
    for name in sorted(listed ^ (documented - INSTANCE - MODULE - UNIT)):
        yield f"{name}: docs/config.md and agent_settings in locals.tf differ"
    written = set(re.findall(r"(ESKER_\w+)=%s", read(module, "instance/setup")))
    if written != INSTANCE:
        yield f"instance/setup writes {sorted(written)}"
    for path in plans:
        files = plan.user_files(plan.load(path))
        names = env_names(files["/etc/esker/esker-agent.env"][0])
        for name in sorted(names - documented):
            yield f"{name}: the user data sets it, docs/config.md does not know it"
        if not MODULE <= names:
            yield f"{path}: the user data lacks {sorted(MODULE - names)}"
    for setting, local in (("listen", "grpc_port"), ("http-listen", "http_port")):
        port = re.search(rf"`{setting}` \|[^|]*\| `[\d.]+:(\d+)`", reference).group(1)
        if not re.search(rf"^\s+{local} = {port}$", read(module, "locals.tf"), re.M):
            yield f"{local} in locals.tf is not the agent's {port}"
    code = re.search(r"^refused=(\d+)$", read(module, "instance/start"), re.M).group(1)
    if not re.search(rf"^\| {code} \| another agent owns the cluster.*\| no \|$", read(repo, "docs/exit-codes.md"), re.M):
        yield f"instance/start waits on exit code {code}, which docs/exit-codes.md gives another meaning"


def main(module, repo, *plans):
    found = list(faults(module, repo, plans))
    print("\n".join(found) or "the module sets what the agent takes")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
