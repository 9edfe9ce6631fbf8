"""Judges the address that NCCL itself would bind in each launch path.

It proves that the settings that were written take effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, failed, passed, skipped, unknown
from clusterprep.facts.environment import Paths, in_effect
from clusterprep.facts.nccl_address import Answers, BoundAddress, Variable
from clusterprep.facts.network import Interface, network_of
from clusterprep.model import Absent, Fleet, Node
from clusterprep.model.fixes import fix_of, wanted_state
from clusterprep.model.memoize import once_per_fleet
from clusterprep.model.nodeset import fold
from clusterprep.nccl.interfaces import (
    FAMILY_VARIABLE,
    Pick,
    all_known,
    candidates,
    choose,
    plain,
)
from clusterprep.remedies import Remedy, sentence, shell_line

# Failures in these launch paths are warnings: it is not known whether a unit of systemd with
# variables for jobs runs a job of many nodes, for jobs are started from sessions.
LESSER = "systemd"
FIRST_INTERFACE = "NCCL_SOCKET_IFNAME is not set, so NCCL takes what it finds first"


def iface(context: CheckContext) -> Iterable[Outcome]:
    """Compare NCCL's address in every launch path with the network that reaches all nodes."""
    choice = choose(context.fleet)
    for node in context.nodes:
        answers: Answers = context.value(node, "nccl.address")
        pick = choice.picks.get(node.name)
        if not _any_library(answers):
            yield _without_library(node)
        elif pick is None:
            message = "no interface is chosen, so there is none to compare NCCL's with"
            yield unknown(node, message, "eth.iface_choice")
        else:
            yield from _judge_answers(context.fleet, node, answers, pick)


def _any_library(answers: Answers) -> bool:
    """Return whether a launch path has a libnccl, or could not be asked."""
    for answer in answers.values():
        if isinstance(answer, Absent) or answer.library is not None:
            return True
    return False


def _without_library(node: Node) -> Outcome:
    if node.gpus is None or node.gpus.count == 0:
        return skipped(node, "there is no NCCL here")
    message = (
        "there is no libnccl that the job's Python or the system would load, and GPUs are declared"
    )
    return unknown(node, message, "missing_tool")


def _judge_answers(fleet: Fleet, node: Node, answers: Answers, pick: Pick) -> Iterable[Outcome]:
    """Judge the launch paths of one node.

    A wrong path fails the node, whatever the others say; without a wrong one, a path that is not
    known leaves the node unknown.
    """
    known: dict[str, BoundAddress] = {}
    grave: dict[str, BoundAddress] = {}
    lesser: dict[str, BoundAddress] = {}
    for path, answer in answers.items():
        if isinstance(answer, Absent) or not answer.library:
            continue
        known[path] = answer
        if _is_good(fleet, node, answer, pick):
            continue
        if path.startswith(LESSER):
            lesser[path] = answer
        else:
            grave[path] = answer
    if lesser:
        failure = _wrong_address(fleet, node, lesser, pick)
        yield replace(failure, severity="warning")
    if grave:
        yield _wrong_address(fleet, node, grave, pick)
    if not lesser and not grave:
        yield _judge_without_wrong(
            fleet,
            node,
            answers,
            known,
            pick,
        )


def _judge_without_wrong(
    fleet: Fleet, node: Node, answers: Answers, known: Mapping[str, BoundAddress], pick: Pick
) -> Outcome:
    """Judge a node without a wrong path: a pass if all paths are known to be right."""
    unanswered = _first_unanswered(answers, known)
    if unanswered is not None:
        path, absent = unanswered
        message = f"{path}: {absent.detail or absent.reason}"
        return unknown(node, message, absent.reason)
    uses_other_address = any(answer.address != pick.address for answer in known.values())
    if uses_other_address:
        silent = _nodes_without_interfaces(fleet)
        if silent:
            message = f"whether NCCL's network reaches {fold(silent)} is not known"
            return unknown(node, message, "interfaces of another node", wanted=pick.name)
    names = set()
    for answer in known.values():
        names.add(_interface_name(fleet, node, answer) or pick.name)
    seen = " and ".join(sorted(names))
    verb = "reaches" if len(names) == 1 else "reach"
    message = f"NCCL itself would use {seen}, which {verb} {_all_compared(fleet)}"
    return passed(node, message, seen, pick.name)


@once_per_fleet
def _all_compared(fleet: Fleet) -> str:
    """Return the nodes whose interfaces are known, as `all_known` says it."""
    known = {node.name for node in fleet.reached}.difference(_nodes_without_interfaces(fleet))
    return all_known(known, fleet)


def _first_unanswered(
    answers: Answers, known: Mapping[str, BoundAddress]
) -> tuple[str, Absent] | None:
    """Return the first launch path without an answer.

    Paths to which the question does not apply count only if no path has an answer.
    """
    for path, answer in answers.items():
        if isinstance(answer, Absent) and answer.reason != "not_applicable":
            return path, answer
    if known:
        return None
    for path, answer in answers.items():
        if isinstance(answer, Absent):
            return path, answer
    return None


@once_per_fleet
def _nodes_without_interfaces(fleet: Fleet) -> tuple[str, ...]:
    """Return the nodes that were reached and whose interfaces are not known."""
    names = []
    for node in fleet.reached:
        interfaces = fleet.fact(node.name, "net.interfaces")
        if isinstance(interfaces, Absent):
            names.append(node.name)
    return tuple(names)


def _is_good(fleet: Fleet, node: Node, answer: BoundAddress, pick: Pick) -> bool:
    """Return whether NCCL uses the chosen address, or one that serves as well.

    Where the inventory names no interface, any other network that reaches all nodes serves as well.
    """
    if answer.address == pick.address:
        return True
    if node.interfaces.nccl is not None or answer.address is None:
        return False
    return _reaches_all(fleet, node, answer.address)


def _wrong_address(
    fleet: Fleet, node: Node, wrong: Mapping[str, BoundAddress], pick: Pick
) -> Outcome:
    """Return the failure of launch paths; the first of them stands for all."""
    path, answer = next(iter(wrong.items()))
    variable = _deciding_variable(answer)
    if variable is not None:
        variable = _with_file(fleet, node, path, variable)
    seen = _describe_address(fleet, node, answer)
    paths = " and in ".join(wrong)
    cause = FIRST_INTERFACE if variable is None else f"{variable} decides"
    message = f"NCCL would use {seen} in {paths}: {cause}"
    if answer.warning:
        message += f". It says: {answer.warning}"
    if variable is not None:
        seen = f"{seen}, as {variable} says"
    cure = _remedy(node, variable, pick)
    if _only_family_is_missing(answer, pick):
        cure = shell_line("clusterprep apply INVENTORY   # writes NCCL_SOCKET_FAMILY=AF_INET6")
    return failed(
        node,
        message,
        seen,
        pick.name,
        cure,
    )


def _only_family_is_missing(answer: BoundAddress, pick: Pick) -> bool:
    """Return whether NCCL takes IPv4 where all nodes have IPv6, as no variable tells it not to."""
    is_ipv4 = "." in (answer.address or "")
    return is_ipv4 and pick.is_ipv6 and answer.variable(FAMILY_VARIABLE) is None


def _deciding_variable(answer: BoundAddress) -> Variable | None:
    """Return the variable behind a choice: NCCL_COMM_ID makes NCCL ignore NCCL_SOCKET_IFNAME."""
    named = answer.variable("NCCL_SOCKET_IFNAME")
    # A single letter is as if unset: misc/socket.cc asks for more than one.
    if named is not None and len(named.value) < 2:
        named = None
    return answer.variable("NCCL_COMM_ID") or named or answer.variable("NCCL_SOCKET_FAMILY")


def _with_file(fleet: Fleet, node: Node, path: str, variable: Variable) -> Variable:
    """Return the variable with the file and line that set it, where the launch path shows them."""
    paths: Paths | Absent = fleet.fact(node.name, "env.paths")
    if variable.place != "environment" or isinstance(paths, Absent):
        return variable
    path_name = path.partition(" (")[0]
    setting = in_effect(paths, path_name).get(variable.name)
    if setting is None or setting.file is None or setting.value != variable.value:
        return variable
    return replace(variable, place=f"{setting.file}:{setting.line}")


def _describe_address(fleet: Fleet, node: Node, answer: BoundAddress) -> str:
    if answer.address is None:
        return f"no interface (result {answer.result} of NCCL {answer.version})"
    name = _interface_name(fleet, node, answer)
    return f"{name} {answer.address}" if name else answer.address


def _interface_name(fleet: Fleet, node: Node, answer: BoundAddress) -> str | None:
    """Return the interface that NCCL names, else the one that has its address."""
    if answer.interface:
        return answer.interface
    interfaces: tuple[Interface, ...] = fleet.fact(node.name, "net.interfaces")
    for interface in interfaces:
        for address in (*interface.ipv4, *interface.ipv6):
            if plain(address) == answer.address:
                return interface.name
    return None


def _reaches_all(fleet: Fleet, node: Node, address: str) -> bool:
    """Return whether every node known has an interface in the network of an address."""
    networks = set()
    for interface in candidates(fleet.fact(node.name, "net.interfaces")):
        for own in (*interface.ipv4, *interface.ipv6):
            if plain(own) == address:
                networks.add(network_of(own))
    if not networks:
        return False
    return all(networks <= node_networks for node_networks in _networks(fleet))


@once_per_fleet
def _networks(fleet: Fleet) -> tuple[frozenset[str], ...]:
    """Return the networks that could carry a job, of each node whose interfaces are known."""
    networks_by_node = []
    for node in fleet.reached:
        interfaces = fleet.fact(node.name, "net.interfaces")
        if isinstance(interfaces, Absent):
            continue
        networks: set[str] = set()
        for interface in candidates(interfaces):
            networks.update(map(network_of, (*interface.ipv4, *interface.ipv6)))
        networks_by_node.append(frozenset(networks))
    return tuple(networks_by_node)


def _remedy(node: Node, variable: Variable | None, pick: Pick) -> Remedy:
    """Return how to mend the choice that `variable` decides."""
    declared = node.env.get("NCCL_SOCKET_IFNAME")
    value = pick.value if declared is None else declared.value
    if variable is None:
        return _apply(value)
    if declared is not None and variable.value == declared.value:
        return sentence(
            "set NCCL_SOCKET_IFNAME={name} under `env:` of the inventory, or none; "
            "then clusterprep apply",
            name=pick.name,
        )
    if variable.name != "NCCL_SOCKET_IFNAME":
        return sentence("unset {name} where it is set; torch needs no {name}", name=variable.name)
    # /etc/nccl.conf is NCCL's last choice, and there the block of `apply` stands on top.
    if variable.place.startswith("/etc/nccl.conf:"):
        return _apply(value)
    return sentence(
        "remove {variable} there: it stands before what apply writes, NCCL_SOCKET_IFNAME={value}",
        variable=str(variable),
        value=value,
    )


def _apply(value: str) -> Remedy:
    return shell_line(
        "clusterprep apply INVENTORY   # writes NCCL_SOCKET_IFNAME={value}", value=value
    )


def _bridge(answers: Answers) -> Answers:
    """Return answers that name a bridge of Docker in every launch path; for the proof."""
    wrong = BoundAddress(
        "/usr/lib/libnccl.so.2",
        "2.21.5",
        0,
        "172.17.0.1",
        "docker0",
    )
    return dict.fromkeys(answers, wrong)


IFACE = Check(
    "nccl.iface",
    facts=("net.interfaces", "nccl.address"),
    uses=("env.paths",),
    judge=iface,
    severity="error",
    follows=("env.shadow", "env.nccl_hca_exists"),
    title="The address that NCCL itself would use",
    why="What decides is what NCCL makes of all variables and files together: a forgotten line, a "
    "trailing blank or a list such as ^docker, which lets loopback in, and ranks publish an "
    "address that no other node reaches: a hang at start.",
    how="ncclGetUniqueId of the libnccl that the job's torch would load, else of the system's, as "
    "the job's user, in the environment of the ssh command, of a login shell, of Slurm's tasks, of "
    "a container's first process and of units that set what jobs read (a warning), conf files as "
    "they are; it needs no GPU or driver. The address must be the node's own on a network that "
    "reaches all nodes; on the one declared, where one is.",
    remedy=shell_line("clusterprep apply INVENTORY   # writes NCCL_SOCKET_IFNAME"),
    fix=fix_of(wanted_state("env"), everywhere=True),
    proof=Proof("nccl.address", _bridge),
)
