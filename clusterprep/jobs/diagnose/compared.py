"""Compares what the hosts of one log say about themselves, and names those that differ.

A host speaks of itself in NCCL's lines: which version it runs, which plug-in, network and cards it
uses, which settings it has. A difference is no failure by itself, so it weighs only as much as the
log shows that something went wrong which it may explain.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from msgspec import Struct

from clusterprep.checks.env import must_match
from clusterprep.jobs.diagnose.dialled import private_network_of
from clusterprep.jobs.diagnose.model import Culprits, Evidence, LogFile, LogLine, Severity, Weight
from clusterprep.jobs.diagnose.trouble import collective_timeouts, no_connection, waits

MOST_NAMED = 3  # hosts of one value in a sentence; of more only the number is told
# Values of one trait: where hosts say more different things than that, they are meant to differ.
_MOST_VALUES = 4
_MOST_LINES = 4  # of one difference that are shown as evidence

NEEDLES = (
    "nccl version",
    "is using nccl==",
    "cudadriverversion",
    "net/plugin",
    "plugin path :",
    "using network",
    "assigned net plugin",
    "net/ib : using",
    "gpu direct rdma",
    "torch version",
    "torch==",
    "bootstrap : using",
    "bootstrap: using",
    "set by environment to",
    "commid 0x",
    "init complete",
)
_VERSION = re.compile(
    r"^NCCL version (?P<version>\d+\.\d+\.\d+(?:\.\d+)?)|, NCCL version (?P<short>\d+\.\d+\.\d+)"
    r"|is using nccl==(?P<vllm>\d+\.\d+\.\d+)",
    re.IGNORECASE,
)
_DRIVER = re.compile(r"cudaDriverVersion (?P<value>\d+)", re.IGNORECASE)
_NO_PLUGIN = re.compile(
    r"Could not find: libnccl-net|No plugin found|Plugin load \(libnccl-net\S*\) returned \d",
    re.IGNORECASE,
)
_PLUGIN = re.compile(
    r"Plugin Path : \S+|NET/Plugin ?: (?:Loaded|Successfully loaded|Initialized)", re.IGNORECASE
)
_NETWORK = re.compile(
    r"^Using network (?P<value>\w+)|Assigned NET plugin (?P<other>\w+) to comm", re.IGNORECASE
)
_VERSION_OF_PLUGIN = re.compile(r"_v\d+$")
_CARDS = re.compile(r"NET/IB ?: Using (?P<list>\[\d+\].*)", re.IGNORECASE)
_CARD = re.compile(r"\[\d+\](?P<name>[\w.-]+):\d+/(?P<layer>IB|RoCE)", re.IGNORECASE)
_GPUDIRECT = re.compile(r"GPU Direct RDMA (?P<value>Enabled|Disabled) for HCA", re.IGNORECASE)
_BOOTSTRAP = re.compile(
    r"Bootstrap ?: Using (?:interface )?(?:\[0\])?[\w.@-]+:(?P<address>\d+\.\d+\.\d+\.\d+)<",
    re.IGNORECASE,
)
_SETTING = re.compile(
    r"(?P<name>NCCL_\w+) set by environment to (?P<value>[^\s.][^\s]*?)\.?$", re.IGNORECASE
)
_COMMUNICATOR = re.compile(
    r"\brank \d+ nranks (?P<size>\d+) .*commId (?P<id>0x[0-9a-f]+)", re.IGNORECASE
)
_FAILS = re.compile(
    r"NCCL error|internal error|unhandled system error|remote process exited", re.IGNORECASE
)
# What says that two ends do not agree, so that any difference between them may be the reason.
_DISAGREES = re.compile(
    r"message truncated|wrong type \d|Mismatched (?:NCCL|collective)|collective mismatch"
    r"|incompatible devices|is incompatible with the local",
    re.IGNORECASE,
)

_TORCH = re.compile(r"torch(?: version|==)[ :]*(?P<value>\d+\.\d+\.\d+(?:\+\w+)?)", re.IGNORECASE)

_Place = tuple[str, str]  # («host», its name), («rank», its number) or («file», its name)
_Lines = dict[str, LogLine]  # by value, the first line that says it
_Hosts = dict[_Place, _Lines]
_Values = dict[str, dict[_Place, LogLine]]


class Trait(Struct, frozen=True):
    """Something that hosts say about themselves.

    `read` returns the value that a line tells, an empty text if it tells none.
    `is_grave`: hosts that differ in it cannot work together at all.
    `lacking`: of two values, the one whose host is to blame. Without it both are named.
    """

    name: str
    needles: tuple[str, ...]
    read: Callable[[LogLine], str]
    is_grave: bool = True
    lacking: str = ""


class _Signs(Struct, frozen=True):
    """What the log shows beside the differences."""

    fails: bool
    disagrees: bool  # two ends of a connection say so
    has_worked: bool  # hosts built a communicator together


# ---------------------------------------------------------------- what a line says


def _read_version(line: LogLine) -> str:
    """Return the version of NCCL. torch 1.10 writes 21.0.3 for 2.10.3, which is left out."""
    match = _VERSION.search(line.message)
    if match is None:
        return ""
    version = match["version"] or match["short"] or match["vllm"]
    return version if version.startswith("2.") else ""


def _read_torch(line: LogLine) -> str:
    match = _TORCH.search(line.message)
    return match["value"] if match else ""


def _read_driver(line: LogLine) -> str:
    """Return the CUDA version that the driver knows: 12.4 of 12040."""
    match = _DRIVER.search(line.message)
    if match is None:
        return ""
    number = int(match["value"])
    return f"{number // 1000}.{number % 1000 // 10}"


def _read_plugin(line: LogLine) -> str:
    if _NO_PLUGIN.search(line.message):
        return "none"
    return "loaded" if _PLUGIN.search(line.message) else ""


def _read_network(line: LogLine) -> str:
    match = _NETWORK.search(line.message)
    if match is None:
        return ""
    name = match["value"] or match["other"]
    return _VERSION_OF_PLUGIN.sub("", name)


def _read_layers(line: LogLine) -> str:
    """Return the link layers of the cards in use: «IB», «RoCE» or «IB and RoCE»."""
    match = _CARDS.search(line.message)
    if match is None:
        return ""
    layers = {card["layer"] for card in _CARD.finditer(match["list"])}
    return " and ".join(sorted(layers))


def _read_gpudirect(line: LogLine) -> str:
    match = _GPUDIRECT.search(line.message)
    return match["value"] if match else ""


TRAITS = (
    Trait("the version of NCCL", ("nccl version", "is using nccl=="), _read_version),
    Trait(
        "the network plug-in of NCCL",
        ("net/plugin", "plugin path :"),
        _read_plugin,
    ),
    Trait(
        "the network",
        ("using network", "assigned net plugin"),
        _read_network,
        lacking="Socket",
    ),
    Trait("the link layer of the cards", ("net/ib : using",), _read_layers),
    Trait(
        "the CUDA version of the driver",
        ("cudadriverversion",),
        _read_driver,
        is_grave=False,
    ),
    Trait("the version of torch", ("torch version", "torch=="), _read_torch, is_grave=False),
)


# ---------------------------------------------------------------- differences


def differences(log: LogFile) -> Iterator[Evidence]:
    """Yield what differs between the hosts of a log, for the causes that it speaks for."""
    disagrees = _says(log, _DISAGREES)
    fails = disagrees or no_connection(log) or waits(log) or _says(log, _FAILS)
    signs = _Signs(fails, disagrees, _has_worked(log))
    for trait in TRAITS:
        hosts = _hosts_by_trait(log, trait)
        weight, severity = _weight(trait, signs)
        if weight is not None:
            yield from _different(hosts, trait.name, weight, severity, trait.lacking)
    is_stopped = fails and not signs.has_worked
    if disagrees or is_stopped:
        weight_of_cards = Weight.LIKELY if disagrees else Weight.SYMPTOM
        yield from _different_cards(log, weight_of_cards)
    if disagrees or is_stopped or collective_timeouts(log):
        yield from _different_settings(log)
    yield from _different_networks(log)
    yield from _different_sizes(log)
    yield from _different_gpudirect(log)


def _says(log: LogFile, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(lines[0].message) for lines in log.forms.values())


def _has_worked(log: LogFile) -> bool:
    """Whether several hosts built a communicator together. Old versions of NCCL do not name it."""
    hosts: dict[str, set[str]] = {}  # by communicator
    for line in log.lines_with("init complete"):
        match = _COMMUNICATOR.search(line.message)
        if line.host:
            hosts.setdefault(match["id"] if match else "", set()).add(line.host)
    return any(len(names) > 1 for names in hosts.values())


def _weight(trait: Trait, signs: _Signs) -> tuple[Weight | None, Severity | None]:
    """Return how much a difference says, and its severity if it is not that of its cause.

    Hosts that worked together did not fail by what they are, unless they say that they disagree.
    """
    if signs.disagrees:
        return Weight.LIKELY, None
    if signs.has_worked:
        return None, None
    if signs.fails:
        return (Weight.LIKELY if trait.is_grave else Weight.SYMPTOM), None
    return (Weight.SYMPTOM, "degraded") if trait.is_grave else (None, None)


def _hosts_by_trait(log: LogFile, trait: Trait) -> _Hosts:
    """Return what each host says, or each rank or file where lines name no host."""
    host_of_file = _hosts_of_files(log)
    hosts: _Hosts = {}
    for line in log.lines_with(*trait.needles):
        place = _place(line, host_of_file)
        value = trait.read(line) if place else ""
        if place and value:
            hosts.setdefault(place, {}).setdefault(value, line)
    return hosts


def _hosts_of_files(log: LogFile) -> dict[str, _Place]:
    """Return whose each file is: that of the one host in it, or of itself if there are several."""
    hosts: dict[str, set[str]] = {}  # by file
    for line in log.lines:
        names = hosts.setdefault(line.file, set())
        if line.host:
            names.add(line.host)
    places: dict[str, _Place] = {}
    for file, names in hosts.items():
        if len(names) == 1:
            places[file] = ("host", next(iter(names)))
        elif not names and len(hosts) > 1:
            places[file] = ("file", file)
    return places


def _place(line: LogLine, host_of_file: dict[str, _Place]) -> _Place | None:
    if line.host:
        return "host", line.host
    if line.rank is not None:
        return "rank", str(line.rank)
    return host_of_file.get(line.file)


def _different(
    hosts: _Hosts,
    name: str,
    weight: Weight,
    severity: Severity | None = None,
    lacking: str = "",
    cause: str = "env_or_version_mismatch",
) -> Iterator[Evidence]:
    """Yield a line of each value if hosts differ. A host with two values is not compared."""
    values: _Values = {}
    for place, lines in hosts.items():
        if len(lines) == 1:
            ((value, line),) = lines.items()
            values.setdefault(value, {})[place] = line
    if not 2 <= len(values) <= _MOST_VALUES:
        return
    parts = [f"{value} on {_named(list(lines))}" for value, lines in values.items()]
    note = f"the hosts differ in {name}: {', '.join(parts)}"
    culprits = _culprits(values, lacking)
    for lines_of_value in values.values():
        for place, line in list(lines_of_value.items())[:_MOST_LINES]:
            blamed = tuple(culprit for culprit in culprits if culprit[1] == place[1])
            yield Evidence(
                cause,
                line,
                weight,
                blamed,
                note,
                severity,
            )


def _culprits(values: _Values, lacking: str) -> Culprits:
    """Return the hosts that differ from most, or both of two that differ."""
    counts = Counter({value: len(lines) for value, lines in values.items()})
    usual, votes = counts.most_common(1)[0]
    everyone = [place for lines in values.values() for place in lines]
    if votes * 2 > len(everyone):
        return tuple(place for place in everyone if place not in values[usual])
    if lacking in values:
        return tuple(values[lacking])
    if len(everyone) == 2:
        return tuple((f"{kind}s", name) for kind, name in everyone)
    return ()


def _named(places: list[_Place]) -> str:
    if len(places) > MOST_NAMED:
        return f"{len(places)} hosts"
    names = [f"rank {name}" if kind == "rank" else name for kind, name in places]
    return " and ".join(names)


def _different_cards(log: LogFile, weight: Weight) -> Iterator[Evidence]:
    """Yield hosts that use other cards than the rest, all ranks of a host taken together."""
    cards: dict[str, set[str]] = {}
    lines: dict[str, LogLine] = {}  # by host
    for line in log.lines_with("net/ib : using"):
        match = _CARDS.search(line.message)
        if match is None or not line.host:
            continue
        names = [card["name"] for card in _CARD.finditer(match["list"])]
        if not names:
            continue
        cards.setdefault(line.host, set()).update(names)
        lines.setdefault(line.host, line)
    hosts: _Hosts = {}
    for host, names_of_host in cards.items():
        hosts["host", host] = {_listed(names_of_host): lines[host]}
    yield from _different(hosts, "the number of cards that they use", weight)


def _listed(names: set[str]) -> str:
    """Return «8 (mlx5_0 to mlx5_7)»."""
    ordered = sorted(names, key=lambda name: (len(name), name))
    if len(ordered) == 1:
        return f"1 ({ordered[0]})"
    return f"{len(ordered)} ({ordered[0]} to {ordered[-1]})"


def _different_settings(log: LogFile) -> Iterator[Evidence]:
    """Yield settings that must be equal in a job and are not.

    Where a host lists other settings, one that it does not list is not set there.
    """
    settings: dict[str, _Hosts] = {}  # by variable
    speaking: dict[str, LogLine] = {}  # by host
    for line in log.lines_with("set by environment to"):
        match = _SETTING.search(line.message)
        if match is None or not line.host:
            continue
        speaking.setdefault(line.host, line)
        if must_match(match["name"].upper()):
            hosts = settings.setdefault(match["name"].upper(), {})
            hosts.setdefault(("host", line.host), {}).setdefault(match["value"], line)
    for name, hosts in settings.items():
        for host, line in speaking.items():
            hosts.setdefault(("host", host), {"unset": line})
        yield from _different(hosts, name, Weight.LIKELY)


def _different_networks(log: LogFile) -> Iterator[Evidence]:
    """Yield hosts in private networks of different kinds, if no connection came about.

    10.0.0.0/8 is not routed to 192.168.0.0/16 as a rule.
    """
    if not no_connection(log):
        return
    hosts: _Hosts = {}
    for line in log.lines_with("bootstrap : using", "bootstrap: using"):
        match = _BOOTSTRAP.search(line.message)
        network = private_network_of(match["address"]) if match else ""
        if network and line.host:
            hosts.setdefault(("host", line.host), {}).setdefault(network, line)
    yield from _different(
        hosts,
        "the network of their interface",
        Weight.LIKELY,
        cause="virtual_interface_selected",
    )


def _different_sizes(log: LogFile) -> Iterator[Evidence]:
    """Yield ranks that were told different sizes of a communicator that did not come about."""
    sizes: dict[str, _Lines] = {}  # by communicator
    complete: set[str] = set()
    for line in log.lines_with("commid "):
        match = _COMMUNICATOR.search(line.message)
        if match is None:
            continue
        sizes.setdefault(match["id"], {}).setdefault(match["size"], line)
        if "init complete" in line.message.lower():
            complete.add(match["id"])
    for communicator, lines in sizes.items():
        if len(lines) < 2 or communicator in complete:
            continue
        parts = [f"{size} on {line.host or line.file}" for size, line in lines.items()]
        note = f"one communicator has different numbers of ranks: {', '.join(parts)}"
        for line in lines.values():
            yield Evidence("world_size_mismatch", line, Weight.LIKELY, note=note)


def _different_gpudirect(log: LogFile) -> Iterator[Evidence]:
    """Yield hosts without GPUDirect RDMA where others have it, which is slow and no failure."""
    trait = Trait("GPUDirect RDMA", ("gpu direct rdma",), _read_gpudirect)
    hosts = _hosts_by_trait(log, trait)
    yield from _different(
        hosts,
        trait.name,
        Weight.PLAIN,
        "degraded",
        lacking="Disabled",
        cause="gpudirect_rdma_missing",
    )
