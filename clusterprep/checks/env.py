"""The effective environment of the launch paths.

Which settings override the planned ones, which must be equal, and whether the devices that they
name exist.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from clusterprep.checks import (
    EQUAL,
    NO_PEER,
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    by_value,
    failed,
    names_of,
    passed,
    unknown,
    with_nodes,
)
from clusterprep.facts.env_files import PROFILE, is_ours
from clusterprep.facts.environment import Paths, Setting, in_effect
from clusterprep.facts.rdma import RdmaDevice
from clusterprep.model import Absent, EnvValue, Inventory, Node, Severity
from clusterprep.model.fixes import Fix, fix_of, wanted_state
from clusterprep.model.secrets import REDACTED
from clusterprep.nccl.environment import FACTS, Environment, planned_environment
from clusterprep.nccl.interfaces import INTERFACES
from clusterprep.nccl.rails import HARDWARE
from clusterprep.nccl.variables.variables import conf_file_has_effect, registry
from clusterprep.remedies import Remedy, sentence, shell_line

UNSET = "unset"
DERIVED = ("NCCL_", "GLOO_", "TORCH_")  # names of what is derived from facts begin so
OWNERS = ("nccl", "torch", "ofi")
HCA = "NCCL_IB_HCA"
NAMING = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", HCA)
BASHRC = "/root/.bashrc"

OTHER_SHELL = sentence(
    "apply to all nodes; where a login shell is zsh, fish or csh, which does not read "
    "/etc/profile.d, with ssh among env_targets of the inventory"
)

SettingsByNode = Mapping[str, Mapping[str, Setting]]
"""Node → name of a variable → its setting, in one launch path."""


def unread_paths(context: CheckContext) -> Iterable[Outcome]:
    """Yield «unknown» for each launch path that could not be read.

    The other launch paths of the node are judged; the node does not pass.
    """
    for nodes in context.alike("env.paths"):
        paths: Paths = context.value(nodes[0], "env.paths")
        for path, value in paths.items():
            if not isinstance(value, Absent):
                continue
            detail = value.detail or value.reason
            message = f"what the {path} gives is not known: {detail}"
            # A user of a container may seldom see what its first process was given.
            severity: Severity | None = "warning" if path == "container" else None
            outcome = unknown(nodes[0], message, value.reason, severity=severity)
            yield from about_all(nodes, [outcome])


def alike_in_plan(
    context: CheckContext, environment: Environment, *facts: str
) -> Iterable[tuple[Node, ...]]:
    """Return the nodes in classes with the same values of these facts and the same planned values.

    They stand in the order of their first nodes.
    """
    classes: list[tuple[Node, ...]] = []
    for nodes in context.alike(*facts):
        by_plan: dict[object, list[Node]] = {}
        for node in nodes:
            # Nodes with the same planned values share one mapping.
            plan = (id(environment.of(node.name)), environment.gaps.get(node.name))
            by_plan.setdefault(plan, []).append(node)
        classes.extend(map(tuple, by_plan.values()))
    return sorted(classes, key=lambda nodes: nodes[0].index)


def known_settings(paths: Paths) -> dict[str, tuple[Setting, ...]]:
    """Return the launch paths that could be read, with their settings."""
    return {path: settings for path, settings in paths.items() if not isinstance(settings, Absent)}


def place(setting: Setting) -> str:
    """Return where a setting is made: «/root/.bashrc line 3»."""
    if setting.file is None:
        return "a place that its value does not tell"
    if setting.line is None:
        return setting.file
    return f"{setting.file} line {setting.line}"


def removal_command(setting: Setting, inventory: Inventory) -> Remedy:
    """Return a command that comments a setting out, or one that finds it.

    The line is found by its text and never by its number: pasted twice, after another fix or on
    another node, the command changes no other line. A file that apply writes is left to apply.
    """
    if setting.file is not None and is_ours(setting.file, inventory):
        return shell_line(
            "clusterprep apply INVENTORY   # it writes {file}, by env: of the inventory",
            file=setting.file,
        )
    if setting.file is None:
        return shell_line(
            "grep -rn {name} /etc/environment /etc/profile.d /etc/ssh ~/.bashrc ~/.profile"
            "   # take it out",
            name=setting.name,
        )
    if setting.line is None or not _can_be_matched(setting):
        return shell_line(
            "grep -n {name} {file}   # take it out", name=setting.name, file=setting.file
        )
    return shell_line(
        "sed -i --follow-symlinks -E {script} {file}"
        "   # comments line {line} out; or put the value under env: of the inventory",
        script=f"s/^{_assignment(setting)}$/# &/",
        file=setting.file,
        line=setting.line,
    )


def removal_fix(setting: Setting, inventory: Inventory) -> Fix | None:
    """Return what comments a setting out.

    None where it is not known which line makes it, and where apply has written that line: it would
    write it again.
    """
    if setting.file is None or setting.line is None or is_ours(setting.file, inventory):
        return None
    return fix_of(wanted_state("unset", path=setting.file, name=setting.name))


def removal_fix_of_odd(
    context: CheckContext, odd: Iterable[str], variables: Collection[str]
) -> Fix | None:
    """Return what comments a setting out on the nodes that differ.

    None where the others have a setting too, or where those that differ have it in several places.
    """
    odd = frozenset(odd)
    fixes: list[Fix | None] = []
    for nodes in context.alike("env.paths"):
        paths: Paths = context.value(nodes[0], "env.paths")
        settings = [setting for setting in settings_by_place(paths) if setting.name in variables]
        if not odd.issuperset(names_of(nodes)) and settings:
            return None
        if not odd.isdisjoint(names_of(nodes)):
            fixes.extend(removal_fix(setting, context.inventory) for setting in settings)
            if not settings:
                fixes.append(None)
    is_one = len(odd) < len(context.nodes) and all(fix == fixes[0] for fix in fixes)
    return fixes[0] if fixes and is_one else None


def _can_be_matched(setting: Setting) -> bool:
    """Return whether the text of the line can be told from the value."""
    return setting.value.isprintable() and REDACTED not in setting.value


def _assignment(setting: Setting) -> str:
    """Return a regular expression of sed for a line that only makes this setting."""
    prefix = r"\s*(export\s+|Environment=)?"
    name, value = escape_for_sed(setting.name), escape_for_sed(setting.value)
    # \x27 is the single quote.
    return rf"{prefix}[\x22\x27]?{name}=[\x22\x27]?{value}[\x22\x27]?\s*"


def escape_for_sed(text: str) -> str:
    """Return an extended regular expression of sed that matches only this text, for s/…/."""
    return re.sub(r"[][\\.^$*+?(){}|/]", r"\\\g<0>", text)


def settings_by_place(paths: Paths) -> dict[Setting, tuple[str, ...]]:
    """Return every setting of a node once, with the launch paths that have it."""
    places: dict[Setting, tuple[str, ...]] = {}
    for path, settings in known_settings(paths).items():
        for setting in settings:
            places[setting] = (*places.get(setting, ()), path)
    return places


def describe_setting(setting: Setting, where: Iterable[str]) -> str:
    """Return a setting as findings show it: value, place and launch paths."""
    launch_paths = ", ".join(where)
    return f"{setting.name}={setting.value} from {place(setting)} ({launch_paths})"


# ---------------------------------------------------------------- what overrides the plan


def _every_path(context: CheckContext, node: Node) -> Paths:
    """Return the launch paths of jobs, and those of cron and the engines where they are known."""
    paths: Paths = context.value(node, "env.paths")
    others: Paths | Absent | None = context.value(node, "env.other_paths")
    return paths if isinstance(others, Absent) or others is None else {**paths, **others}


def shadow(context: CheckContext) -> Iterable[Outcome]:
    """Judge that no other place overrides a value that apply wrote or would write."""
    yield from unread_paths(context)
    environment = planned_environment(context.fleet)
    for nodes in alike_in_plan(context, environment, "env.paths", "env.other_paths"):
        yield from about_all(nodes, _overriding(context, nodes[0], environment))


def _overriding(context: CheckContext, node: Node, environment: Environment) -> Iterable[Outcome]:
    """Yield what overrides the planned values of one node."""
    values = environment.of(node.name)
    places = settings_by_place(_every_path(context, node))
    gap = environment.gaps.get(node.name)
    others = [setting for setting in places if not is_ours(setting.file, context.inventory)]
    if gap is not None and any(_may_win(setting, values) for setting in others):
        message = f"what apply would write is not known: {gap}"
        yield unknown(node, message, "the environment cannot be derived")
    is_overridden = False
    for setting in others:
        where = places[setting]
        if not _wins(setting, where, values):
            continue
        is_overridden = True
        planned = values[setting.name].value
        wanted = f"{setting.name}={planned}"
        message = f"{place(setting)} overrides the value that apply writes"
        yield failed(
            node,
            message,
            describe_setting(setting, where),
            wanted,
            removal_command(setting, context.inventory),
            fix=removal_fix(setting, context.inventory),
        )
    if not is_overridden:
        yield passed(node, "nothing overrides the environment that apply writes")


def _may_win(setting: Setting, values: Mapping[str, EnvValue]) -> bool:
    """Return whether a setting would override a value that could not be derived."""
    if setting.name in values:
        return False
    return setting.name.startswith(DERIVED)


def _wins(setting: Setting, where: tuple[str, ...], values: Mapping[str, EnvValue]) -> bool:
    value = values.get(setting.name)
    if value is None or value.value == setting.value:
        return False
    return _is_read(setting, where)


def _is_read(setting: Setting, where: tuple[str, ...]) -> bool:
    """Return whether a setting has a reader: NCCL's own files serve NCCL alone."""
    if where == ("nccl",):
        return conf_file_has_effect(setting.name)
    return True


# ---------------------------------------------------------------- equal on all nodes


def must_match(name: str) -> bool:
    """Return whether ranks with different values of a variable hang or fail.

    Search paths are left to other checks.
    """
    entry = registry().get(name)
    if entry is None or entry["uniformity"] != "job":
        return False
    return entry["owner"] in OWNERS


def uniform_settings(context: CheckContext) -> Iterable[Outcome]:
    """Judge that variables which must be equal in a job are equal, in each launch path."""
    yield from unread_paths(context)
    names = context.names
    if len(names) < 2:
        yield _nothing_to_compare(context, names)
        return
    blamed: set[str] = set()
    for path, settings in _by_path(context).items():
        for variable in _variables_to_compare(settings):
            outcome = _compare_variable(path, variable, settings)
            if outcome is not None:
                blamed.update(outcome.nodes)
                fix = removal_fix_of_odd(context, outcome.nodes, (variable,))
                yield replace(outcome, fix=fix)
    good = tuple(name for name in names if name not in blamed)
    if good:
        message = "what must be equal is equal in every launch path"
        yield Outcome(
            "pass",
            good,
            message,
            "",
            EQUAL,
        )


def _nothing_to_compare(context: CheckContext, names: tuple[str, ...]) -> Outcome:
    message = "there is nothing to be compared with"
    if len(context.inventory.nodes) < 2:
        return Outcome("skip", names, message, reason="not_applicable")
    reason = NO_PEER
    return Outcome("unknown", names, message, reason=reason)


def _by_path(context: CheckContext) -> dict[str, dict[str, Mapping[str, Setting]]]:
    """Return for each launch path the settings in effect, by node and name of the variable.

    Nodes that are alike share one mapping, and stand together.
    """
    by_path: dict[str, dict[str, Mapping[str, Setting]]] = {}
    for nodes in context.alike("env.paths"):
        names = [node.name for node in nodes]
        paths: Paths = context.value(nodes[0], "env.paths")
        for path in known_settings(paths):
            settings = in_effect(paths, path)
            by_path.setdefault(path, {}).update(dict.fromkeys(names, settings))
    return by_path


def _variables_to_compare(settings: SettingsByNode) -> list[str]:
    names: set[str] = set()
    for settings_of_node in {id(each): each for each in settings.values()}.values():
        names.update(filter(must_match, settings_of_node))
    return sorted(names)


def _compare_variable(path: str, variable: str, settings: SettingsByNode) -> Outcome | None:
    """Return a failure if nodes differ in a variable; unset counts as the variable's default."""
    default = str(registry()[variable]["default"])
    values: dict[str, str] = {}
    effective = set()
    for node, settings_of_node in settings.items():
        setting = settings_of_node.get(variable)
        value = setting.value if setting is not None else ""
        values[node] = value or UNSET
        effective.add(default if values[node] == UNSET else value)
    if len(effective) < 2:
        return None
    groups = by_value(values)
    usual, majority = groups[0]
    blamed = tuple(values)
    wanted = f"{variable} {EQUAL}"
    if 2 * len(majority) > len(values):
        usual_nodes = frozenset(majority)
        blamed = tuple(node for node in values if node not in usual_nodes)
        wanted = f"{variable} {usual}"
    message = f"{variable} differs, and ranks with different values hang or fail"
    seen = f"{variable} in {path}: {with_nodes(groups)}"
    places = _places_of(variable, blamed, settings)
    if places:
        message += f": {places}"
    of_variable = [settings_of_node.get(variable) for settings_of_node in settings.values()]
    remedy = _cure_of_shell(of_variable) if path == "login shell" else None
    return Outcome(
        "fail",
        blamed,
        message,
        seen,
        wanted,
        remedy,
    )


def _cure_of_shell(settings: Iterable[Setting | None]) -> Remedy | None:
    """Return what helps login shells that lack what apply wrote for them, None for other causes."""
    found = set(settings)
    written = found - {None}
    is_lacking = None in found
    is_ours = all(setting is not None and setting.file == PROFILE for setting in written)
    return OTHER_SHELL if is_lacking and is_ours and len(written) == 1 else None


def _places_of(variable: str, nodes: Iterable[str], settings: SettingsByNode) -> str:
    texts: dict[str, None] = {}  # an ordered set
    for node in nodes:
        setting = settings[node].get(variable)
        if setting is not None:
            texts[f"{place(setting)} of {node}"] = None
    return "; ".join(texts)


# ---------------------------------------------------------------- devices that exist


def devices(context: CheckContext) -> Iterable[Outcome]:
    """Judge that the interfaces and HCAs that variables name exist, resolved as readers do."""
    yield from unread_paths(context)
    for nodes in context.alike("env.paths", parts=(INTERFACES, HARDWARE)):
        node = nodes[0]
        paths: Paths = context.value(node, "env.paths")
        interfaces = [interface.name for interface in context.value(node, "net.interfaces")]
        cards = context.value(node, "rdma.devices")
        wrong = list(_named_wrong(paths, interfaces, cards, context.inventory))
        for outcome in wrong:
            yield replace(outcome, nodes=names_of(nodes))
        if not wrong:
            good = passed(node, "every interface and HCA that a variable names exists")
            yield from about_all(nodes, [good])


def _named_wrong(
    paths: Paths, interfaces: list[str], cards: Iterable[RdmaDevice], inventory: Inventory
) -> Iterable[Outcome]:
    """Yield failures without nodes."""
    ports_of_cards: dict[str, set[str]] = {}
    for card in cards:
        ports_of_cards[card.name] = {str(port.number) for port in card.ports}
    for setting, where in settings_by_place(paths).items():
        if setting.name not in NAMING or not _is_read(setting, where):
            continue
        existing = ports_of_cards
        what = "RDMA device"
        if setting.name != HCA:
            existing = {name: set() for name in interfaces}
            what = "interface"
        is_nccl = setting.name.startswith("NCCL_")
        missing, doubled = resolved(setting.value, existing, is_nccl)
        seen = describe_setting(setting, where)
        if missing:
            message = f"there is no {what} {', '.join(missing)}"
            names = ", ".join(existing) or "none"
            yield Outcome(
                "fail",
                (),
                message,
                seen,
                f"names of: {names}",
                removal_command(setting, inventory),
                fix=removal_fix(setting, inventory),
            )
        if doubled:
            message = f"NCCL matches by prefix: {'; '.join(doubled)}"
            wanted = f"{setting.name}=={setting.value}"
            remedy = removal_command(setting, inventory)
            yield Outcome("fail", (), message, seen, wanted, remedy, severity="warning")


def resolved(
    value: str, ports_of_devices: Mapping[str, set[str]], nccl: bool
) -> tuple[list[str], list[str]]:
    """Return the items of a list of devices that match nothing, and those that match too much.

    The latter name one device and are prefixes of others.
    """
    items, is_exact = _items(value, nccl)
    missing: list[str] = []
    doubled: list[str] = []
    for item in items:
        name, port = item, ""
        if nccl:
            name, _, port = item.partition(":")
        matches = _matches(name, port, is_exact, ports_of_devices)
        if not matches or not name:
            missing.append(item or "«»")
        elif len(matches) > 1 and name in matches:
            others = ", ".join(match for match in matches if match != name)
            doubled.append(f"{name} takes {others} too")
    return missing, doubled


def _items(value: str, nccl: bool) -> tuple[list[str], bool]:
    """Return the items of a list of devices, and whether they are whole names instead of prefixes.

    As in NCCL's socket.cc and net_ib/init.cc, `^` and `=` are read once, at the start, and hold for
    the whole list. A list that excludes may name what does not exist, so it has no items here. gloo
    and TensorPipe (`nccl` is false) take whole names alone.
    """
    if not nccl:
        return value.split(",") if value else [], True
    # NCCL takes a value of one character for none.
    if len(value) < 2 or value.startswith("^"):
        return [], False
    is_exact = value.startswith("=")
    return value.removeprefix("=").split(","), is_exact


def _matches(
    name: str, port: str, is_exact: bool, ports_of_devices: Mapping[str, set[str]]
) -> list[str]:
    """Return the devices that an item takes. Devices without known ports match any port."""
    port_number = port.partition(":")[0]
    matches = []
    for device, ports in ports_of_devices.items():
        if is_exact and device != name:
            continue
        if not device.startswith(name):
            continue
        if port and ports and port_number not in ports:
            continue
        matches.append(device)
    return matches


def with_settings(path: str, *settings: Setting) -> Any:
    """Return a `turn` for proofs: it adds settings to one launch path of a node."""
    return lambda paths: {
        **paths,
        path: (*paths[path], *settings),
    }


SHADOW = Check(
    "env.shadow",
    facts=("env.paths",),
    uses=(*FACTS, "env.other_paths"),
    judge=shadow,
    severity="warning",
    title="What overrides the environment",
    why="A line in ~/.bashrc, /etc/environment, ~/.nccl.conf or a unit of systemd wins over the "
    "files that apply writes, on this node alone: the job does not run with the values that the "
    "report shows.",
    how="What login shells, ssh commands, cron, services, slurmd, containers and NCCL's own files "
    "give to the job's user, with file and line, against the values that apply writes. Start-up "
    "files run as that user, with a limit of 4 s.",
    remedy=shell_line(
        "grep -n NCCL_ ~/.bashrc   # out of the file that is named, or put the value under env: "
        "of the inventory"
    ),
    proof=Proof(
        "env.paths", with_settings("login shell", Setting("NCCL_DEBUG", "INFO", BASHRC, 3))
    ),
)
UNIFORM = Check(
    "env.nccl_uniform",
    facts=("env.paths",),
    judge=uniform_settings,
    severity="error",
    follows=("env.nccl_debug",),
    title="Variables that must be equal",
    why="NCCL and torch work some values out on each rank alone: where they differ, ranks choose "
    "other algorithms, buffers or transports and wait for each other for ever.",
    how="For every launch path the variables that the registry marks as equal in a job, NCCL's "
    "own files behind the process's environment; unset counts as the default. Those that may "
    "differ between nodes are not compared.",
    remedy=shell_line(
        "clusterprep apply INVENTORY   # after the lines that env.shadow names are gone"
    ),
    proof=Proof(
        "env.paths", with_settings("login shell", Setting("NCCL_BUFFSIZE", "8388608", BASHRC, 3))
    ),
)
DEVICES = Check(
    "env.nccl_hca_exists",
    facts=("env.paths", "net.interfaces", "rdma.devices"),
    judge=devices,
    severity="error",
    follows=("env.shadow",),
    title="Interfaces and HCAs that variables name",
    why="NCCL_IB_HCA with a name that is not there means silently fewer network cards, or sockets "
    "instead of RDMA; a missing interface ends the start. By prefix mlx5_1 takes mlx5_10 too.",
    how="NCCL_SOCKET_IFNAME, NCCL_IB_HCA, GLOO_SOCKET_IFNAME and TP_SOCKET_IFNAME of every launch "
    "path, resolved as their readers do: by prefix unless the list begins with =, lists that "
    "begin with ^ exclude, gloo takes whole names. A prefix that takes another device by accident "
    "is a warning.",
    remedy=shell_line(
        "ls /sys/class/infiniband /sys/class/net   # write names of these, with = in front"
    ),
    proof=Proof(
        "env.paths", with_settings("login shell", Setting("TP_SOCKET_IFNAME", "eth9", BASHRC, 3))
    ),
)
