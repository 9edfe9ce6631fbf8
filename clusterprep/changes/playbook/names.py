"""The names that `when` and `{{ … }}` may use: a closed list over the inventory and the facts of a node. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from clusterprep.facts.cpu import Cpus
from clusterprep.facts.gpu import Nvml
from clusterprep.model import Absent, Fleet, Inventory, Node
from clusterprep.runtime.lazy_dataclass import dataclass

Kind = Literal["text", "number", "size", "version"]
Value = str | int
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
UNDECLARED = "is not declared in the inventory"


@dataclass(frozen=True)
class Name:
    """One name: what kind of value it has, what to ask the node for, and how to tell it from that.

    `value(node, inventory, *facts)` gives the value, None where the inventory does not declare it, or an Absent. It
    is only called when none of its facts is absent.
    """

    name: str
    kind: Kind
    says: str
    value: Callable[..., Value | Absent | None]
    facts: tuple[str, ...] = ()


def everybody(inventory: Inventory) -> tuple[Node, ...]:
    """All nodes of the inventory's file, also those that this command leaves alone, in their order."""
    return tuple(sorted((*inventory.nodes, *inventory.left_out), key=lambda node: node.index))


def _gpus(node: Node, inventory: Inventory, nvml: Nvml | None) -> int:
    return 0 if nvml is None else len(nvml.gpus) + len(nvml.lost)


def _model(node: Node, inventory: Inventory, nvml: Nvml | None) -> str | Absent:
    models = sorted({gpu.name for gpu in nvml.gpus}) if nvml else []
    if not models:
        return Absent("not_applicable", "no GPU here")
    return models[0] if len(models) == 1 else Absent("mixed", f"this node has {', '.join(models)}")


def _part(number: int) -> Callable[[Node, Inventory, str], str | Absent]:
    """One word of «ubuntu 22.04»."""

    def value(node: Node, inventory: Inventory, release: str) -> str | Absent:
        words = release.split(" ", 1)
        return (
            words[number]
            if number < len(words)
            else Absent("not_applicable", f"{release} has no version")
        )

    return value


def _cpus(node: Node, inventory: Inventory, cpus: Cpus) -> int:
    return cpus.cpus


def _same(node: Node, inventory: Inventory, value: Any) -> Any:
    return Absent("not_applicable", "this node has none") if value is None else value


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
        lambda n, inventory: len(everybody(inventory)),
    ),
    Name(
        "first.node",
        "text",
        "the first node, where ranks meet",
        lambda n, inventory: everybody(inventory)[0].name,
    ),
    Name(
        "first.address",
        "text",
        "the address of that",
        lambda n, inventory: everybody(inventory)[0].address,
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
    Name("hostname", "text", "what it calls itself", _same, ("host.name",)),
    Name("kernel", "version", "the running kernel", _same, ("kernel.release",)),
    Name("os.id", "text", "the distribution, such as ubuntu", _part(0), ("os.release",)),
    Name("os.version", "version", "its version", _part(1), ("os.release",)),
    Name("gpus.count", "number", "NVIDIA GPUs that the driver has", _gpus, ("gpu.nvml",)),
    Name("gpus.model", "text", "their model, where it is one", _model, ("gpu.nvml",)),
    Name("driver", "version", "the NVIDIA driver that is loaded", _same, ("nv.driver",)),
    Name("cpus.count", "number", "hardware threads that are online", _cpus, ("cpu.processors",)),
    Name("memory", "size", "main memory", _same, ("mem.total",)),
)
NAMES: Mapping[str, Name] = {name.name: name for name in _LISTED}


def find(word: str, known: Iterable[str] = NAMES) -> Name:
    """The name that a word is. KeyError with a hint where there is none."""
    if word in NAMES:
        return NAMES[word]
    if re.fullmatch(r"env\.[A-Za-z_][A-Za-z0-9_]*", word):
        return Name(
            word, "text", "a value under `env:`", lambda node, inventory: declared(node, word[4:])
        )
    close = difflib.get_close_matches(word, [*known, "env."], 1, 0.6)
    raise KeyError(
        f"did you mean '{close[0]}'?" if close else f"known are {', '.join(known)} and env.NAME"
    )


def declared(node: Node, variable: str) -> str | None:
    setting = node.env.get(variable)
    return None if setting is None else setting.value


def undeclared(name: Name, nodes: Iterable[Node], inventory: Inventory) -> list[str]:
    """The nodes for which the inventory does not say what a name of it means; none for a fact."""
    if name.facts:
        return []
    return [node.name for node in nodes if name.value(node, inventory) is None]


def value_of(name: Name, fleet: Fleet, node: Node) -> Value | Absent:
    """What a name means on a node, or why that is not known."""
    facts = [fleet.fact(node.name, fact) for fact in name.facts]
    for fact in facts:
        if isinstance(fact, Absent):
            return Absent(fact.reason, f"{name.name}: {fact.detail or fact.reason}")
    try:
        value = name.value(node, fleet.inventory, *facts)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        return Absent("garbled", f"{name.name}: {error}")
    if value is None:
        return Absent("not_applicable", f"{name.name} {UNDECLARED}")
    if isinstance(value, Absent):
        return Absent(value.reason, f"{name.name}: {value.detail or value.reason}")
    if isinstance(value, str) and CONTROL.search(value):
        return Absent("garbled", f"{name.name} holds a control character: {ascii(value)[:80]}")
    return value
