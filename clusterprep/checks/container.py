"""What a job lacks in its container: devices, limits, shared memory, networks, variables.

Each judge compares a look into the container with one at its host. What both have, or both lack, is
the host's affair, which other checks judge.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from typing import Any

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    by_value,
    failed,
    passed,
    skipped,
    uniform,
    unknown,
)
from clusterprep.checks.lim import FLOOR
from clusterprep.facts.container import Inside, SharedMemory, Surroundings
from clusterprep.facts.environment import Paths, Setting
from clusterprep.model import Absent, Container, Node, Severity
from clusterprep.model.units import format_size
from clusterprep.nccl.interfaces import has_rdma
from clusterprep.remedies import Remedy, sentence, shell_line

LEAST_SHM = 1 << 30  # bytes; see checks/shm.py
NO_CONTAINER = "jobs run in no container here"
UNNAMED = Container("podman", "the job's image")  # of a look whose inventory is not at hand
GPU = re.compile(r"/dev/nvidia\d+")
VERBS = re.compile(r"/dev/infiniband/(uverbs\d+|rdma_cm)")
OTHER_DEVICES = re.compile(r"/dev/(gdrdrv|nvidia-caps-imex-channels/channel\d+)")
CONF_LINE = re.compile(r"^\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*$", re.MULTILINE)
# Why no container runs, and what is to be done: by the reasons of remote/agent/containers.py.
CURES: Mapping[str, Remedy] = {
    "missing_tool": sentence("install the engine on the node, or correct engine: in the inventory"),
    "no_daemon": sentence("start the engine's daemon on the node"),
    "denied": sentence("let the job's user use the engine"),
    "no_image": sentence("bring the image onto the node; it is not fetched by a check"),
    "no_python": sentence("give the image a Python 3, or set python: to where the image has it"),
    "no_gpus": sentence("install and configure the NVIDIA container toolkit on the node"),
    "bad_options": sentence("correct options: in the inventory by what the engine says"),
    "no_space": sentence("make room where the engine keeps containers"),
}
DOCKER_CURES = {
    "no_daemon": shell_line("systemctl start docker && docker info"),
    "no_gpus": shell_line("nvidia-ctk runtime configure --runtime=docker && docker info"),
}
PODMAN_CURES = {
    "no_gpus": shell_line("nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
}
UNDECIDED = ("timed_out", "hung", "garbled", "truncated", "agent_error", "not_asked")


def container_of(node: Node) -> Container | None:
    """Return the container that the node's jobs run in."""
    return None if node.runtime is None else node.runtime.container


def in_containers(context: CheckContext) -> Iterable[tuple[Node, Container, Inside]]:
    """Yield the nodes whose jobs run in a container, with the looks."""
    inside: list[tuple[Node, Inside]] = []
    for nodes in context.alike("rt.inside"):
        found: Inside | Absent | None = context.value(nodes[0], "rt.inside")
        if isinstance(found, Inside):
            inside.extend([(node, found) for node in nodes])
    inside.sort(key=lambda look: look[0].index)
    for node, found in inside:
        yield node, container_of(node) or UNNAMED, found


def without_look(context: CheckContext) -> Iterable[Outcome]:
    """Yield a skip for nodes without a container, unknown for those where none was started."""
    for nodes in context.alike("rt.inside"):
        node = nodes[0]
        found: Inside | None = context.value(node, "rt.inside")
        outcomes = []
        if found is None:
            outcomes.append(skipped(node, NO_CONTAINER))
        elif found.inside is None:
            message = f"no container was started: {found.why}"
            outcomes.append(unknown(node, message, found.reason))
        yield from about_all(nodes, outcomes)


def looks(
    context: CheckContext,
) -> Iterable[tuple[Node, Container, Surroundings, Surroundings]]:
    """Yield the nodes whose container was looked into: host first, then inside."""
    for node, container, found in in_containers(context):
        if found.inside is not None:
            yield node, container, found.host, found.inside


def option(container: Container, options: Mapping[str, str]) -> Remedy:
    """Return the remedy that names the option of this engine."""
    said = options[container.engine]
    return sentence(
        "start the container with {option}, in the job's launcher and under options: of the "
        "inventory",
        option=said,
    )


# ---------------------------------------------------------------- the engine


def engine(context: CheckContext, node: Node, found: Inside) -> Iterable[Outcome]:
    """Judge whether the container starts. It is a part of rt.engine."""
    container = container_of(node) or UNNAMED
    if found.inside is not None:
        seen = f"{container.engine} {container.image}"
        yield passed(node, "the job's container starts", seen)
        return
    wanted = f"{container.engine} starts {container.image}"
    if found.reason in UNDECIDED:
        yield unknown(node, f"no container was started: {found.why}", found.reason, wanted=wanted)
        return
    message = f"{container.engine} starts no container of {container.image}: {found.why}"
    yield failed(node, message, found.reason, wanted, _cure(container, found.reason, node))


def _cure(container: Container, reason: str, node: Node) -> Remedy:
    if container.engine == "docker" and reason == "denied":
        user = node.job_user or node.ssh.user or "root"
        return shell_line("usermod -aG docker {user}   # then log in anew", user=user)
    own = DOCKER_CURES if container.engine == "docker" else PODMAN_CURES
    if container.engine in ("docker", "podman") and reason in own:
        return own[reason]
    if reason in CURES:
        return CURES[reason]
    return sentence(
        "start the container by hand on the node, as the job's user: {engine} and {image}",
        engine=container.engine,
        image=container.image,
    )


def users(context: CheckContext) -> Iterable[Outcome]:
    """Compare the users that containers run as, of nodes with one image. A part of rt.engine."""
    values = {}
    for node, container, _, inside in looks(context):
        values[node.name] = f"uid {inside.uid} gid {inside.gid} in {container.engine}"
    if len(set(values.values())) < 2:
        return
    remedy = sentence("start the container as the same user on all nodes: --user, or as the image")
    for outcome in uniform(values, "the user in the container", len(values), remedy):
        if outcome.verdict == "fail":
            yield outcome


# ---------------------------------------------------------------- devices


VERBS_OPTIONS = {
    "docker": "--device=/dev/infiniband --cap-add=IPC_LOCK",
    "podman": "--device=/dev/infiniband --cap-add=IPC_LOCK",
    "apptainer": "--bind /dev/infiniband, without --contain",
    "enroot": "--mount /dev/infiniband:/dev/infiniband, or MELLANOX_VISIBLE_DEVICES=all",
}


def devices(context: CheckContext) -> Iterable[Outcome]:
    """Judge devices of RDMA and GPUDirect that the host has."""
    yield from without_look(context)
    for node, container, host, inside in looks(context):
        wanted = [path for path in host.devices if VERBS.match(path) or OTHER_DEVICES.match(path)]
        if not wanted:
            yield skipped(node, "the host has no devices of RDMA")
            continue
        lost = [path for path in wanted if path not in inside.devices]
        closed = [
            path
            for path in wanted
            if path not in lost and host.devices[path] and not inside.devices[path]
        ]
        yield _devices_of(node, container, wanted, lost, closed)


def _devices_of(
    node: Node, container: Container, wanted: list[str], lost: list[str], closed: list[str]
) -> Outcome:
    """Return the outcome of one node. Without a device for verbs NCCL goes over TCP."""
    wanted_text = f"{len(wanted)} as on the host"
    severity: Severity = "warning"
    if any(VERBS.match(path) for path in (*lost, *closed)):
        severity = "error"
    if lost:
        if all(VERBS.match(path) for path in lost) and set(lost) == {
            path for path in wanted if VERBS.match(path)
        }:
            message = "there is no /dev/infiniband in the container, so NCCL goes over TCP there"
            cure = option(container, VERBS_OPTIONS)
        else:
            message = "devices of the host are missing in the container"
            cure = option(container, {**VERBS_OPTIONS, **_each_device(container, lost)})
        return failed(node, message, f"no {', '.join(lost[:8])}", wanted_text, cure, severity)
    if closed:
        message = "the container's user may not use devices that are there"
        cure = sentence(
            "start the container as a user that may read and write {path}", path=closed[0]
        )
        return failed(node, message, ", ".join(closed[:8]), wanted_text, cure, severity)
    return passed(node, "the container has the host's devices of RDMA", f"{len(wanted)}")


def _each_device(container: Container, lost: list[str]) -> dict[str, str]:
    if container.engine in ("docker", "podman"):
        return {container.engine: " ".join(f"--device={path}" for path in lost[:8])}
    return {}


GPU_OPTIONS = {
    "docker": "--gpus all",
    "podman": "--device nvidia.com/gpu=all",
    "apptainer": "--nv",
    "enroot": "NVIDIA_VISIBLE_DEVICES=all in its environment",
}


def gpus(context: CheckContext) -> Iterable[Outcome]:
    """Judge the GPUs in the container, and whether the driver's library came with them."""
    yield from without_look(context)
    for node, container, host, inside in looks(context):
        wanted = sorted(path for path in host.devices if GPU.fullmatch(path))
        if node.gpus is not None and node.gpus.count == 0:
            wanted = []
        if not wanted:
            yield skipped(node, "the host has no GPUs")
            continue
        least = len(wanted)
        if node.gpus is not None and node.gpus.use is not None:
            least = len(node.gpus.use)
        seen = [path for path in wanted if inside.devices.get(path)]
        yield _gpus_of(node, container, inside, len(seen), least)


def _gpus_of(
    node: Node, container: Container, inside: Surroundings, seen: int, least: int
) -> Outcome:
    wanted = f"{least}, and libcuda.so.1"
    if seen < least:
        message = f"the container has {seen} of {least} GPUs"
        return failed(node, message, str(seen), wanted, option(container, GPU_OPTIONS))
    if inside.libraries.get("libcuda.so.1") is None:
        message = "the container has GPUs and no libcuda.so.1 of the driver"
        cure = sentence("set NVIDIA_DRIVER_CAPABILITIES=compute,utility for the container")
        return failed(node, message, "no libcuda.so.1", wanted, cure)
    return passed(node, "the container has the GPUs and the driver's library", str(seen))


# ---------------------------------------------------------------- limits and memory


MEMLOCK_OPTIONS = {
    "docker": "--ulimit memlock=-1",
    "podman": "--ulimit memlock=-1",
    "apptainer": "the limit of its caller: limits.conf, or LimitMEMLOCK of slurmd",
    "enroot": "the limit of its caller: limits.conf, or LimitMEMLOCK of slurmd",
}


def memlock(context: CheckContext) -> Iterable[Outcome]:
    """Judge the memory that a process of the container may lock."""
    yield from without_look(context)
    for node, container, host, inside in looks(context):
        limit = inside.limits["memlock"]
        own = context.value(node, "lim.memlock")
        of_host = host.limits["memlock"] if isinstance(own, Absent) else own
        wanted = f"unlimited or at least {format_size(FLOOR)}"
        if limit < FLOOR and limit < of_host:
            severity: Severity = "error" if has_rdma(context.fleet, node) else "warning"
            yield failed(
                node,
                "less memory may be locked in the container than on the host",
                f"{_bytes(limit)}; {_bytes(of_host)} on the host",
                wanted,
                option(container, MEMLOCK_OPTIONS),
                severity,
            )
        elif limit < FLOOR:
            message = "the container has the host's limit, which lim.memlock judges"
            yield passed(node, message, _bytes(limit), wanted)
        else:
            yield passed(node, "enough memory may be locked", _bytes(limit), wanted)


def _bytes(number: float) -> str:
    return "unlimited" if number == float("inf") else format_size(number)


SHM_OPTIONS = {
    "docker": "--ipc=host, or --shm-size=16g",
    "podman": "--ipc=host, or --shm-size=16g",
    "apptainer": "the host's /dev/shm: without --contain, or with --bind /dev/shm",
    "enroot": "the host's /dev/shm: --mount /dev/shm:/dev/shm",
}


def shm(context: CheckContext) -> Iterable[Outcome]:
    """Judge a /dev/shm of the container's own; the host's is judged by shm.size."""
    yield from without_look(context)
    for node, container, host, inside in looks(context):
        wanted = f"the host's, or at least {format_size(LEAST_SHM)} free"
        cure = option(container, SHM_OPTIONS)
        if inside.shm is None:
            yield failed(node, "there is no /dev/shm in the container", "none", wanted, cure)
            continue
        seen = f"{format_size(inside.shm.free)} free of {format_size(inside.shm.size)}"
        is_hosts = host.shm is not None and host.shm.device == inside.shm.device
        if is_hosts:
            yield passed(node, "the container has the host's shared memory", seen, wanted)
        elif inside.shm.size and inside.shm.free < LEAST_SHM:
            message = "the container's shared memory is small"
            yield failed(node, message, seen, wanted, cure)
        else:
            yield passed(node, "the container has enough shared memory", seen, wanted)


IPC_OPTIONS = {
    "docker": "--ipc=host",
    "podman": "--ipc=host",
    "apptainer": "no --ipc and no --containall",
    "enroot": "the host's IPC namespace, which is its default",
}


def ipc(context: CheckContext) -> Iterable[Outcome]:
    """Judge whether the container has IPC of its own."""
    yield from without_look(context)
    for node, container, host, inside in looks(context):
        own, of_host = inside.namespaces.get("ipc"), host.namespaces.get("ipc")
        if own is None or of_host is None:
            yield unknown(node, "the namespaces cannot be read", "denied")
        elif own == of_host:
            yield passed(node, "the container shares IPC with the host", "the host's")
        else:
            message = "the container has IPC of its own: ranks in two containers do not meet there"
            cure = option(container, IPC_OPTIONS)
            yield failed(node, message, "its own", "the host's", cure)


# ---------------------------------------------------------------- network


NETWORK_OPTIONS = {
    "docker": "--network=host",
    "podman": "--network=host",
    "apptainer": "no --net and no --containall",
    "enroot": "the host's network, which is its default",
}


def network(context: CheckContext) -> Iterable[Outcome]:
    """Judge whether NCCL has the node's own addresses in the container."""
    yield from without_look(context)
    for node, container, host, inside in looks(context):
        own, of_host = inside.namespaces.get("net"), host.namespaces.get("net")
        if own is None or of_host is None:
            yield unknown(node, "the namespaces cannot be read", "denied")
            continue
        addresses = [f"{name} {address}" for name, address in inside.interfaces.items() if address]
        seen = ", ".join([*sorted(addresses), *inside.ipv6][:8]) or "no addresses"
        if own == of_host:
            yield passed(node, "the container has the host's network", "the host's")
        elif _plain_form(node.address) in (*inside.interfaces.values(), *inside.ipv6):
            yield passed(node, "the container has the node's address on its own network", seen)
        else:
            message = (
                "the container has a network of its own, whose addresses other nodes do not reach"
            )
            cure = option(container, NETWORK_OPTIONS)
            yield failed(node, message, seen, f"the host's, with {node.address}", cure)


def _plain_form(address: str) -> str:
    """Return an address as the kernel writes it, and a name as it is."""
    try:
        return str(ip_address(address))
    except ValueError:
        return address


# ---------------------------------------------------------------- libraries


def libraries(context: CheckContext) -> Iterable[Outcome]:
    """Compare the driver's library with the host's, and the others between nodes."""
    yield from without_look(context)
    bad: set[str] = set()
    names: dict[str, dict[str, str]] = {}
    for node, container, host, inside in looks(context):
        for outcome in _against_host(node, container, host, inside):
            bad.add(node.name)
            yield outcome
        for library, path in inside.libraries.items():
            told = "none" if path is None else posixpath.basename(path)
            names.setdefault(library, {})[node.name] = told
    for library, values in names.items():
        if len(by_value(values)) < 2:
            continue
        cure = sentence("run the same image on all nodes, and bind none of {name}", name=library)
        for outcome in uniform(values, f"{library} in the container", len(values), cure):
            if outcome.verdict == "fail":
                bad.update(outcome.nodes)
                yield outcome
    for node, _, _, inside in looks(context):
        if node.name not in bad:
            there = [posixpath.basename(path) for path in inside.libraries.values() if path]
            seen = ", ".join(sorted(there)) or "none"
            yield passed(node, "the container's libraries fit the host and the other nodes", seen)


def _against_host(
    node: Node, container: Container, host: Surroundings, inside: Surroundings
) -> Iterable[Outcome]:
    """Yield what does not fit the host: another driver's libcuda, a plug-in that is missing."""
    of_host, own = host.libraries.get("libcuda.so.1"), inside.libraries.get("libcuda.so.1")
    if of_host and own and posixpath.basename(of_host) != posixpath.basename(own):
        yield failed(
            node,
            "libcuda in the container is of another driver than the host's",
            posixpath.basename(own),
            posixpath.basename(of_host),
            option(container, GPU_OPTIONS),
            "error",
        )
    plugin = host.libraries.get("libnccl-net.so")
    if plugin and inside.libraries.get("libnccl-net.so") is None:
        yield failed(
            node,
            "the host's network plug-in of NCCL is not in the container",
            "none",
            plugin,
            sentence("take an image that has it, or bind {path} into the container", path=plugin),
        )


# ---------------------------------------------------------------- variables


ENV_OPTIONS = {
    "docker": "--env-file /etc/clusterprep/nccl.env, or --volume /etc/nccl.conf:/etc/nccl.conf:ro",
    "podman": "--env-file /etc/clusterprep/nccl.env, or --volume /etc/nccl.conf:/etc/nccl.conf:ro",
    "apptainer": "--env-file /etc/clusterprep/nccl.env, and without --cleanenv",
    "enroot": "--env and the names of the variables, or --mount /etc/nccl.conf:/etc/nccl.conf",
}
RELEVANT = ("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_")


def variables(context: CheckContext, node: Node, found: Inside) -> Iterable[Outcome]:
    """Compare the variables of a login on the host with those inside. A part of rt.env."""
    container = container_of(node) or UNNAMED
    if found.inside is None:
        yield unknown(node, f"no container was started: {found.why}", found.reason)
        return
    paths: Paths | Absent = context.value(node, "env.paths")
    settings = () if isinstance(paths, Absent) else paths.get("login shell", ())
    if isinstance(paths, Absent) or isinstance(settings, Absent):
        why = paths if isinstance(paths, Absent) else settings
        reason = why.reason if isinstance(why, Absent) else "not_asked"
        yield unknown(node, "the variables of a login on the host are not known", reason)
        return
    yield _dropped(node, container, settings, found.inside)


def _dropped(
    node: Node, container: Container, settings: Iterable[Setting], inside: Surroundings
) -> Outcome:
    """Return whether each variable of a login has its value in the container.

    NCCL takes its own from /etc/nccl.conf too, and the environment counts over the file.
    """
    by_file = dict(CONF_LINE.findall(inside.conf or ""))
    lost = []
    count = 0
    for setting in settings:
        name = setting.name
        if not name.startswith(RELEVANT):
            continue
        count += 1
        there = inside.variables.get(name)
        if there is None and name.startswith("NCCL_"):
            there = by_file.get(name)
        if there != setting.value:
            lost.append(f"{name}={setting.value}" if there is None else f"{name}={there}")
    if not lost:
        seen = f"{count} of {count}"
        return passed(node, "the container has the variables of a login on the host", seen)
    message = f"the container has {count - len(lost)} of {count} variables of a login on the host"
    seen = "without or other: " + ", ".join(sorted(lost)[:12])
    return failed(node, message, seen, f"all {count}", option(container, ENV_OPTIONS))


# ---------------------------------------------------------------- the checks


HEALTHY = Surroundings(
    devices={
        "/dev/infiniband/uverbs0": True,
        "/dev/nvidia0": True,
        "/dev/nvidiactl": True,
    },
    limits={"memlock": math.inf, "nofile": 1048576.0, "nproc": math.inf, "stack": 8388608.0},
    shm=SharedMemory(64 << 30, 64 << 30, 25),
    namespaces={"ipc": "ipc:[4026531839]", "net": "net:[4026531840]"},
    interfaces={"lo": "127.0.0.1"},
    rdma=("mlx5_0",),
    cpus=64,
    uid=0,
    gid=0,
    variables={},
    conf=None,
    libraries={"libcuda.so.1": "/usr/lib64/libcuda.so.550.54.15"},
)


def _with(**changes: Any) -> Callable[[object], Inside]:
    """Return what turns the look of a healthy container into one that differs from its host."""
    return lambda _: Inside(HEALTHY, replace(HEALTHY, **changes))


_HOW = "The job's interpreter looks around in a new container with the options of `runtime:`, and "
DEVICES = Check(
    "rt.devices",
    facts=("rt.inside",),
    judge=devices,
    severity="warning",
    grade="an error without a device for verbs, else a warning",
    title="Devices of RDMA in the container",
    why="Without /dev/infiniband NCCL finds no port in the container and takes TCP, a tenth of "
    "the speed, without a word above the level INFO.",
    how=_HOW + "the agent on the host: devices below /dev/infiniband, gdrdrv, IMEX channels.",
    remedy=sentence("give the container the devices of the host"),
    proof=Proof("rt.inside", _with(devices={"/dev/nvidia0": True, "/dev/nvidiactl": True})),
)
MEMLOCK = Check(
    "rt.memlock",
    facts=("rt.inside",),
    uses=("lim.memlock", "rdma.devices"),
    judge=memlock,
    severity="warning",
    grade="an error where a device of RDMA is present or declared, else a warning",
    title="Locked memory in the container",
    why="Engines give containers limits of their own; with 64 KiB ibv_reg_mr fails inside "
    "although the host allows all.",
    how=_HOW + "its limit is compared with the host's and with 32 GiB.",
    remedy=sentence("start the container with --ulimit memlock=-1"),
    proof=Proof("rt.inside", _with(limits={**HEALTHY.limits, "memlock": 65536.0})),
)
SHM = Check(
    "rt.shm",
    facts=("rt.inside",),
    judge=shm,
    severity="error",
    title="Shared memory of the container",
    why="docker and podman give a container 64 MB; NCCL and data loaders of eight ranks end "
    "there with «No space left on device» or a bus error.",
    how=_HOW + "its /dev/shm is compared with the host's. Of its own at least 1 GiB is free.",
    remedy=sentence("start the container with --ipc=host or a larger --shm-size"),
    proof=Proof("rt.inside", _with(shm=SharedMemory(64 << 20, 64 << 20, 99))),
)
GPUS = Check(
    "rt.gpus",
    facts=("rt.inside",),
    judge=gpus,
    severity="error",
    title="GPUs in the container",
    why="The engine hands on GPUs and the driver's library only if it is asked for them.",
    how=_HOW + "its /dev/nvidia0 and so on are counted, and libcuda.so.1 is looked for.",
    remedy=sentence("start the container with all GPUs"),
    proof=Proof(
        "rt.inside",
        lambda _: Inside(
            HEALTHY,
            replace(HEALTHY, devices={"/dev/infiniband/uverbs0": True}),
        ),
    ),
)
LIBRARIES = Check(
    "rt.libs",
    facts=("rt.inside",),
    judge=libraries,
    severity="warning",
    grade="an error for a libcuda of another driver, else a warning",
    title="Libraries in the container",
    why="A libcuda of another driver does not start; another NCCL or plug-in than on the other "
    "nodes hangs or is slow.",
    how=_HOW + "the files that the loader finds for libcuda, NCCL, its network plug-in and "
    "verbs are compared with the host's and with those of the other nodes.",
    remedy=sentence("run the same image with the same options on all nodes"),
    proof=Proof(
        "rt.inside",
        _with(libraries={"libcuda.so.1": "/usr/local/cuda/compat/libcuda.so.535.1"}),
    ),
)
NETWORK = Check(
    "rt.network",
    facts=("rt.inside",),
    judge=network,
    severity="error",
    title="Network of the container",
    why="On a bridge NCCL and gloo publish the container's address, which other nodes cannot "
    "reach, and there is no RDMA.",
    how=_HOW + "its network namespace and addresses are compared with the host's.",
    remedy=sentence("start the container with --network=host"),
    proof=Proof(
        "rt.inside",
        _with(
            namespaces={**HEALTHY.namespaces, "net": "net:[4026532288]"},
            interfaces={"lo": "127.0.0.1", "eth0": "172.17.0.2"},
        ),
    ),
)
IPC = Check(
    "rt.ipc",
    facts=("rt.inside",),
    judge=ipc,
    severity="warning",
    title="IPC of the container",
    why="Ranks in two containers of a node reach each other by shared memory only where both "
    "have the host's IPC namespace; else NCCL goes through the network.",
    how=_HOW + "its IPC namespace is compared with the host's.",
    remedy=sentence("start the container with --ipc=host"),
    proof=Proof(
        "rt.inside",
        _with(namespaces={**HEALTHY.namespaces, "ipc": "ipc:[4026532287]"}),
    ),
)
