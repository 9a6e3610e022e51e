"""Keeps the tables of inputs and outputs in the READMEs, between the marks, and lints modules.

tfdocs.py --write DIR... writes the tables; tfdocs.py --check DIR... exits with 1 if one is stale, or if a
variable, output or local lacks a description, a type or a use.
"""

import glob
import os
import re
import sys

import hcl2

BEGIN, END = "<!-- BEGIN_TF_DOCS -->", "<!-- END_TF_DOCS -->"


def unquoted(value):
    quoted = isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"'
    return value[1:-1].replace('\\"', '"') if quoted else value


def shown(value):
    """A value as HCL."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, str):
        return value[2:-1] if value.startswith("${") else value
    if isinstance(value, list):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, dict):
        entries = [f"{unquoted(key)} = {shown(each)}" for key, each in value.items() if not key.startswith("__")]
        return "{ " + ", ".join(entries) + " }" if entries else "{}"
    return str(value)


class Module:
    def __init__(self, directory):
        self.directory = directory
        self.variables, self.outputs, self.locals, self.code = {}, {}, set(), ""
        for path in sorted(glob.glob(os.path.join(directory, "*.tf"))):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            self.code += text
            self.read(hcl2.loads(text))

    def read(self, parsed):
        for block in parsed.get("variable", []):
            self.variables |= {unquoted(name): body for name, body in block.items()}
        for block in parsed.get("output", []):
            self.outputs |= {unquoted(name): body for name, body in block.items()}
        for block in parsed.get("locals", []):
            self.locals |= {unquoted(name) for name in block if not name.startswith("__")}

    def faults(self):
        for name, body in self.variables.items():
            elsewhere = re.sub(rf'variable "{name}" \{{.*?\n\}}', "", self.code, flags=re.S)
            for part in ("description", "type"):
                if part not in body:
                    yield f"{self.directory}: variable {name} has no {part}"
            if not re.search(rf"\bvar\.{name}\b", elsewhere):
                yield f"{self.directory}: variable {name} is not used"
        for name, body in self.outputs.items():
            if "description" not in body:
                yield f"{self.directory}: output {name} has no description"
        for name in self.locals:
            if not re.search(rf"\blocal\.{name}\b", self.code):
                yield f"{self.directory}: local {name} is not used"

    def tables(self):
        lines = []
        if self.variables:
            lines += ["| input | what it is | type | default |", "|---|---|---|---|"]
        for name, body in sorted(self.variables.items()):
            kind = re.sub(r"\s+", " ", shown(body.get("type", "any")))
            default = f"`{shown(body['default'])}`" if "default" in body else "required"
            lines.append(f"| `{name}` | {unquoted(body.get('description', ''))} | `{kind}` | {default} |")
        if self.outputs:
            lines += [""] * bool(lines) + ["| output | what it is |", "|---|---|"]
        for name, body in sorted(self.outputs.items()):
            lines.append(f"| `{name}` | {unquoted(body.get('description', ''))} |")
        return "\n".join([BEGIN, *lines, END])


def main(mode, *directories):
    is_check = {"--check": True, "--write": False}[mode]
    faults = []
    for directory in directories:
        module, path = Module(directory), os.path.join(directory, "README.md")
        faults += module.faults()
        with open(path, encoding="utf-8") as file:
            old = file.read()
        if BEGIN not in old or END not in old:
            faults.append(f"{path}: the marks of the tables are missing")
        new = re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: module.tables(), old, flags=re.S)
        if is_check and new != old:
            faults.append(f"{path}: the tables are stale; run terraform/check.sh --docs")
        if not is_check:
            with open(path, "w", encoding="utf-8") as file:
                file.write(new)
    print("\n".join(faults) or "tables are current, and nothing is without description, type or use")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
