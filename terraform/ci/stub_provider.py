"""A stand-in for Terraform's AWS provider: its whole schema, and no AWS behind it.

Types, required arguments and read-only attributes are checked as the real provider's are; what only
its code or AWS knows (allowed values, conflicts, limits) is not. One process serves every Terraform
command of a run, which saves starting it a few hundred times:

    stub_provider.py SCHEMA SOCKET     prints the value of TF_REATTACH_PROVIDERS, then serves
"""

import json
import os
import sys
import threading
import uuid
from concurrent import futures

import grpc
import msgpack
from tf.gen import grpc_controller_pb2 as controller_pb
from tf.gen import grpc_controller_pb2_grpc as controller_rpc
from tf.gen import grpc_stdio_pb2_grpc as stdio_rpc
from tf.gen import tfplugin_pb2 as pb
from tf.gen import tfplugin_pb2_grpc as rpc

PROVIDER = "registry.terraform.io/hashicorp/aws"
UNKNOWN = msgpack.ExtType(0, b"")
NESTING = {"single": 1, "list": 2, "set": 3, "map": 4, "group": 5}
MESSAGE_MAX = 64 << 20

# What the data sources of the module say.
DATA = {
    "aws_caller_identity": {"account_id": "123456789012", "arn": "arn:aws:iam::123456789012:root"},
    "aws_partition": {"partition": "aws", "dns_suffix": "amazonaws.com"},
    "aws_region": {"region": "eu-central-1", "name": "eu-central-1", "id": "eu-central-1"},
    "aws_ssm_parameter": {"insecure_value": "ami-0123456789abcdef0", "value": "ami-0123456789abcdef0"},
}


def block_message(block):
    message = pb.Schema.Block(version=0)
    for name, attribute in sorted(block.get("attributes", {}).items()):
        flags = {
            flag: attribute.get(flag, False) for flag in ("required", "optional", "computed", "sensitive")
        }
        kind = json.dumps(attribute["type"]).encode()
        message.attributes.append(pb.Schema.Attribute(name=name, type=kind, **flags))
    for name, nested in sorted(block.get("block_types", {}).items()):
        message.block_types.append(
            pb.Schema.NestedBlock(
                type_name=name,
                block=block_message(nested["block"]),
                nesting=NESTING[nested["nesting_mode"]],
                min_items=nested.get("min_items", 0),
                max_items=nested.get("max_items", 0),
            )
        )
    return message


def schema_message(schema):
    return pb.Schema(version=schema.get("version", 0), block=block_message(schema["block"]))


def decode(value):
    if value.msgpack:
        return msgpack.unpackb(value.msgpack, raw=False, strict_map_key=False)
    return json.loads(value.json) if value.json else None


def encode(value):
    return pb.DynamicValue(msgpack=msgpack.packb(value, use_bin_type=True))


def made_up(kind, name=""):
    """A value of a type, for what AWS would have decided."""
    if isinstance(kind, list):
        if kind[0] == "object":
            return {key: made_up(inner, key) for key, inner in kind[1].items()}
        return {} if kind[0] == "map" else []
    if kind == "string":
        start = "arn:aws:stub:eu-central-1:123456789012:" if name.endswith("arn") else "stub-"
        return start + uuid.uuid4().hex[:12]
    return {"number": 0, "bool": False}.get(kind)


def change(block, value, decide):
    """A copy of a block's value in which `decide(name, type, value)` stands for each attribute."""
    if not isinstance(value, dict):
        return value
    changed = dict(value)
    for name, attribute in block.get("attributes", {}).items():
        changed[name] = decide(name, attribute, changed.get(name))
    for name, nested in block.get("block_types", {}).items():
        inner = changed.get(name)
        if isinstance(inner, list):
            changed[name] = [change(nested["block"], each, decide) for each in inner]
        elif isinstance(inner, dict) and nested["nesting_mode"] == "single":
            changed[name] = change(nested["block"], inner, decide)
        elif isinstance(inner, dict):
            changed[name] = {key: change(nested["block"], each, decide) for key, each in inner.items()}
    return changed


def planned(name, attribute, value):
    return UNKNOWN if value is None and attribute.get("computed") else value


def applied(name, attribute, value):
    return made_up(attribute["type"], name) if isinstance(value, msgpack.ExtType) else value


def faults(block, value):
    """Attributes that the provider decides may not be set; Terraform leaves that check to providers."""
    found = []
    if not isinstance(value, dict):
        return found
    for name, attribute in block.get("attributes", {}).items():
        if value.get(name) is not None and attribute.get("computed") and not attribute.get("optional"):
            found.append(
                pb.Diagnostic(
                    severity=pb.Diagnostic.ERROR,
                    summary="Value for unconfigurable attribute",
                    detail=f'"{name}" is decided by the provider and cannot be set.',
                    attribute=pb.AttributePath(steps=[pb.AttributePath.Step(attribute_name=name)]),
                )
            )
    for name, nested in block.get("block_types", {}).items():
        inner = value.get(name)
        for each in inner if isinstance(inner, list) else [inner]:
            found += faults(nested["block"], each)
    return found


class Provider(rpc.ProviderServicer):
    def __init__(self, schemas):
        self.provider = schemas["provider"]
        self.resources = schemas["resource_schemas"]
        self.data = schemas["data_source_schemas"]
        self.schema = pb.GetProviderSchema.Response(
            provider=schema_message(self.provider),
            server_capabilities=pb.ServerCapabilities(plan_destroy=False, get_provider_schema_optional=True),
        )
        for name, schema in self.resources.items():
            self.schema.resource_schemas[name].CopyFrom(schema_message(schema))
        for name, schema in self.data.items():
            self.schema.data_source_schemas[name].CopyFrom(schema_message(schema))

    def GetMetadata(self, request, context):
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "ask for the schema")

    def GetProviderSchema(self, request, context):
        return self.schema

    def ValidateProviderConfig(self, request, context):
        return pb.ValidateProviderConfig.Response()

    def ValidateResourceConfig(self, request, context):
        found = faults(self.resources[request.type_name]["block"], decode(request.config))
        return pb.ValidateResourceConfig.Response(diagnostics=found)

    def ValidateDataResourceConfig(self, request, context):
        found = faults(self.data[request.type_name]["block"], decode(request.config))
        return pb.ValidateDataResourceConfig.Response(diagnostics=found)

    def ConfigureProvider(self, request, context):
        return pb.ConfigureProvider.Response()

    def UpgradeResourceState(self, request, context):
        return pb.UpgradeResourceState.Response(upgraded_state=encode(json.loads(request.raw_state.json)))

    def ReadResource(self, request, context):
        return pb.ReadResource.Response(new_state=request.current_state, private=request.private)

    def PlanResourceChange(self, request, context):
        new, old = decode(request.proposed_new_state), decode(request.prior_state)
        if new is not None and old is None:
            new = change(self.resources[request.type_name]["block"], new, planned)
        return pb.PlanResourceChange.Response(planned_state=encode(new))

    def ApplyResourceChange(self, request, context):
        block = self.resources[request.type_name]["block"]
        state = change(block, decode(request.planned_state), applied)
        return pb.ApplyResourceChange.Response(new_state=encode(state))

    def ReadDataSource(self, request, context):
        known = DATA.get(request.type_name, {})

        def read(name, attribute, value):
            if value is None and attribute.get("computed"):
                return known.get(name, made_up(attribute["type"], name))
            return value

        state = change(self.data[request.type_name]["block"], decode(request.config), read)
        return pb.ReadDataSource.Response(state=encode(state))

    def GetFunctions(self, request, context):
        return pb.GetFunctions.Response()

    def StopProvider(self, request, context):
        return pb.StopProvider.Response()


class Controller(controller_rpc.GRPCControllerServicer):
    def Shutdown(self, request, context):
        return controller_pb.Empty()


class Stdio(stdio_rpc.GRPCStdioServicer):
    def StreamStdio(self, request, context):
        return iter([])


def main(schema, socket):
    with open(schema, encoding="utf-8") as file:
        schemas = json.load(file)["provider_schemas"][PROVIDER]
    limits = [("grpc.max_send_message_length", MESSAGE_MAX), ("grpc.max_receive_message_length", MESSAGE_MAX)]
    server = grpc.server(futures.ThreadPoolExecutor(16), options=limits)
    rpc.add_ProviderServicer_to_server(Provider(schemas), server)
    controller_rpc.add_GRPCControllerServicer_to_server(Controller(), server)
    stdio_rpc.add_GRPCStdioServicer_to_server(Stdio(), server)
    server.add_insecure_port("unix://" + socket)
    server.start()
    address = {"Network": "unix", "String": socket}
    reattach = {"Protocol": "grpc", "ProtocolVersion": 6, "Pid": os.getpid(), "Test": True, "Addr": address}
    print(json.dumps({PROVIDER: reattach}), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
