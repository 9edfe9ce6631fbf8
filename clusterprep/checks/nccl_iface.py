"""The address that NCCL itself would bind, per launch path: the proof that what was written takes effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.facts.environment import Paths, in_effect
from clusterprep.facts.nccl_address import Answers, Bound, Variable
from clusterprep.facts.network import Interface
from clusterprep.model import Absent, Fleet, Node
from clusterprep.model.memoize import once_per_fleet
from clusterprep.model.nodeset import fold
from clusterprep.nccl.interfaces import Pick, candidates, choose, plain

# Whether a unit of systemd with variables for jobs runs a job of many nodes is not known; sessions are how jobs start.
LESSER = "systemd"
WRITES = "clusterprep apply   # writes NCCL_SOCKET_IFNAME={}"
ELSEWHERE = "remove {} there: it stands before what apply writes, NCCL_SOCKET_IFNAME={}"


def iface(context: CheckContext) -> Iterable[Outcome]:
    """Every launch path's NCCL answers with the node's address on the network that reaches all nodes."""
    choice = choose(context.fleet)
    for node in context.nodes:
        answers: Answers = context.value(node, "nccl.address")
        without = _without_library(node, answers)
        pick = choice.picks.get(node.name)
        if without is not None:
            yield without
        elif pick is None:
            message = "no interface is chosen, so there is none to compare NCCL's with"
            yield Outcome("unknown", (node.name,), message, reason="eth.iface_choice")
        else:
            yield from _judged(context.fleet, node, answers, pick)


def _without_library(node: Node, answers: Answers) -> Outcome | None:
    if any(isinstance(answer, Absent) or answer.library is not None for answer in answers.values()):
        return None
    if node.gpus is not None and node.gpus.count > 0:
        message = "there is no libnccl that the job's Python or the system would load, and GPUs are declared"
        return Outcome("unknown", (node.name,), message, reason="missing_tool")
    return Outcome("skip", (node.name,), "there is no NCCL here", reason="not_applicable")


def _judged(fleet: Fleet, node: Node, answers: Answers, pick: Pick) -> Iterable[Outcome]:
    """A wrong path fails the node, whatever the others say; a path that is not known leaves it unknown."""
    known = {
        path: answer
        for path, answer in answers.items()
        if isinstance(answer, Bound) and answer.library
    }
    six = [path for path, answer in known.items() if ":" in (answer.address or "")]
    bad = {
        path: a for path, a in known.items() if path not in six and not _good(fleet, node, a, pick)
    }
    lesser = {path: answer for path, answer in bad.items() if path.startswith(LESSER)}
    grave = {path: answer for path, answer in bad.items() if path not in lesser}
    if lesser:
        yield replace(_failed(fleet, node, lesser, pick), severity="warning")
    if grave:
        yield _failed(fleet, node, grave, pick)
    if not bad:
        yield _not_wrong(fleet, node, answers, known, pick)


def _not_wrong(
    fleet: Fleet, node: Node, answers: Answers, known: Mapping[str, Bound], pick: Pick
) -> Outcome:
    """No path is wrong; whether all are right."""
    six = [path for path, answer in known.items() if ":" in (answer.address or "")]
    absent = [
        (path, a)
        for path, a in answers.items()
        if isinstance(a, Absent) and a.reason != "not_applicable"
    ]
    if absent or not known:
        path, why = (
            absent[0]
            if absent
            else next((p, a) for p, a in answers.items() if isinstance(a, Absent))
        )
        return Outcome(
            "unknown", (node.name,), f"{path}: {why.detail or why.reason}", reason=why.reason
        )
    if six:
        message = f"{six[0]}: NCCL would use IPv6, and which of these addresses reach all nodes is not judged"
        return Outcome(
            "unknown", (node.name,), message, str(known[six[0]].interface), pick.name, reason="IPv6"
        )
    elsewhere = any(answer.address != pick.address for answer in known.values())
    if elsewhere and (silent := _silent(fleet)):
        message = f"whether NCCL's network reaches {fold(silent)} is not known"
        return Outcome(
            "unknown", (node.name,), message, wanted=pick.name, reason="interfaces of another node"
        )
    names = " and ".join(
        sorted({_name(fleet, node, answer) or pick.name for answer in known.values()})
    )
    return Outcome(
        "pass",
        (node.name,),
        f"NCCL itself would use {names}, which reaches all nodes",
        names,
        pick.name,
    )


@once_per_fleet
def _silent(fleet: Fleet) -> tuple[str, ...]:
    """The nodes that were reached and did not say which interfaces they have."""
    unknown = (
        node.name
        for node in fleet.reached
        if isinstance(fleet.fact(node.name, "net.interfaces"), Absent)
    )
    return tuple(unknown)


def _good(fleet: Fleet, node: Node, answer: Bound, pick: Pick) -> bool:
    """The chosen address; where the inventory names no interface any other network that reaches all serves as well."""
    if answer.address == pick.address:
        return True
    return (
        node.interfaces.nccl is None
        and answer.address is not None
        and _reaches_all(fleet, node, answer.address)
    )


def _failed(fleet: Fleet, node: Node, wrong: Mapping[str, Bound], pick: Pick) -> Outcome:
    path, answer = next(iter(wrong.items()))
    decides, place = _from_file(fleet, node, path, _decides(answer)), _place(fleet, node, answer)
    because = (
        f"{decides} decides"
        if decides
        else "NCCL_SOCKET_IFNAME is not set, so NCCL takes what it finds first"
    )
    message = f"NCCL would use {place} in {' and in '.join(wrong)}: {because}"
    if answer.warning:
        message += f". It says: {answer.warning}"
    seen = f"{place}, as {decides} says" if decides else place
    return Outcome("fail", (node.name,), message, seen, pick.name, _remedy(node, decides, pick))


def _decides(answer: Bound) -> Variable | None:
    """The variable behind a choice: NCCL_COMM_ID makes NCCL ignore NCCL_SOCKET_IFNAME."""
    named = answer.variable("NCCL_SOCKET_IFNAME")
    if (
        named is not None and len(named.value) < 2
    ):  # as if unset: misc/socket.cc asks for more than one letter
        named = None
    return answer.variable("NCCL_COMM_ID") or named or answer.variable("NCCL_SOCKET_FAMILY")


def _from_file(fleet: Fleet, node: Node, path: str, variable: Variable | None) -> Variable | None:
    """The variable with the file and line behind the environment, where the launch path's own look found them."""
    paths: Paths | Absent = fleet.fact(node.name, "env.paths")
    if variable is None or variable.place != "environment" or isinstance(paths, Absent):
        return variable
    known = in_effect(paths, path.partition(" (")[0]).get(variable.name)
    if known is None or known.file is None or known.value != variable.value:
        return variable
    return replace(variable, place=f"{known.file}:{known.line}")


def _place(fleet: Fleet, node: Node, answer: Bound) -> str:
    if answer.address is None:
        return f"no interface (result {answer.result} of NCCL {answer.version})"
    name = _name(fleet, node, answer)
    return f"{name} {answer.address}" if name else answer.address


def _name(fleet: Fleet, node: Node, answer: Bound) -> str | None:
    """The interface, as NCCL says it, else as its address tells."""
    interfaces: tuple[Interface, ...] = fleet.fact(node.name, "net.interfaces")
    held = (i.name for i in interfaces for a in i.ipv4 if plain(a) == answer.address)
    return answer.interface or next(held, None)


def _reaches_all(fleet: Fleet, node: Node, address: str) -> bool:
    """Whether an address is on a network in which every node known has an interface that could carry a job."""
    mine = {
        network
        for i in candidates(fleet.fact(node.name, "net.interfaces"))
        for a, network in zip(i.ipv4, i.networks, strict=True)
        if plain(a) == address
    }
    return bool(mine) and all(mine <= networks for networks in _networks(fleet))


@once_per_fleet
def _networks(fleet: Fleet) -> tuple[frozenset[str], ...]:
    """The networks that could carry a job, of each node whose interfaces are known."""
    found = [fleet.fact(node.name, "net.interfaces") for node in fleet.reached]
    known = [own for own in found if not isinstance(own, Absent)]
    return tuple(
        frozenset(network for i in candidates(own) for network in i.networks) for own in known
    )


def _remedy(node: Node, decides: Variable | None, pick: Pick) -> str:
    declared = node.env.get("NCCL_SOCKET_IFNAME")
    value = declared.value if declared else pick.value
    if declared and decides and decides.value == declared.value:
        return f"NCCL_SOCKET_IFNAME={pick.name} under `env:` of the inventory, or none; then clusterprep apply"
    # /etc/nccl.conf is NCCL's last choice, and there our block stands on top.
    if decides is None or (
        decides.name == "NCCL_SOCKET_IFNAME" and decides.place.startswith("/etc/nccl.conf:")
    ):
        return WRITES.format(value)
    if decides.name == "NCCL_SOCKET_IFNAME":
        return ELSEWHERE.format(decides, value)
    return f"unset {decides.name} where it is set; torch needs no {decides.name}"


def _bridge(found: Answers) -> Answers:
    wrong = Bound("/usr/lib/libnccl.so.2", "2.21.5", 0, "172.17.0.1", "docker0")
    return dict.fromkeys(found, wrong)


IFACE = Check(
    "nccl.iface",
    facts=("net.interfaces", "nccl.address"),
    uses=("env.paths",),
    judge=iface,
    severity="error",
    title="The address that NCCL itself would use",
    why="What decides is what NCCL makes of all variables and files together: a forgotten line, a trailing blank or a "
    "list such as ^docker, which lets loopback in, and ranks publish an address that nobody reaches: a hang at start.",
    how="ncclGetUniqueId of the libnccl that the job's torch would load, else of the system's, as the job's user, in "
    "the environment of the ssh command, of a login shell, of Slurm's tasks, of a container's first process and of "
    "units that set what jobs read (a warning), conf files as they are; it needs no GPU or driver. The address must be "
    "the node's own on a network that reaches all nodes; on the one declared, where one is.",
    remedy="clusterprep apply   # writes NCCL_SOCKET_IFNAME",
    proof=Proof("nccl.address", _bridge),
)
