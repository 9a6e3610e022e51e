"""Checks the table of docs/cost.md: costs.py MODULE REPO PLAN_JSON, the plan of the minimal example.

Counts come from the plan, from the traffic the page names, and from figures in the project's other
documents; amounts and the sum are worked out again.
"""

import re
import sys

import plan

HOURS = 730


def read(*parts):
    with open("/".join(parts), encoding="utf-8") as file:
        return file.read()


def number(text):
    return float(text.replace(",", "").strip("*")) if text not in ("-", "") else 0.0


def rows(page):
    table = page.split("<!-- BEGIN_COST -->")[1].split("<!-- END_COST -->")[0]
    lines = [line.strip("|").split("|") for line in table.strip().splitlines()[2:]]
    return [[cell.strip() for cell in line] for line in lines]


def planned_counts(module):
    """What the plan makes, as the rows that name it count it."""
    found = [(kind, values) for _, kind, values in plan.resources(module)]
    kinds = [kind for kind, _ in found]
    group, template = plan.one(module, "aws_autoscaling_group"), plan.one(module, "aws_launch_template")
    volumes = [device["ebs"][0] for device in template["block_device_mappings"]]
    sizes = [int(volume["volume_size"]) for volume in volumes]
    assert group["min_size"] == group["max_size"]
    assert all((volume.get("iops") or 0) <= 3000 and (volume.get("throughput") or 0) <= 125 for volume in volumes)
    endpoints = [values["vpc_endpoint_type"] for kind, values in found if kind == "aws_vpc_endpoint"]
    bought = kinds.count("aws_nat_gateway") + kinds.count("aws_kms_key") + len(endpoints) - endpoints.count("Gateway")
    return {
        template["instance_type"]: group["max_size"] * HOURS,
        f"gp3 volumes: {sizes[0]} GiB root, {sizes[1]} GiB tail": group["max_size"] * sum(sizes),
        "load balancer": kinds.count("aws_lb") * HOURS,
        "S3 gateway endpoint": endpoints.count("Gateway"),
        "NAT gateways, interface endpoints, KMS keys": bought,
    }


def traffic_counts(page, repo):
    reference = read(repo, "docs/config.md")
    default = {key: value for key, value in re.findall(r"^\| `([\w-]+)` \| `\w+` \| `([^`]*)`", reference, re.M)}
    rate, partitions, days = map(int, re.search(r"taking in (\d+) MiB/s into (\d+) partitions\nand keeping (\d+) days", page).groups())
    assert (default["partitions"], default["retention"]) == (str(partitions), f"{days}d"), "other defaults"
    assert default["segment-bytes"] == "64MiB" and rate / partitions * 600 > 64, "segments seal by age"
    poll_secs = int(default["metadata-poll"].removesuffix("s"))
    per_gib = int(re.search(r"^\| requests per GiB produced \| (\d+) \|", read(repo, "README.md"), re.M).group(1))
    written = rate * HOURS * 3600 / 1024
    kept = rate * days * 24 * 3600 / 1024
    assert f"{written:,.0f} GiB written, {kept:,.0f} GiB kept" in page, (written, kept)
    return {
        "bucket: kept": kept,
        f"bucket: PUT, {per_gib} for each GiB": written * per_gib / 1000,
        "bucket: GET, the agent's look for a newer owner": HOURS * 3600 / poll_secs / 1000,
        "copies of the hot tail between zones: this version has one replica": 0,
    }


def faults(page, counts):
    *items, total = rows(page)
    if [item[0] for item in items] != list(counts):
        yield f"rows are {[item[0] for item in items]}, should be {list(counts)}"
        return
    for name, _, count, price, amount in items:
        if number(count) != round(counts[name]):
            yield f"{name}: the count is {counts[name]:,.0f}, the page has {count}"
        if abs(number(count) * number(price) - number(amount)) > 0.0051:
            yield f"{name}: {count} at {price} is not {amount}"
    summed = sum(number(item[4]) for item in items)
    if f"{summed:.2f}" != total[4].strip("*"):
        yield f"the sum is {summed:.2f}, the page has {total[4]}"


def main(module, repo, plan_path):
    page = read(module, "docs/cost.md")
    counts = planned_counts(plan.load(plan_path)) | traffic_counts(page, repo)
    found = list(faults(page, counts))
    print("\n".join(found) or "the cost page counts what is planned")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
