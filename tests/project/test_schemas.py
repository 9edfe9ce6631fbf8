"""The shipped schemas are valid, explain every key, and give the defaults of the program."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from clusterprep.inventory.load import load_inventory, schema_path
from clusterprep.inventory.schema import schema_line
from clusterprep.jobs.verify.schedule import SIZES
from clusterprep.model import MASTER_PORT, SshSettings, VerifySettings
from clusterprep.remote.transports.ssh_route import KNOWN_HOSTS

SCHEMAS = sorted(schema_path("inventory").parent.glob("*.json"))


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_each_schema_is_valid_2020_12(path: Path) -> None:
    schema = load(path)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


def keys(schema: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every (place, subschema) under `properties`, references followed where they stand."""
    for name, inner in schema.get("properties", {}).items():
        yield f"{place}.{name}", inner
        yield from keys(inner, f"{place}.{name}")


def test_every_key_of_the_inventory_is_explained() -> None:
    schema = load(schema_path("inventory"))
    places = list(keys(schema)) + [
        found for name, inner in schema["$defs"].items() for found in keys(inner, name)
    ]
    resolved = [
        (place, {**schema["$defs"].get(inner.get("$ref", "/").split("/")[-1], {}), **inner})
        for place, inner in places
    ]
    assert [
        place for place, inner in resolved if not (inner.get("title") and inner.get("description"))
    ] == []


def test_the_example_says_where_its_schema_is() -> None:
    example = schema_path("inventory").parents[1] / "inventory.example.yaml"
    first = example.read_text(encoding="utf-8").splitlines()[0]
    _, _, path = first.partition("# yaml-language-server: $schema=")
    assert (example.parent / path).samefile(schema_path("inventory"))


def test_a_line_for_editors_names_a_file() -> None:
    assert schema_line("inventory") == (
        f"# yaml-language-server: $schema={schema_path('inventory')}\n"
    )
    assert schema_line("no_such_schema") == ""


def test_the_defaults_of_the_schema_are_those_of_the_program(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("nodes: [{name: gpu1}]\n")
    inventory = load_inventory(path)
    schema = load(schema_path("inventory"))
    top, defs = schema["properties"], schema["$defs"]
    ssh, verify = defs["ssh"]["properties"], defs["verify"]["properties"]
    assert ssh["known_hosts"]["default"] == KNOWN_HOSTS  # where ssh_config names no other
    for name in ("config", "host_keys", "connect_timeout"):
        assert ssh[name]["default"] == getattr(SshSettings(), name)
    node = inventory.nodes[0]
    assert [defs[name]["default"] for name in ("root", "python", "transport")] == [
        node.root,
        node.python,
        node.transport,
    ]
    assert defs["become"]["default"] == node.ssh.become
    assert top["ports"]["properties"]["master"]["default"] == MASTER_PORT == inventory.master_port
    assert tuple(top["env_targets"]["default"]) == inventory.env_targets
    assert (verify["backend"]["default"], verify["timeout"]["default"]) == (
        "auto",
        VerifySettings().timeout,
    )
    # The default of the sizes depends on the backend, so that it is only described.
    assert inventory.verify.sizes is None
    described = verify["sizes"]["description"].partition("Default: ")[2]
    sizes, _, last = described.partition(", and ")
    assert last == "1G over NCCL."
    path.write_text(f"nodes: [{{name: gpu1}}]\nverify: {{sizes: [{sizes}]}}\n")
    assert load_inventory(path).verify.sizes == SIZES
