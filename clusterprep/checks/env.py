"""The effective environment: what overrides the plan, what must be equal, and whether the devices it names exist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from clusterprep.checks import Check, CheckContext, Outcome, Proof, by_value
from clusterprep.facts.environment import Paths, Setting, in_effect
from clusterprep.facts.rdma import ENV_FILES, RdmaDevice
from clusterprep.model import Absent, EnvValue, Severity
from clusterprep.model.nodeset import fold
from clusterprep.nccl.environment import FACTS, planned_environment
from clusterprep.nccl.variables.variables import nccl_reads, registry

UNSET = "unset"
OURS = frozenset(ENV_FILES.values())
DERIVED = ("NCCL_", "GLOO_", "TORCH_")  # names of what is derived from facts begin so
OWNERS = ("nccl", "torch", "ofi")
NAMING = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_HCA")


def holes(context: CheckContext) -> Iterable[Outcome]:
    """Launch paths of which nothing is known: what the others show is judged, and passes nobody."""
    for node in context.nodes:
        for path, value in context.value(node, "env.paths").items():
            if isinstance(value, Absent):
                message = f"what the {path} gives is not known: {value.detail or value.reason}"
                # A user of a container may seldom see what its first process was given.
                severity: Severity | None = "warning" if path == "container" else None
                yield Outcome(
                    "unknown", (node.name,), message, reason=value.reason, severity=severity
                )


def known(paths: Paths) -> dict[str, tuple[Setting, ...]]:
    return {path: settings for path, settings in paths.items() if not isinstance(settings, Absent)}


def place(setting: Setting) -> str:
    """«/root/.bashrc line 3»."""
    if setting.file is None:
        return "a place that its value does not tell"
    return setting.file if setting.line is None else f"{setting.file} line {setting.line}"


def cure(setting: Setting) -> str:
    """How to take a setting away."""
    if setting.file is None:
        return f"grep -rn {setting.name} /etc/environment /etc/profile.d /etc/ssh ~/.bashrc ~/.profile   # take it out"
    if setting.line is None:
        return f"grep -n {setting.name} {setting.file}   # take it out"
    return (
        f"sed -i '{setting.line}d' {setting.file}   # or put the value under env: of the inventory"
    )


def by_place(paths: Paths) -> dict[Setting, tuple[str, ...]]:
    """Every setting of a node once, with the launch paths that have it."""
    found: dict[Setting, tuple[str, ...]] = {}
    for path, settings in known(paths).items():
        for setting in settings:
            found[setting] = (*found.get(setting, ()), path)
    return found


def said(setting: Setting, where: Iterable[str]) -> str:
    return f"{setting.name}={setting.value} from {place(setting)} ({', '.join(where)})"


# ---------------------------------------------------------------- what overrides the plan


def shadow(context: CheckContext) -> Iterable[Outcome]:
    """Settings of other places that win over the value that apply wrote or would write."""
    yield from holes(context)
    environment = planned_environment(context.fleet)
    for node in context.nodes:
        values = environment.of(node.name)
        places = by_place(context.value(node, "env.paths"))
        if node.name in environment.gaps and any(_may_win(setting, values) for setting in places):
            message = f"what apply would write is not known: {environment.gaps[node.name]}"
            yield Outcome(
                "unknown", (node.name,), message, reason="the environment cannot be derived"
            )
        over = {
            setting: where for setting, where in places.items() if _wins(setting, where, values)
        }
        for setting, where in over.items():
            wanted = f"{setting.name}={values[setting.name].value}"
            message = f"{place(setting)} overrides the value that apply writes"
            yield Outcome(
                "fail", (node.name,), message, said(setting, where), wanted, cure(setting)
            )
        if not over:
            yield Outcome(
                "pass", (node.name,), "nothing overrides the environment that apply writes"
            )


def _may_win(setting: Setting, values: Mapping[str, EnvValue]) -> bool:
    """Whether a setting would override a value that could not be derived."""
    return (
        setting.name not in values and setting.file not in OURS and setting.name.startswith(DERIVED)
    )


def _wins(setting: Setting, where: tuple[str, ...], values: Mapping[str, EnvValue]) -> bool:
    value = values.get(setting.name)
    if value is None or value.value == setting.value or setting.file in OURS:
        return False
    return where != ("nccl",) or nccl_reads(setting.name)


# ---------------------------------------------------------------- equal on all nodes


def must_match(name: str) -> bool:
    """Whether ranks with different values hang or fail; search paths are for other checks."""
    entry = registry().get(name)
    return entry is not None and entry["uniformity"] == "job" and entry["owner"] in OWNERS


def uniform_settings(context: CheckContext) -> Iterable[Outcome]:
    yield from holes(context)
    nodes = tuple(node.name for node in context.nodes)
    if len(nodes) < 2:
        alone = len(context.inventory.nodes) < 2
        message = "there is nothing to be compared with"
        reason = "not_applicable" if alone else "fewer than two nodes have a value to compare"
        yield Outcome("skip" if alone else "unknown", nodes, message, reason=reason)
        return
    paths: dict[str, Paths] = context.values("env.paths")
    odd: set[str] = set()
    for path in dict.fromkeys(path for node in nodes for path in known(paths[node])):
        mine = {node: in_effect(paths[node], path) for node in nodes if path in known(paths[node])}
        for name in sorted(
            {name for settings in mine.values() for name in settings if must_match(name)}
        ):
            outcome = _compared(path, name, mine)
            if outcome is not None:
                odd.update(outcome.nodes)
                yield outcome
    if good := tuple(node for node in nodes if node not in odd):
        yield Outcome(
            "pass",
            good,
            "what must be equal is equal in every launch path",
            "",
            "equal on all nodes",
        )


def _compared(
    path: str, name: str, settings: Mapping[str, Mapping[str, Setting]]
) -> Outcome | None:
    values = {node: _value(name, mine) for node, mine in settings.items()}
    groups = by_value(values)
    default = str(registry()[name]["default"])
    if len({default if value == UNSET else value for value in values.values()}) < 2:
        return None
    usual, majority = groups[0]
    blamed = tuple(values)
    if 2 * len(majority) > len(values):
        blamed = tuple(node for node in values if node not in majority)
    seen = f"{name} in {path}: " + "; ".join(f"{value} on {fold(nodes)}" for value, nodes in groups)
    places = dict.fromkeys(
        f"{place(settings[n][name])} of {n}" for n in blamed if name in settings[n]
    )
    message = f"{name} differs, and ranks with different values hang or fail"
    message += f": {'; '.join(places)}" if places else ""
    wanted = f"{name} {usual}" if len(blamed) < len(values) else f"{name} equal on all nodes"
    return Outcome("fail", blamed, message, seen, wanted)


def _value(name: str, settings: Mapping[str, Setting]) -> str:
    return settings[name].value or UNSET if name in settings else UNSET


# ---------------------------------------------------------------- devices that exist


def devices(context: CheckContext) -> Iterable[Outcome]:
    """Every interface and HCA that a variable names, resolved as its reader does."""
    yield from holes(context)
    for node in context.nodes:
        interfaces = [interface.name for interface in context.value(node, "net.interfaces")]
        cards = context.value(node, "rdma.devices")
        bad = list(_named_wrong(context.value(node, "env.paths"), interfaces, cards))
        for outcome in bad:
            yield replace(outcome, nodes=(node.name,))
        if not bad:
            yield Outcome(
                "pass", (node.name,), "every interface and HCA that a variable names exists"
            )


def _named_wrong(
    paths: Paths, interfaces: list[str], cards: Iterable[RdmaDevice]
) -> Iterable[Outcome]:
    there = {card.name: {str(port.number) for port in card.ports} for card in cards}
    for setting, where in by_place(paths).items():
        if setting.name not in NAMING or (where == ("nccl",) and not nccl_reads(setting.name)):
            continue
        hca = setting.name == "NCCL_IB_HCA"
        existing = there if hca else {name: set[str]() for name in interfaces}
        prefix = setting.name.startswith("NCCL_")
        missing, doubled = resolved(setting.value, existing, prefix)
        seen, names = said(setting, where), ", ".join(existing) or "none"
        what = "RDMA device" if hca else "interface"
        if missing:
            message = f"there is no {what} {', '.join(missing)}"
            yield Outcome("fail", (), message, seen, f"names of: {names}", cure(setting))
        if doubled:
            message = f"NCCL matches by prefix: {'; '.join(doubled)}"
            wanted = f"{setting.name}=={setting.value}"
            yield Outcome("fail", (), message, seen, wanted, cure(setting), severity="warning")


def resolved(value: str, there: Mapping[str, set[str]], nccl: bool) -> tuple[list[str], list[str]]:
    """Items that match nothing, and items that name one device and match others too; `there`: device → its ports.

    As in NCCL's socket.cc and net_ib/init.cc: `^` and `=` are read once, at the start, and hold for the whole list.
    gloo and TensorPipe take whole names alone. A list that excludes may name what is not there.
    """
    if not value or (nccl and len(value) < 2):
        return [], []  # NCCL takes a value of one character for none
    if nccl and value.startswith("^"):
        return [], []
    exact = not nccl or value.startswith("=")
    missing, doubled = [], []
    for item in (value[1:] if nccl and exact else value).split(","):
        name, _, port = item.partition(":") if nccl else (item, "", "")
        found = [
            device for device in there if (device == name if exact else device.startswith(name))
        ]
        found = [
            device
            for device in found
            if not (port and there[device]) or port.split(":")[0] in there[device]
        ]
        if not found or not name:
            missing.append(item or "«»")
        elif len(found) > 1 and name in found:
            doubled.append(
                f"{name} takes {', '.join(other for other in found if other != name)} too"
            )
    return missing, doubled


def planted(path: str, *settings: Setting) -> Any:
    """How proofs spoil a node: it has these settings besides its own in one launch path."""
    return lambda paths: {**paths, path: (*paths[path], *settings)}


BASHRC = "/root/.bashrc"
SHADOW = Check(
    "env.shadow",
    facts=("env.paths",),
    uses=FACTS,
    judge=shadow,
    severity="warning",
    title="What overrides the environment",
    why="A line in ~/.bashrc, /etc/environment, ~/.nccl.conf or a unit of systemd wins over the files that apply "
    "writes, on this node alone: the job does not run with the values that the report shows.",
    how="What login shells, ssh commands, services, slurmd, a container and NCCL's own files give to the job's user, "
    "with file and line, against the values that apply writes. Start-up files run as that user, with a limit of 4 s.",
    remedy="sed -i '/NCCL_/d' ~/.bashrc   # the file that is named, or put the value under env: of the inventory",
    proof=Proof("env.paths", planted("login shell", Setting("NCCL_DEBUG", "INFO", BASHRC, 3))),
)
UNIFORM = Check(
    "env.nccl_uniform",
    facts=("env.paths",),
    judge=uniform_settings,
    severity="error",
    title="Variables that must be equal",
    why="NCCL and torch work some values out on each rank alone: where they differ, ranks choose other algorithms, "
    "buffers or transports and wait for each other for ever.",
    how="For every launch path the variables that the registry marks as equal in a job, NCCL's own files behind the "
    "process's environment; unset counts as the default. Those that may differ between nodes are not compared.",
    remedy="clusterprep apply INVENTORY   # after the lines that env.shadow names are gone",
    proof=Proof(
        "env.paths", planted("login shell", Setting("NCCL_BUFFSIZE", "8388608", BASHRC, 3))
    ),
)
DEVICES = Check(
    "env.nccl_hca_exists",
    facts=("env.paths", "net.interfaces", "rdma.devices"),
    judge=devices,
    severity="error",
    title="Interfaces and HCAs that variables name",
    why="NCCL_IB_HCA with a name that is not there means silently fewer network cards, or sockets instead of RDMA; a "
    "missing interface ends the start. By prefix mlx5_1 takes mlx5_10 too.",
    how="NCCL_SOCKET_IFNAME, NCCL_IB_HCA, GLOO_SOCKET_IFNAME and TP_SOCKET_IFNAME of every launch path, resolved as "
    "their readers do: by prefix unless the list begins with =, lists that begin with ^ exclude, gloo takes whole "
    "names. A prefix that takes another device by accident is a warning.",
    remedy="ls /sys/class/infiniband /sys/class/net   # write names of these, with = in front",
    proof=Proof(
        "env.paths", planted("login shell", Setting("TP_SOCKET_IFNAME", "eth9", BASHRC, 3))
    ),
)
