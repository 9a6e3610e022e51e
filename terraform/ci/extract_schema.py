"""Rebuilds the schema of Terraform's AWS provider out of the PyPI package cdktn-provider-aws.

    extract_schema.py WHEEL TYPE... >schema.json      for the resource and data types named

The wheel holds an npm package with a class for each type of the provider, generated from the schema.
Each class's source map carries the TypeScript it was compiled from, which still tells all of it:

    // NAME - computed: B, optional: B, required: B            above each attribute of a class
    NAME: { value: .., isBlock: B, type: "..", storageClassType: ".." }      in tables for HCL
    /** ... NAME block ... */ readonly NAME?: TYPE[];          in interfaces, where there is a block
"""

import base64
import io
import json
import re
import sys
import tarfile
import zipfile

KINDS = {
    "TerraformResource": "resource_schemas",
    "TerraformDataSource": "data_source_schemas",
    "TerraformProvider": "provider",
}
MAIN = re.compile(r"export class (\w+) extends cdkt[nf]\.(%s)\b" % "|".join(KINDS))
FLAGS = re.compile(r"^\s*// (\w+) - computed: (true|false), optional: (true|false), required: (true|false)")
HCL_TABLE = re.compile(r"export function (\w+)ToHclTerraform\(.*?\n}\n", re.S)
HCL_ROW = re.compile(
    r"^\s+\"?([\w-]+)\"?: \{\n\s+value: (?:.*?),\n\s+isBlock: (true|false),\n"
    r"\s+type: \"(\w+)\",\n\s+storageClassType: \"(\w+)\",\n",
    re.S | re.M,
)
INTERFACE = re.compile(r"export interface (\w+)(?: extends [\w.]+)? \{\n(.*?)\n}\n", re.S)
PROPERTY = re.compile(r"/\*\*(.*?)\*/\s*readonly (\w+)(\??): ([^;]+);", re.S)
REFERENCE = re.compile(r"private _\w+ = new (\w+?)(List|Map|OutputReference)\(this, \"\w+\"(?:, (true|false))?")
GETTERS = [
    ("getStringAttribute(", "string"),
    ("getNumberAttribute(", "number"),
    ("getBooleanAttribute(", "bool"),
    ("getStringMapAttribute(", ["map", "string"]),
    ("getNumberMapAttribute(", ["map", "number"]),
    ("getBooleanMapAttribute(", ["map", "bool"]),
    ("asNumberList(", ["list", "number"]),
    ("getNumberListAttribute(", ["list", "number"]),
    ("tolist(this.getListAttribute(", ["set", "string"]),
    ("getListAttribute(", ["list", "string"]),
]
SIMPLE = {
    "string": "string",
    "number": "number",
    "boolean": "bool",
    "any": "dynamic",
    "stringList": "string",
    "numberList": "number",
    "booleanList": "bool",
    "stringMap": "string",
    "numberMap": "number",
    "booleanMap": "bool",
    "anyMap": "dynamic",
    "stringMapMap": ["map", "string"],
    "stringListMap": ["list", "string"],
    "stringListList": ["list", "string"],
}
# The type itself, among the structures of its source.
TOP = "@"


def lower_first(text):
    return text[0].lower() + text[1:]


def camel_case(name):
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


class Source:
    """What one class's TypeScript says."""

    def __init__(self, text):
        main = MAIN.search(text)
        self.name, self.kind = main.groups()
        self.rows = {}  # structure -> attribute -> (is block, type, storage class)
        self.flags = {}  # structure -> attribute -> flags
        self.getters = {}  # structure -> attribute -> type, or a reference to a structure
        self.properties = {}  # structure -> property -> what its documentation and type tell
        for table in HCL_TABLE.finditer(text):
            self.rows.setdefault(table.group(1), rows_of(table.group(0)))
        own = re.search(r"synthesizeHclAttributes\(\).*?\n  }\n", text[main.end() :], re.S)
        self.rows[TOP] = rows_of(own.group(0)) if own else {}
        self.read_classes(text)
        self.read_interfaces(text)

    def read_classes(self, text):
        structure = attribute = None
        for line in text.splitlines():
            opened = re.match(r"export class (\w+) extends", line)
            if opened:
                structure, attribute = self.structure_of(opened.group(1)), None
            elif structure and (flags := FLAGS.match(line)):
                attribute = flags.group(1)
                computed, optional, required = (flag == "true" for flag in flags.groups()[1:])
                found = {"computed": computed, "optional": optional, "required": required}
                self.flags.setdefault(structure, {})[attribute] = found
            elif structure and attribute:
                self.read_getter(structure, attribute, line)

    def structure_of(self, class_name):
        if class_name == self.name:
            return TOP
        suffix = "OutputReference"
        return lower_first(class_name[: -len(suffix)]) if class_name.endswith(suffix) else None

    def read_getter(self, structure, attribute, line):
        getters = self.getters.setdefault(structure, {})
        for call, kind in GETTERS:
            if call in line:
                getters.setdefault(attribute, kind)
                break
        if reference := REFERENCE.search(line):
            inner, shape, is_set = reference.groups()
            getters[attribute] = (lower_first(inner), shape, is_set == "true")

    def read_interfaces(self, text):
        for interface in INTERFACE.finditer(text):
            name, body = interface.groups()
            found = {}
            for doc, key, optional, kind in PROPERTY.findall(body):
                found[key] = {
                    "is_block": bool(re.search(r"^\s*\* \w+ block\s*$", doc, re.M)),
                    "is_many": "[]" in kind or kind.strip().startswith("{"),
                    "is_required": not optional,
                }
            self.properties[TOP if name == self.name + "Config" else lower_first(name)] = found

    def block(self, structure):
        attributes, blocks = {}, {}
        rows, getters = self.rows.get(structure, {}), self.getters.get(structure, {})
        for name in dict.fromkeys([*rows, *getters]):
            about = self.properties.get(structure, {}).get(camel_case(name), {})
            if name in rows and rows[name][0] and about.get("is_block"):
                blocks[name] = self.nested_block(rows[name], about)
                continue
            kind = self.type_of_row(rows[name]) if name in rows else self.type_of_getter(getters[name])
            attributes[name] = {"type": kind} | self.shown_flags(structure, name)
        return {key: part for key, part in (("attributes", attributes), ("block_types", blocks)) if part}

    def nested_block(self, row, about):
        _, kind, storage = row
        nested = {"nesting_mode": "single" if kind == "struct" else kind}
        if kind != "struct":
            if not about.get("is_many"):
                nested["max_items"] = 1
            if about.get("is_required"):
                nested["min_items"] = 1
        nested["block"] = self.block(self.inner_structure(storage))
        return nested

    def shown_flags(self, structure, name):
        flags = self.flags.get(structure, {}).get(name)
        if flags is None:
            return {"optional": True}
        if flags["required"]:
            return {"required": True}
        shown = {"optional": True} if flags["optional"] else {}
        return shown | ({"computed": True} if flags["computed"] or not flags["optional"] else {})

    def inner_structure(self, storage):
        for suffix in ("List", "Map"):
            inner = lower_first(storage.removesuffix(suffix))
            if storage.endswith(suffix) and (inner in self.rows or inner in self.getters):
                return inner
        return lower_first(storage)

    def type_of_row(self, row):
        is_block, kind, storage = row
        if is_block:
            inner = self.object_type(self.inner_structure(storage))
            return inner if kind == "struct" else [kind, inner]
        if storage in SIMPLE:
            return SIMPLE[storage] if kind == "simple" else [kind, SIMPLE[storage]]
        nested = re.match(r"(string|number|boolean)(Map|List)(?:List|Map)$", storage)
        if nested:
            return [kind, [nested.group(2).lower(), SIMPLE[nested.group(1)]]]
        return [kind, self.object_type(lower_first(storage[:-4]))]

    def type_of_getter(self, getter):
        if not isinstance(getter, tuple):
            return getter
        structure, shape, is_set = getter
        inner = self.object_type(structure)
        if shape == "OutputReference":
            return inner
        return ["map", inner] if shape == "Map" else ["set" if is_set else "list", inner]

    def object_type(self, structure):
        rows, getters = self.rows.get(structure, {}), self.getters.get(structure, {})
        fields = {name: self.type_of_row(row) for name, row in rows.items()}
        fields |= {name: self.type_of_getter(found) for name, found in getters.items() if name not in rows}
        return ["object", fields]


def rows_of(text):
    return {name: (is_block == "true", kind, storage) for name, is_block, kind, storage in HCL_ROW.findall(text)}


def classes(wheel):
    """Each class's folder in the npm package, and its JavaScript as yet unread."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".jsii.tgz")]
        package = tarfile.open(fileobj=io.BytesIO(archive.read(name)))
    for member in package:
        path = re.fullmatch(r"package/lib/([\w-]+)/index\.js", member.name)
        if path:
            yield path.group(1), lambda: package.extractfile(member).read().decode()


def typescript(javascript):
    found = re.search(r"sourceMappingURL=data:application/json;base64,([A-Za-z0-9+/=]+)", javascript)
    return json.loads(base64.b64decode(found.group(1)))["sourcesContent"][0]


def main(wheel, *wanted):
    provider = {"resource_schemas": {}, "data_source_schemas": {}}
    version, missing = None, set(wanted)
    for folder, read in classes(wheel):
        name = "aws_" + folder.removeprefix("data-aws-").replace("-", "_")
        if folder != "provider" and name not in wanted:
            continue
        javascript = read()
        text = typescript(javascript)
        source = Source(text)
        schema = {"version": 0, "block": source.block(TOP)}
        if source.kind == "TerraformProvider":
            provider["provider"] = schema
            version = re.search(r"providerVersion: '([\d.]+)'", text).group(1)
            continue
        assert f'tfResourceType = "{name}"' in javascript, f"{folder} is not {name}"
        provider[KINDS[source.kind]][name] = schema
        missing.discard(name)
    if missing:
        sys.exit(f"the package lacks {', '.join(sorted(missing))}")
    schemas = {"registry.terraform.io/hashicorp/aws": provider}
    json.dump({"format_version": "1.0", "provider_version": version, "provider_schemas": schemas}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
