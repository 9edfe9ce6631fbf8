"""The names that `when` and `{{ … }}` may use: a closed list over inventory and facts. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from clusterprep.facts.cpu import Cpus
from clusterprep.facts.gpu import Nvml
from clusterprep.model import Absent, Fleet, Inventory, Node

Kind = Literal["text", "number", "size", "version"]
Value = str | int
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
UNDECLARED = "is not declared in the inventory"
_VARIABLE = re.compile(r"env\.[A-Za-z_][A-Za-z0-9_]*")


class Name(Struct, frozen=True):
    """One name: the kind of its value, the facts that it needs, and how it follows from them.

    `value(node, inventory, *facts)` returns the value, None if the inventory does not declare it,
    or an Absent. It is only called if none of its facts is absent.
    """

    name: str
    kind: Kind
    says: str
    value: Callable[..., Value | Absent | None]
    facts: tuple[str, ...] = ()


def all_nodes(inventory: Inventory) -> tuple[Node, ...]:
    """Return the nodes of the inventory file in order, also those that --limit leaves out."""
    nodes = (*inventory.nodes, *inventory.left_out)
    return tuple(sorted(nodes, key=lambda node: node.index))


# ---------------------------------------------------------------- values of facts


def _gpu_count(node: Node, inventory: Inventory, nvml: Nvml | None) -> int:
    return 0 if nvml is None else len(nvml.gpus) + len(nvml.lost)


def _gpu_model(node: Node, inventory: Inventory, nvml: Nvml | None) -> str | Absent:
    models: set[str] = set()
    if nvml is not None:
        models.update(gpu.name for gpu in nvml.gpus)
    if not models:
        return Absent("not_applicable", "no GPU here")
    if len(models) > 1:
        return Absent("mixed", f"this node has {', '.join(sorted(models))}")
    return models.pop()


def _distribution(node: Node, inventory: Inventory, release: str) -> str:
    """Return «ubuntu» of «ubuntu 22.04»."""
    return release.split(" ", 1)[0]


def _distribution_version(node: Node, inventory: Inventory, release: str) -> str | Absent:
    """Return «22.04» of «ubuntu 22.04»."""
    _, separator, version = release.partition(" ")
    if not separator:
        return Absent("not_applicable", f"{release} has no version")
    return version


def _cpu_count(node: Node, inventory: Inventory, cpus: Cpus) -> int:
    return cpus.cpus


def _unchanged(node: Node, inventory: Inventory, value: Any) -> Any:
    return Absent("not_applicable", "this node has none") if value is None else value


# ---------------------------------------------------------------- the list

_LISTED = (
    Name("node", "text", "its name in the inventory", lambda node, inventory: node.name),
    Name("address", "text", "its address in the inventory", lambda node, inventory: node.address),
    Name(
        "index", "number", "its place in the inventory, from 0", lambda node, inventory: node.index
    ),
    Name("cluster", "text", "`cluster:`", lambda node, inventory: inventory.cluster),
    Name(
        "nodes.count",
        "number",
        "how many nodes the inventory has",
        lambda node, inventory: len(all_nodes(inventory)),
    ),
    Name(
        "first.node",
        "text",
        "the first node, where ranks meet",
        lambda node, inventory: all_nodes(inventory)[0].name,
    ),
    Name(
        "first.address",
        "text",
        "the address of that",
        lambda node, inventory: all_nodes(inventory)[0].address,
    ),
    Name("master_port", "number", "`ports.master`", lambda node, inventory: inventory.master_port),
    Name(
        "job_user",
        "text",
        "`job_user:`, else `ssh.user`",
        lambda node, inventory: node.job_user or node.ssh.user,
    ),
    Name("python", "text", "`python:`", lambda node, inventory: node.python),
    Name("root", "text", "`root:`", lambda node, inventory: node.root),
    Name("transport", "text", "`transport:`", lambda node, inventory: node.transport),
    Name("nproc", "number", "`nproc_per_node:`", lambda node, inventory: node.nproc_per_node),
    Name(
        "gpus.declared",
        "number",
        "`gpus:`, their number",
        lambda node, inventory: node.gpus and node.gpus.count,
    ),
    Name(
        "interfaces.nccl",
        "text",
        "`interfaces.nccl:`",
        lambda node, inventory: node.interfaces.nccl,
    ),
    Name("hostname", "text", "what it calls itself", _unchanged, ("host.name",)),
    Name("kernel", "version", "the running kernel", _unchanged, ("kernel.release",)),
    Name("os.id", "text", "the distribution, such as ubuntu", _distribution, ("os.release",)),
    Name("os.version", "version", "its version", _distribution_version, ("os.release",)),
    Name("gpus.count", "number", "NVIDIA GPUs that the driver has", _gpu_count, ("gpu.nvml",)),
    Name("gpus.model", "text", "their model, where it is one", _gpu_model, ("gpu.nvml",)),
    Name("driver", "version", "the NVIDIA driver that is loaded", _unchanged, ("nv.driver",)),
    Name(
        "cpus.count", "number", "hardware threads that are online", _cpu_count, ("cpu.processors",)
    ),
    Name("memory", "size", "main memory", _unchanged, ("mem.total",)),
)
NAMES: Mapping[str, Name] = {name.name: name for name in _LISTED}


def find(word: str, known: Iterable[str] = NAMES) -> Name:
    """Return the name that a word stands for. Raises KeyError with a hint if there is none."""
    if word in NAMES:
        return NAMES[word]
    if _VARIABLE.fullmatch(word):
        variable = word.removeprefix("env.")
        return Name(
            word, "text", "a value under `env:`", lambda node, inventory: declared(node, variable)
        )
    candidates = [*known, "env."]
    close = difflib.get_close_matches(word, candidates, 1, 0.6)
    if close:
        raise KeyError(f"did you mean '{close[0]}'?")
    raise KeyError(f"known are {', '.join(known)} and env.NAME")


def declared(node: Node, variable: str) -> str | None:
    """Return the value of a variable under `env:`, None if it is not declared."""
    setting = node.env.get(variable)
    return None if setting is None else setting.value


def undeclared(name: Name, nodes: Iterable[Node], inventory: Inventory) -> list[str]:
    """Return the nodes for which the inventory does not declare a name; none for a fact."""
    if name.facts:
        return []
    return [node.name for node in nodes if name.value(node, inventory) is None]


def value_of(name: Name, fleet: Fleet, node: Node) -> Value | Absent:
    """Return the value of a name on a node, or why it is not known."""
    facts = []
    for fact_name in name.facts:
        fact = fleet.fact(node.name, fact_name)
        if isinstance(fact, Absent):
            return _about(name, fact)
        facts.append(fact)
    try:
        value = name.value(node, fleet.inventory, *facts)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        return Absent("garbled", f"{name.name}: {error}")
    if value is None:
        return Absent("not_applicable", f"{name.name} {UNDECLARED}")
    if isinstance(value, Absent):
        return _about(name, value)
    if isinstance(value, str) and CONTROL.search(value):
        shown = ascii(value)[:80]
        return Absent("garbled", f"{name.name} holds a control character: {shown}")
    return value


def _about(name: Name, absent: Absent) -> Absent:
    return Absent(absent.reason, f"{name.name}: {absent.detail or absent.reason}")
