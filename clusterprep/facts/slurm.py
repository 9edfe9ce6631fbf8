"""Slurm's files, what they say of each node, and the state in which Slurm has this one.

Formats: slurm.conf(5), gres.conf(5) and cgroup.conf(5) of Slurm 22.05 to 24.11.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.facts import Fact, Needs
from clusterprep.model import Absent, Inventory, Node, Read
from clusterprep.model.nodeset import MAX_NODES, expand

NO_SLURM = Absent("not_applicable", "no slurm.conf here")
STATE_LIMIT = 5.0  # seconds; scontrol itself waits nine for a slurmctld that is down
# Folders in which slurmd keeps the files that slurmctld sent it.
SENT = ("/run/slurm/conf", "/conf-cache")
_DEFAULT = "default"
# A name begins where no word goes on, so that a long word is looked at once.
_PAIR = re.compile(r'(?<!\w)([A-Za-z]\w*)\s*=\s*("[^"]*"|\S*)')
_MOST = 10 * MAX_NODES  # devices, cores and nodes of gres.conf together
_MOST_CORES = 1 << 16  # of a machine
_NUMBER = re.compile(r"(\d{1,15})([KMGTP]?)", re.ASCII)
_SUFFIXES = "KMGTP"  # of counts in gres.conf and of Gres=: powers of 1024
_CORE_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


class Gres(Struct, frozen=True):
    """One generic resource of a node in slurm.conf: «gpu:h100:8»."""

    name: str
    type: str
    count: int


class NodeLine(Struct, frozen=True):
    """Nodes of slurm.conf, with the defaults that hold for them; None for what is not written.

    `memory` is RealMemory in MiB. `sockets` counts those of all boards.
    """

    names: str
    hosts: str
    cpus: int | None = None
    sockets: int | None = None
    cores_per_socket: int | None = None
    threads_per_core: int | None = None
    memory: int | None = None
    gres: tuple[Gres, ...] = ()
    state: str = ""


class GresLine(Struct, frozen=True):
    """One line of gres.conf; without `nodes` it is for all, without `name` it only detects.

    `files` are device files one by one. `together` says that all of them are one resource.
    """

    nodes: str
    name: str
    type: str = ""
    files: tuple[str, ...] = ()
    together: bool = False
    count: int | None = None
    cores: tuple[int, ...] = ()
    detect: str = ""


class SlurmFiles(Struct, frozen=True, dict=True):
    """What the files of Slurm on a node say. Names of settings are in small letters.

    `sums` has a number for each file with all that it includes, comments left out. `scripts` has
    those that are named: their mode, None where there is no such file. `shared` says that a node
    may be given to several jobs at once. `adopts`: sshd asks pam_slurm_adopt.
    """

    folder: str
    sums: Mapping[str, int]
    settings: Mapping[str, str]
    nodes: tuple[NodeLine, ...]
    gres: tuple[GresLine, ...]
    cgroup: Mapping[str, str]
    scripts: Mapping[str, int | None]
    shared: bool = True
    adopts: bool = False

    @property
    def configless(self) -> bool:
        """Return whether slurmctld sent these files to slurmd."""
        return self.folder.endswith(SENT)

    def words(self, setting: str) -> frozenset[str]:
        """Return the words of a setting that is a list, in small letters."""
        text = self.settings.get(setting, "").lower()
        return frozenset(word.strip() for word in text.split(",") if word.strip())

    def node(self, host: str) -> tuple[str, NodeLine] | None:
        """Return Slurm's name for a host and its line; None for a host that is no node."""
        return self._by_host.get(host) or self._by_host.get(host.partition(".")[0])

    @functools.cached_property
    def _by_host(self) -> Mapping[str, tuple[str, NodeLine]]:
        found: dict[str, tuple[str, NodeLine]] = {}
        for host, name, line in _expanded(self.nodes):
            found.setdefault(host, (name, line))
        return found

    def gres_of(self, name: str) -> tuple[GresLine, ...]:
        """Return the lines of gres.conf for one node."""
        nodes = self._nodes_of_gres
        return tuple(line for line in self.gres if not line.nodes or name in nodes[line.nodes])

    @functools.cached_property
    def _nodes_of_gres(self) -> Mapping[str, frozenset[str]]:
        return {line.nodes: frozenset(expand(line.nodes)) for line in self.gres if line.nodes}


class SlurmState(Struct, frozen=True):
    """How Slurm has a node: «IDLE+DRAIN», and the reason that was given for it."""

    name: str
    state: str
    reason: str = ""

    @property
    def states(self) -> frozenset[str]:
        """The parts of `state` without flags: DOWN and CLOUD for DOWN*+CLOUD."""
        return frozenset(part.strip("*~#!%$@^-") for part in self.state.split("+"))


# ---------------------------------------------------------------- slurm.conf


def parse_files(answer: Mapping[str, Any] | None) -> SlurmFiles | Absent:
    """Return what Slurm's files say. Raises ValueError for what Slurm would not read either."""
    if answer is None:
        return NO_SLURM
    lines = {name: _texts(part["lines"]) for name, part in answer["files"].items()}
    conf = [_pairs(line) for line in lines["slurm.conf"]]
    settings = _settings(conf)
    files = SlurmFiles(
        folder=str(answer["folder"]),
        sums={name: _whole(part["sum"]) for name, part in answer["files"].items()},
        settings=settings,
        nodes=tuple(_node_lines(conf)),
        gres=tuple(_gres_lines(lines.get("gres.conf", ()))),
        cgroup=_settings(_pairs(line) for line in lines.get("cgroup.conf", ())),
        scripts=_modes(answer["scripts"]),
        shared=settings.get("selecttype") != "select/linear" and _is_shared(conf),
        adopts=answer["pam"] is True,
    )
    for _ in _expanded(files.nodes):  # so that nothing can go wrong later
        pass
    return files


def _texts(lines: object) -> list[str]:
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ValueError("expected lines of a file")
    return lines


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected a number, seen {value!r}")  # noqa: TRY004 - garbled
    return value


def _modes(scripts: Mapping[str, Any]) -> dict[str, int | None]:
    modes: dict[str, int | None] = {}
    for path, mode in scripts.items():
        modes[path] = None if mode is None else _whole(mode)
    return modes


def _pairs(line: str) -> dict[str, str]:
    """Return the settings of a line: names in small letters, values without quotes."""
    return {name.lower(): value.strip('"') for name, value in _PAIR.findall(line)}


def _settings(lines: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the settings that stand on a line of their own; the last one of a name counts."""
    settings: dict[str, str] = {}
    for pairs in lines:
        if pairs and next(iter(pairs)) not in ("nodename", "partitionname"):
            settings.update(pairs)
    return settings


def _node_lines(conf: Iterable[Mapping[str, str]]) -> Iterator[NodeLine]:
    """Yield the nodes of slurm.conf.

    NodeName=DEFAULT changes what holds for the lines behind it, and for nothing else.
    """
    default = NodeLine("", "")
    for pairs in conf:
        if "nodename" not in pairs:
            continue
        names = pairs["nodename"]
        line = _with_settings(default, pairs)
        if names.lower() == _DEFAULT:
            default = line
        else:
            yield replace(line, names=names, hosts=pairs.get("nodehostname", names))


def _with_settings(line: NodeLine, pairs: Mapping[str, str]) -> NodeLine:
    """Return a line with the settings of one of the file."""
    boards = _number(pairs.get("boards")) or 1
    sockets = _number(pairs.get("sockets"))
    on_board = _number(pairs.get("socketsperboard"))
    if sockets is None and on_board is not None:
        sockets = boards * on_board
    seen = {
        "cpus": _number(pairs.get("cpus") or pairs.get("procs")),
        "sockets": sockets,
        "cores_per_socket": _number(pairs.get("corespersocket")),
        "threads_per_core": _number(pairs.get("threadspercore")),
        "memory": _number(pairs.get("realmemory")),
    }
    written: dict[str, Any] = {key: value for key, value in seen.items() if value is not None}
    if "gres" in pairs:
        written["gres"] = tuple(_gres(pairs["gres"]))
    if "state" in pairs:
        written["state"] = pairs["state"].upper()
    return replace(line, **written)


def _number(text: str | None) -> int | None:
    """Return a number such as 8, or 2K for 2048. Raises ValueError for other text."""
    if text is None:
        return None
    match = _NUMBER.fullmatch(text.upper())
    if match is None:
        raise ValueError(f"{text!r} is no number")
    power = _SUFFIXES.index(match[2]) + 1 if match[2] else 0
    return int(match[1]) << (10 * power)


def _gres(text: str) -> Iterator[Gres]:
    """Yield the resources of «gpu:h100:8(S:0-1),nvme:no_consume:2»; a count is 1 by default."""
    for item in re.sub(r"\([^()]*\)", "", text).split(","):
        name, *words = item.strip().split(":")
        if not name or name == "(null)":
            continue
        words = [word for word in words if word != "no_consume"]
        count = 1
        if words and _NUMBER.fullmatch(words[-1].upper()):
            count = _number(words.pop()) or 0
        yield Gres(name.lower(), ":".join(words), count)


def _expanded(lines: Sequence[NodeLine]) -> Iterator[tuple[str, str, NodeLine]]:
    """Yield host, node name and line of each node. Raises ValueError for too many of them."""
    total = 0
    for line in lines:
        names = expand(line.names)
        hosts = expand(line.hosts)
        total += len(names)
        if total > MAX_NODES:
            raise ValueError(f"slurm.conf names more than {MAX_NODES:,} nodes")
        if len(hosts) != len(names):
            hosts = names  # several slurmd on one host: no host stands for one of them
        for host, name in zip(hosts, names, strict=True):
            yield host, name, line


def _is_shared(conf: Iterable[Mapping[str, str]]) -> bool:
    """Return whether a partition gives parts of its nodes to jobs."""
    default = ""
    shared = []
    for pairs in conf:
        if "partitionname" not in pairs:
            continue
        mode = (pairs.get("oversubscribe") or pairs.get("shared") or default).lower()
        if pairs["partitionname"].lower() == _DEFAULT:
            default = mode
        else:
            shared.append(mode != "exclusive")
    return any(shared) or not shared


# ---------------------------------------------------------------- gres.conf


def _gres_lines(lines: Iterable[str]) -> Iterator[GresLine]:
    """Yield the lines of gres.conf. Raises ValueError where they name more than machines have."""
    total = 0
    for text in lines:
        line = _gres_line(_pairs(text))
        total += len(line.files) + len(line.cores) + len(expand(line.nodes or "all"))
        if total > _MOST:
            raise ValueError(f"gres.conf names more than {_MOST:,} nodes, devices and cores")
        yield line


def _gres_line(pairs: Mapping[str, str]) -> GresLine:
    """Return a line of gres.conf. Raises ValueError for one without a meaning."""
    together = "multiplefiles" in pairs
    name = pairs.get("name", "").lower()
    if not name and "autodetect" not in pairs:
        raise ValueError(f"a line of gres.conf names no resource: {dict(pairs)}")
    return GresLine(
        nodes=pairs.get("nodename", ""),
        name=name,
        type=pairs.get("type", ""),
        files=tuple(_device_files(pairs.get("multiplefiles") or pairs.get("file", ""))),
        together=together,
        count=_number(pairs.get("count")),
        cores=tuple(_cores(pairs.get("cores") or pairs.get("cpus", ""))),
        detect=pairs.get("autodetect", "").lower(),
    )


def _device_files(text: str) -> list[str]:
    """Return /dev/nvidia0, /dev/nvidia1, … of «/dev/nvidia[0-7]»."""
    return expand(text) if text else []


def _cores(text: str) -> Iterator[int]:
    """Yield the numbers of «0-3,8». Raises ValueError for other text."""
    count = 0
    for part in text.split(",") if text else ():
        match = _CORE_RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{text[:60]!r} is no list of cores")
        first = int(match[1])
        last = int(match[2] or match[1])
        count += last - first + 1
        if max(last, count) >= _MOST_CORES:
            raise ValueError(f"no machine has {_MOST_CORES:,} cores")
        yield from range(first, last + 1)


def core_of_numa(cpu_lists: Mapping[int, str], cores: int, cpus: int) -> Mapping[int, range] | None:
    """Return the numbers that Slurm gives to the cores of each NUMA node.

    `cpu_lists` are those of the kernel by NUMA node, `cores` and `cpus` counts of the machine.
    Slurm numbers cores as hwloc does, socket by socket, whatever numbers the kernel gives to CPUs.
    None where that order does not follow: where NUMA nodes have no whole number of cores.
    """
    if not cores or cpus % cores:
        return None
    threads = cpus // cores
    order = []
    for numa, text in cpu_lists.items():
        numbers = sorted(_cores(text))
        if not numbers:
            continue  # memory without CPUs
        if len(numbers) % threads:
            return None
        order.append((numbers[0], numa, len(numbers) // threads))
    ranges = {}
    first = 0
    for _, numa, count in sorted(order):
        ranges[numa] = range(first, first + count)
        first += count
    return ranges if first == cores else None


# ---------------------------------------------------------------- state


def parse_state(answer: Mapping[str, Any] | None) -> SlurmState | Absent:
    """Return the state of this node by `scontrol --oneliner show node`."""
    if answer is None:
        return NO_SLURM
    text = str(answer["out"])
    name = re.match(r"NodeName=(\S+)", text)
    state = re.search(r"\sState=(\S+)", text)
    if answer["code"] == 0 and name and state:
        return SlurmState(name[1], state[1], _reason(text))
    said = f"{text} {answer['err']}"
    if "not found" in said:
        return Absent("not_applicable", "Slurm has no node of this host's name")
    first = said.strip().splitlines()[:1]
    if "Unable to contact" in said or "timed out" in said.lower():
        return Absent("slurmctld gives no answer", "".join(first))
    raise ValueError(f"scontrol ended with {answer['code']}: {''.join(first)}")


def _reason(text: str) -> str:
    """Return the text behind Reason=, which comes last, without who set it and when."""
    reason = text.partition(" Reason=")[2].strip()
    if reason.endswith("]"):
        return reason.rpartition(" [")[0]
    return reason


def count_of(gres: Iterable[Gres], name: str) -> int:
    """Return how many of a resource a node has."""
    return sum(each.count for each in gres if each.name == name)


def memory_in(size: float) -> int:
    """Return bytes as Slurm counts memory: in whole MiB."""
    return math.floor(size / (1 << 20))


def _file_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (Read("slurm_files", (node.root,)),)


def _state_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (Read("slurm_state", (), limit=STATE_LIMIT),)


FILES = Fact("slurm.files", _file_reads, parse_files)
# Deep, as SchedMD asks that a Prolog calls no command of Slurm's: they wait for slurmctld, which
# waits for the Prolog.
STATE = Fact(
    "slurm.node_state",
    _state_reads,
    parse_state,
    deep=True,
    needs=Needs("any_user"),
    moves=True,
)
