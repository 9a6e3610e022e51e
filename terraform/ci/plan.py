"""What a plan, as `terraform show -json` prints it, is going to make."""

import base64
import gzip
import json

import yaml


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)["planned_values"]["root_module"]


def resources(module):
    """Every planned resource: address, type and values."""
    for resource in module.get("resources", []):
        yield resource["address"], resource["type"], resource["values"]
    for child in module.get("child_modules", []):
        yield from resources(child)


def one(module, kind):
    (found,) = [values for _, each, values in resources(module) if each == kind]
    return found


def user_data(module):
    """The user data as cloud-init gets it."""
    text = one(module, "aws_launch_template")["user_data"]
    return gzip.decompress(base64.b64decode(text)).decode()


def user_files(module):
    """The files that user data writes, by path: content and mode."""
    written = yaml.safe_load(user_data(module))["write_files"]
    return {file["path"]: (file["content"], int(file["permissions"], 8)) for file in written}
