"""Slurm's files against the machine, and the state in which Slurm has a node."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    each,
    failed,
    machine,
    passed,
    skipped,
    uniform,
    unknown,
)
from clusterprep.facts.cpu import Cpus
from clusterprep.facts.gpu import DeviceNodes, Function, Nvml
from clusterprep.facts.slurm import (
    Gres,
    GresLine,
    NodeLine,
    SlurmFiles,
    SlurmState,
    core_of_numa,
    count_of,
    memory_in,
)
from clusterprep.model import Absent, Node
from clusterprep.model.fact_columns import Part
from clusterprep.model.nodeset import fold
from clusterprep.remedies import Remedy, sentence, shell_line

SLURMD_C: Remedy = shell_line(
    "slurmd -C   # what slurm.conf should say of this machine; slurmd -G reads gres.conf as it is"
)
DEVICE = "/dev/nvidia"
OTHER_VENDORS = ("rsmi", "oneapi", "nrt", "nrm")  # of AutoDetect=
BY_NVML = ("nvml", "nvidia")
CONSTRAINTS = ("constraindevices", "constraincores", "constrainramspace")
USED_LEAST = 0.5  # of the machine's memory; less is a wrong unit or another machine
OWN = "clusterprep: "  # how examples/slurm/clusterprep-drain begins its reasons
OUT = frozenset(
    {
        "DOWN",
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "ERROR",
        "FAIL",
        "FAILING",
        "INVAL",
        "INVALID_REG",
        "NOT_RESPONDING",
        "UNKNOWN",
    }
)


class Problem(Struct, frozen=True):
    """What is wrong on a node, or with `reason` what could not be judged there."""

    message: str
    seen: str = ""
    wanted: str = ""
    remedy: Remedy | None = None
    reason: str = ""


class Place(Struct, frozen=True):
    """A node as Slurm's files name it, and the facts about its machine."""

    node: Node
    name: str
    line: NodeLine
    files: SlurmFiles
    context: CheckContext

    def fact(self, name: str) -> Any:
        """Return the value of a fact of this node, or an Absent."""
        return self.context.value(self.node, name)


# ---------------------------------------------------------------- slurm.gres


def gres(context: CheckContext) -> Iterable[Outcome]:
    """Yield what differs between Slurm's files and the machine, and between files of nodes."""
    places = []
    for node in context.nodes:
        files: SlurmFiles = context.value(node, "slurm.files")
        host = context.value(node, "host.name")
        found = files.node(host)
        if found is None:
            message = f"slurm.conf names no node {host.partition('.')[0]}"
            yield skipped(node, message)
            continue
        places.append(
            Place(
                node,
                *found,
                files,
                context,
            )
        )
    troubled: set[str] = set()
    for outcome in _differences(places):
        troubled.update(outcome.nodes)
        yield outcome
    for place in places:
        problems = list(_problems(place))
        for problem in problems:
            yield _outcome(place.node, problem)
        if not problems and place.node.name not in troubled:
            yield _fits(place)


def _outcome(node: Node, problem: Problem) -> Outcome:
    parts = (problem.seen, problem.wanted, problem.remedy)
    if problem.reason:
        return unknown(node, problem.message, problem.reason, *parts)
    return failed(node, problem.message, *parts)


def _fits(place: Place) -> Outcome:
    """Return the pass of a node, with what Slurm has of it."""
    source = ", which slurmctld sent" if place.files.configless else ""
    seen = f"{_cpus_of(place.line)} CPUs, {place.line.memory or 1} MiB"
    gpus = count_of(place.line.gres, "gpu")
    if gpus:
        seen += f", {gpus} × gpu"
    message = f"Slurm's files{source} say what this machine is"
    if _overridden(place.files):
        message = f"Slurm takes its files{source} for true, whatever the machine has"
    return passed(place.node, message, seen, "as the machine")


def _overridden(files: SlurmFiles) -> bool:
    return "config_overrides" in files.words("slurmdparameters")


def _problems(place: Place) -> Iterator[Problem]:
    if not _overridden(place.files):
        yield from _cpu_problems(place)
        yield from _memory_problems(place)
    yield from _gpu_problems(place)
    yield from _confinement(place)
    yield from _limits(place)
    yield from _scripts(place)


# ---------------------------------------------------------------- processors and memory


def _product(line: NodeLine) -> int | None:
    """Return sockets × cores × threads, None where slurm.conf gives none of them."""
    parts = (line.sockets, line.cores_per_socket, line.threads_per_core)
    if parts == (None, None, None):
        return None
    return math.prod(part or 1 for part in parts)


def _cpus_of(line: NodeLine) -> int:
    """Return how many CPUs Slurm gives to jobs: CPUs=, else the product of the others, else 1."""
    return line.cpus or _product(line) or 1


def _cpu_problems(place: Place) -> Iterator[Problem]:
    """Yield what is wrong with CPUs, Sockets, CoresPerSocket and ThreadsPerCore."""
    line = place.line
    has: Cpus = place.fact("cpu.processors")
    configured = max(_cpus_of(line), (_product(line) or 0) if line.sockets else 0)
    wanted = f"{has.cpus} CPUs, or {has.cores} cores"
    seen = f"{configured} CPUs"
    if configured > has.cpus:
        message = (
            "slurm.conf gives this node more CPUs than the machine has, so Slurm takes it out of "
            "service"
        )
        yield Problem(message, seen, wanted)
    elif configured not in (has.cpus, has.cores):
        message = "slurm.conf gives this node fewer CPUs than the machine has: the rest stays idle"
        yield Problem(message, seen, wanted)
    elif _all_given(line) and _cores_of(line) != has.cores:
        message = "slurm.conf has other cores and threads than the machine: tasks are bound wrongly"
        if _cores_of(line) < has.cores:
            message = (
                "slurm.conf gives this node fewer cores than the machine has: the rest is idle"
            )
        seen = f"{_cores_of(line)} cores with {line.threads_per_core} threads each"
        wanted = f"{has.cores} cores with {has.cpus // has.cores} threads each"
        yield Problem(message, seen, wanted)


def _all_given(line: NodeLine) -> bool:
    return None not in (line.sockets, line.cores_per_socket, line.threads_per_core)


def _cores_of(line: NodeLine) -> int:
    return (line.sockets or 1) * (line.cores_per_socket or 1)


def _memory_problems(place: Place) -> Iterator[Problem]:
    """Yield what is wrong with RealMemory, which is 1 MiB where it is not written."""
    total = memory_in(place.fact("mem.total"))
    configured = place.line.memory
    counted = "memory" in ",".join(place.files.words("selecttypeparameters"))
    seen = f"RealMemory={configured or 1}"
    wanted = f"at most {total} MiB"
    if configured is not None and configured > total:
        message = (
            "slurm.conf gives this node more memory than the machine has, so Slurm takes it out of "
            "service"
        )
        yield Problem(message, seen, wanted)
    elif counted and configured is None:
        message = "slurm.conf gives no RealMemory, and jobs are given memory: all of it is 1 MiB"
        yield Problem(message, seen, wanted)
    elif counted and configured is not None and configured < total * USED_LEAST:
        message = "jobs get less than half of this machine's memory: is RealMemory in MiB?"
        yield Problem(message, seen, wanted)


# ---------------------------------------------------------------- GPUs


def _gpu_problems(place: Place) -> Iterator[Problem]:
    """Yield what is wrong with Gres=gpu and gres.conf, for GPUs of NVIDIA."""
    configured = count_of(place.line.gres, "gpu")
    lines = [line for line in place.files.gres_of(place.name) if line.name in ("gpu", "")]
    if _is_of_others(lines):
        return
    devices: DeviceNodes | Absent = place.fact("gpu.nodes")
    if isinstance(devices, Absent):
        if configured:
            yield Problem("the GPUs of this machine are not known", reason=devices.reason)
        return
    minors = sorted(devices.nodes)
    files = [file for line in lines for file in line.files]
    missing = [file for file in files if _minor(file) not in minors]
    if missing:
        message = "gres.conf names devices that do not exist: slurmd does not start with it"
        yield Problem(message, _folded(missing), _device_names(minors))
        return
    if _has_parts(place, lines):
        return
    yield from _count_problems(place, lines, configured, len(minors))
    yield from _type_problems(place, lines)
    yield from _core_problems(place, lines)


def _is_of_others(lines: Iterable[GresLine]) -> bool:
    """Return whether gres.conf is about accelerators that are not NVIDIA's."""
    for line in lines:
        if line.detect in OTHER_VENDORS:
            return True
        if any(not file.startswith(DEVICE) for file in line.files):
            return True
    return False


def _minor(file: str) -> int | None:
    number = file.removeprefix(DEVICE)
    return int(number) if number.isascii() and number.isdigit() else None


def _device_names(minors: Sequence[int]) -> str:
    if not minors:
        return f"no {DEVICE}N exists"
    return _folded(f"{DEVICE}{minor}" for minor in minors)


def _folded(files: Iterable[str]) -> str:
    """Return files of one folder as «/dev/nvidia[0-3]»."""
    names = [file.removeprefix("/dev/") for file in files]
    return f"/dev/{fold(names)}"


def _has_parts(place: Place, lines: Iterable[GresLine]) -> bool:
    """Return whether Slurm may give parts of GPUs, so that their number is another."""
    if any(line.together for line in lines):
        return True
    mig = place.fact("gpu.mig")
    if isinstance(mig, Absent):
        return False
    return any(not isinstance(modes, Absent) and modes[0] for modes in mig.values())


def _count_problems(
    place: Place, lines: Sequence[GresLine], configured: int, existing: int
) -> Iterator[Problem]:
    seen = f"{configured} × gpu in slurm.conf"
    wanted = f"{existing} in the machine"
    if configured > existing:
        message = (
            "slurm.conf gives this node more GPUs than the machine has, so Slurm takes it out of "
            "service"
        )
        yield Problem(message, seen, wanted)
    elif configured < existing:
        message = "slurm.conf gives this node fewer GPUs than the machine has: the rest stays idle"
        yield Problem(message, seen, wanted)
    if not configured or any(line.detect in BY_NVML for line in lines):
        return
    if not any(line.files for line in lines):
        message = (
            "gres.conf says neither File= nor AutoDetect= for the GPUs: jobs are not told which "
            "are theirs"
        )
        remedy = sentence("Name=gpu File=/dev/nvidia[0-N], or AutoDetect=nvml, in gres.conf")
        yield Problem(message, f"{configured} × gpu without a file", "a file for each", remedy)
        return
    for kind in place.line.gres:
        if kind.name == "gpu":
            yield from _device_problems(kind, lines)


def _device_problems(wanted: Gres, lines: Iterable[GresLine]) -> Iterator[Problem]:
    """Yield that gres.conf has too few devices for one kind of GPU of slurm.conf.

    slurmd ignores lines of another type, and those without one where slurm.conf has one; small and
    large letters are the same to it.
    """
    kind = wanted.type.lower()
    files: set[str] = set()
    for line in lines:
        if kind in ("", line.type.lower()):
            files.update(line.files)
    if len(files) < wanted.count:
        name = f"gpu:{wanted.type}" if kind else "gpu"
        message = f"gres.conf has fewer devices for {name} than slurm.conf counts"
        yield Problem(message, f"{len(files)} devices", f"{wanted.count} × {name}")


def _type_problems(place: Place, lines: Sequence[GresLine]) -> Iterator[Problem]:
    """Yield types that no GPU has. NVML's names count where it detects them; else a type is free.

    Slurm compares in small letters, with `_` for blanks, and a part of the name is enough.
    """
    nvml: Nvml | Absent | None = place.fact("gpu.nvml")
    if not any(line.detect in BY_NVML for line in lines):
        return
    if not isinstance(nvml, Nvml) or not nvml.gpus:
        return
    names = {gpu.name.lower().replace(" ", "_") for gpu in nvml.gpus}
    declared = [(gres.name, gres.type) for gres in place.line.gres]
    declared += [(line.name, line.type) for line in lines]
    types = {kind for name, kind in declared if name == "gpu" and kind}
    unmatched = []
    for kind in sorted(types):
        if not any(kind.lower() in name for name in names):
            unmatched.append(kind)
    if unmatched:
        message = "with AutoDetect a type is a part of the GPU's name, and no GPU here has this one"
        yield Problem(message, ", ".join(unmatched), ", ".join(sorted(names)))


def _core_problems(place: Place, lines: Sequence[GresLine]) -> Iterator[Problem]:
    """Yield cores of gres.conf that the machine has not, or that are far from their GPU."""
    has: Cpus = place.fact("cpu.processors")
    bound = [line for line in lines if line.name == "gpu" and line.cores]
    # Slurm numbers the cores that slurm.conf describes: with CPUs= alone each CPU is one.
    if not bound or _cores_of(place.line) != has.cores:
        return
    for line in bound:
        if max(line.cores) >= has.cores:
            message = (
                "gres.conf names cores that Slurm does not have: it counts cores, not threads, in "
                "its own order"
            )
            seen = f"Cores={_ranges(line.cores)} for {_folded(line.files)}"
            yield Problem(message, seen, f"Cores=0-{has.cores - 1} at most")
            return
    near = _near_cores(place, has)
    for line in bound:
        far = [file for file in line.files if not _is_near(line.cores, near.get(_minor(file)))]
        if far:
            message = "gres.conf binds a GPU to cores of another NUMA node than its own"
            own = {_ranges(near[_minor(file)]) for file in far}
            seen = f"Cores={_ranges(line.cores)} for {_folded(far)}"
            yield Problem(message, seen, f"Cores={' or '.join(sorted(own))}")


def _is_near(cores: Sequence[int], near: range | None) -> bool:
    """Return whether some of the cores are near, which is as good as a whole socket or all."""
    return near is None or any(core in near for core in cores)


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers as «0-55»."""
    return fold(f"c{number}" for number in numbers).removeprefix("c").strip("[]")


def _near_cores(place: Place, has: Cpus) -> dict[int | None, range]:
    """Return the cores of the NUMA node of each GPU by its minor number, as far as known.

    The driver numbers GPUs in the order of their addresses, unless one of them came late.
    """
    numa = place.fact("numa.nodes")
    devices: DeviceNodes = place.fact("gpu.nodes")
    functions: tuple[Function, ...] | Absent = place.fact("gpu.functions")
    if isinstance(numa, Absent) or isinstance(functions, Absent):
        return {}
    ranges = core_of_numa({each.number: each.cpus for each in numa}, has.cores, has.cpus)
    gpus = sorted((each for each in functions if not each.switch), key=lambda each: each.pci)
    minors = sorted(devices.nodes)
    if ranges is None or minors != list(range(len(gpus))):
        return {}
    near: dict[int | None, range] = {}
    for minor, gpu in zip(minors, gpus, strict=True):
        if gpu.numa is not None and gpu.numa in ranges:
            near[minor] = ranges[gpu.numa]
    return near


# ---------------------------------------------------------------- what holds for jobs


def _confinement(place: Place) -> Iterator[Problem]:
    """Yield constraints of cgroup.conf without effect, and those that shared nodes lack."""
    files = place.files
    on = [name for name in CONSTRAINTS if files.cgroup.get(name, "no").lower() == "yes"]
    by_cgroup = "task/cgroup" in files.words("taskplugin")
    if on and not by_cgroup:
        message = "cgroup.conf confines jobs, and nothing does it: TaskPlugin lacks task/cgroup"
        seen = f"TaskPlugin={files.settings.get('taskplugin', 'task/none')}"
        remedy = sentence("TaskPlugin=task/cgroup,task/affinity in slurm.conf")
        yield Problem(message, seen, "task/cgroup among TaskPlugin", remedy)
    elif files.shared and count_of(place.line.gres, "gpu") and "constraindevices" not in on:
        message = (
            "jobs that share this node can open each other's GPUs, for lack of ConstrainDevices"
        )
        remedy = sentence(
            "ConstrainDevices=yes in cgroup.conf with TaskPlugin=task/cgroup, or "
            "OverSubscribe=EXCLUSIVE for the partitions"
        )
        yield Problem(message, "ConstrainDevices=no", "ConstrainDevices=yes", remedy)


def _limits(place: Place) -> Iterator[Problem]:
    """Yield that jobs take the limit of locked memory of the session that submits them."""
    memlock = place.fact("lim.memlock")
    devices = place.fact("rdma.devices")
    if isinstance(devices, Absent) or not devices or place.node.transport == "slurm":
        return
    if isinstance(memlock, Absent) or math.isinf(memlock) or not _propagates(place.files):
        return
    message = (
        "Slurm gives jobs the limits of the session that submits them, and a session here may not "
        "lock all memory"
    )
    seen = f"memlock of {memory_in(memlock)} MiB in a session, PropagateResourceLimits=ALL"
    remedy = sentence(
        "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf, and LimitMEMLOCK=infinity for slurmd"
    )
    yield Problem(message, seen, "PropagateResourceLimitsExcept=MEMLOCK", remedy)


def _propagates(files: SlurmFiles) -> bool:
    """Return whether the limit of locked memory goes with a job; by default all limits do."""
    only = files.words("propagateresourcelimits")
    never = files.words("propagateresourcelimitsexcept")
    if only and not only & {"all", "memlock"}:
        return False
    return not never & {"all", "memlock"}


def _scripts(place: Place) -> Iterator[Problem]:
    """Yield scripts of slurm.conf that cannot be run, and an sshd that waits for PrologFlags."""
    files = place.files
    broken = [path for path, mode in files.scripts.items() if not mode or not mode & 0o111]
    if broken:
        message = "slurm.conf names scripts that are missing here, or that may not be run"
        yield Problem(message, ", ".join(sorted(broken)), "an executable file")
    if files.adopts and not files.words("prologflags") & {"contain", "x11"}:
        message = "sshd asks pam_slurm_adopt, which finds no job without PrologFlags=Contain"
        seen = f"PrologFlags={files.settings.get('prologflags', '')}"
        remedy = sentence("PrologFlags=Contain in slurm.conf")
        yield Problem(message, seen, "PrologFlags=Contain", remedy)


# ---------------------------------------------------------------- equal files


def _differences(places: Sequence[Place]) -> Iterator[Outcome]:
    """Yield files that differ between nodes of one cluster.

    gres.conf and cgroup.conf may be written for one kind of machine.
    """
    for name in ("slurm.conf", "gres.conf", "cgroup.conf"):
        groups: dict[object, dict[str, str]] = {}
        for place in places:
            kind = None if name == "slurm.conf" else machine(place.node)
            key = (place.files.settings.get("clustername"), kind)
            total = place.files.sums.get(name)
            text = "no such file" if total is None else f"{total:08x}"
            groups.setdefault(key, {})[place.node.name] = text
        for sums in groups.values():
            yield from _unequal(name, sums)


def _unequal(name: str, sums: Mapping[str, str]) -> Iterator[Outcome]:
    if len(sums) < 2:
        return
    remedy = sentence("the same {name} on all nodes, then: scontrol reconfigure", name=name)
    for outcome in uniform(sums, f"{name} (a sum of what it says)", len(sums), remedy):
        if outcome.verdict == "fail":
            yield replace(outcome, seen=f"{name}: {outcome.seen}")


# ---------------------------------------------------------------- slurm.state


def _is_in_service(seen: SlurmState) -> bool:
    return not (seen.states & OUT or "*" in seen.state)


def _without_name(seen: SlurmState) -> Hashable:
    """Return how Slurm has a node; the name that it has for it is told only where it is out."""
    return replace(seen, name="") if _is_in_service(seen) else seen


def state(context: CheckContext, node: Node, seen: SlurmState) -> Outcome:
    """Fail where Slurm starts no job on the node, and tell who took it out."""
    said = f"{seen.state}: {seen.reason}" if seen.reason else seen.state
    if "FUTURE" in seen.states:
        return skipped(node, "Slurm keeps this node for later", said)
    if _is_in_service(seen):
        return passed(node, "Slurm starts jobs here", said)
    if seen.reason.startswith(OWN):
        message = "a health check of clusterprep took this node out of service"
    elif seen.reason:
        message = (
            "Slurm starts no job here, for the reason that an administrator or Slurm itself gave"
        )
    elif "*" in seen.state:
        message = "Slurm starts no job here: slurmd does not answer slurmctld"
    else:
        message = "Slurm starts no job here"
    remedy = shell_line(
        "scontrol show node {name}"
        "   # once the reason is mended: scontrol update NodeName=… State=RESUME",
        name=seen.name,
    )
    return failed(node, message, said, "a state in which jobs start", remedy)


# ---------------------------------------------------------------- the checks


def _without_gpus(files: SlurmFiles) -> SlurmFiles:
    """Return files that give nodes half of their GPUs."""
    lines = []
    for line in files.nodes:
        halves = [replace(each, count=each.count // 2) for each in line.gres]
        lines.append(replace(line, gres=tuple(halves)))
    return replace(files, nodes=tuple(lines))


GRES = Check(
    "slurm.gres",
    facts=("slurm.files", "host.name", "cpu.processors", "mem.total"),
    judge=gres,
    severity="warning",
    title="Slurm's files and the machine",
    why="A count that is too high takes the node out of service, one that is too low leaves GPUs "
    "and cores idle, and cores that are far from their GPU cost bandwidth. Without "
    "ConstrainDevices a job can use the GPUs of another one.",
    how="slurm.conf, gres.conf and cgroup.conf, also those that slurmctld sends, with Include, "
    "continued lines, DEFAULT and ranges: CPUs, cores, RealMemory and GPUs of this node against "
    "the machine; File=, Type= and Cores= of gres.conf against devices, NVML and NUMA nodes; "
    "constraints against TaskPlugin; the propagated memlock; the scripts named. The files have to "
    "be equal on all nodes. What slurm.conf does not name is skipped.",
    remedy=SLURMD_C,
    uses=(
        "gpu.nodes",
        "gpu.nvml",
        "gpu.mig",
        "gpu.functions",
        "numa.nodes",
        "lim.memlock",
        "rdma.devices",
    ),
    proof=Proof("slurm.files", _without_gpus),
)
STATE = Check(
    "slurm.state",
    facts=("slurm.node_state",),
    judge=each(state, "slurm.node_state", parts=(Part("slurm.node_state", _without_name),)),
    severity="warning",
    title="The node's state in Slurm",
    why="No job starts on a node that is drained or down, however healthy it looks from inside.",
    how="`scontrol show node` on the node. The reason is told; one that begins with «clusterprep: "
    "» is of a health check of ours. Within --budget Slurm is not asked, since a Prolog should "
    "not: the stored answer counts.",
    remedy=shell_line("sinfo -R"),
    proof=Proof(
        "slurm.node_state", lambda seen: SlurmState(seen.name, "IDLE+DRAIN", "a disk is full")
    ),
)
