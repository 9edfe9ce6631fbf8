"""What each command imports: a check before a job must not load what it does not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

# Each of these takes milliseconds to import, some of them hundreds.
# A command names the ones that it needs.
HEAVY = {
    "ClusterShell", "asyncio", "concurrent", "cryptography", "email", "fabric", "http",
    "importlib.metadata", "importlib.resources", "invoke.context", "jinja2", "jsonschema",
    "multiprocessing", "numpy", "packaging", "paramiko", "pydoc", "referencing", "rich", "secrets",
    "sqlite3", "tempfile", "torch", "unittest", "xml", "yaml", "zipfile",
}  # fmt: skip
# Of our own, what stands for a command that was not given.
OTHERS = {
    "changes.planner", "changes.transaction", "cli.commands.explain", "cli.commands.lint",
    "cli.commands.selftest", "cli.init.draft", "cli.init.sources", "history.recall",
    "jobs.diagnose", "jobs.launch", "jobs.verify.collect", "jobs.verify.group_stage",
    "jobs.verify.link_stage", "jobs.verify.schedule",
}  # fmt: skip
# What every command about nodes imports.
WORK = {
    "checks",
    "cli.commands",
    "facts",
    "inventory",
    "jobs",
    "model",
    "remote",
    "reports",
    "survey",
}
SSH = {
    "remote.transports.ssh",
    "remote.transports.ssh_connection",
    "remote.transports.ssh_config",
    "remote.transports.ssh_keys",
}
OF_INVENTORIES = {"jsonschema", "yaml"}
# jsonschema comes with these.
AND_THEIRS = {"referencing", "importlib.resources", "tempfile", "zipfile"}
if hasattr(
    jsonschema.validators, "urlopen"
):  # releases of 2023, which are slower by what can fetch schemas
    AND_THEIRS |= {"email", "http"}
OF_REPORTS = {"rich"}
OF_FACTS = {"packaging"}  # parses versions
OF_HISTORY = {"sqlite3"}  # two milliseconds
# paramiko asks importlib.metadata for its own version, which comes with the rest.
OF_SSH = {"paramiko", "cryptography", "concurrent", "email", "importlib.metadata"}

INVENTORY = """\
cluster: start
ssh: {port: 1, config: /dev/null, connect_timeout: 5}
nodes: [{name: n1, address: 127.0.0.1, python: /usr/bin/python3}]
"""


def imported(*words: str, code: int) -> set[str]:
    """Every module that a command imports, and the packages around each."""
    argv = [sys.executable, "-X", "importtime", "-m", "clusterprep", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr[-2000:]
    names = {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    return {
        ".".join(parts[:end])
        for parts in (name.split(".") for name in names)
        for end in range(1, len(parts) + 1)
    }


def ours(*names: set[str]) -> set[str]:
    return {f"clusterprep.{name}" for some in names for name in some}


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY)
    return str(path)


@pytest.mark.parametrize("words", [("--help",), ("check", "--help"), ("--version",)])
def test_help_imports_click_and_nothing_heavy(words: tuple[str, ...]) -> None:
    loaded = imported(*words, code=0)
    assert sorted((HEAVY | {"msgspec"} | ours(OTHERS, WORK)) & loaded) == []
    assert {name for name in loaded if name.startswith("clusterprep.")} <= ours(
        {
            "__main__",
            "cli",
            "cli.certificate",
            "cli.completion",
            "cli.everyday",
            "cli.mcp",
            "cli.mcp.command",
            "cli.exit",
            "cli.exit_codes",
            "cli.history",
            "cli.inventory_argument",
            "cli.init",
            "cli.init.command",
            "cli.main",
            "cli.options",
            "cli.output",
            "remedies",
            "errors",
            "runtime",
            "runtime.cycles",
            "runtime.deadline",
            "runtime.signals",
            "runtime.supervisor",
        }
    )


def test_validate_imports_what_reads_an_inventory(inventory: str) -> None:
    loaded = imported("validate", inventory, "--format", "json", code=0)
    assert sorted((HEAVY - OF_INVENTORIES - AND_THEIRS | ours(OTHERS, SSH)) & loaded) == []
    assert "clusterprep.cli.commands.session" not in loaded


def test_the_local_check_needs_neither_inventory_nor_ssh() -> None:
    """In a job's prolog. It fails or passes here; only what it imports is looked at."""
    argv = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "clusterprep",
        "check",
        "--local",
        "--only",
        "kernel.version",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "clusterprep.remote.transports.local" in loaded
    assert (
        sorted(
            (
                HEAVY - OF_REPORTS - OF_HISTORY - OF_FACTS
                | ours(OTHERS, SSH, {"inventory.load", "inventory.yaml_tree", "inventory.schema"})
            )
            & loaded
        )
        == []
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("check --only kernel.version", 3),
        ("plan --only kernel.version", 3),
        ("verify", 3),
        ("env", 3),
        ("rollback", 3),
    ],
)
def test_fabric_is_imported_by_the_commands_that_are_built_on_it_alone(
    inventory: str, command: str, code: int
) -> None:
    name, *words = command.split()
    loaded = imported(name, inventory, *words, code=code)
    assert sorted({"fabric", "invoke.context", *ours({"fabric"})} & loaded) == []


def test_exec_imports_fabric_and_not_what_copies_files(inventory: str) -> None:
    loaded = imported("exec", inventory, "--", "true", code=3)
    assert {"fabric", *ours({"fabric.ssh_run"})} <= loaded
    assert sorted(ours({"fabric.node_files", "fabric.tasks"}) & loaded) == []


def test_a_check_by_ssh_imports_no_more_than_it_needs(inventory: str) -> None:
    loaded = imported("check", inventory, "--only", "kernel.version", code=3)
    assert {"paramiko", *ours(SSH)} <= loaded
    needed = OF_INVENTORIES | AND_THEIRS | OF_REPORTS | OF_HISTORY | OF_SSH
    assert sorted((HEAVY - needed | ours(OTHERS)) & loaded) == []
