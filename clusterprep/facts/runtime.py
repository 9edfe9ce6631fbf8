"""What the declared runtime of a node gives the job: modules, conda, a virtual environment.

A runtime that cannot be entered is an answer, with its reason. What is asked inside it is then
absent for the same reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from clusterprep.facts import JOB_USER, Fact, setup_seconds, user_of_job
from clusterprep.model import Inventory, Node, Read
from clusterprep.model.runtimes import read_arguments
from clusterprep.remote.agent.inside import SETUP_LIMIT

# Variables that apply derives or writes; they are given to a runtime to see whether they stay.
WRITTEN = (
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_CROSS_NIC",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_HCA",
    "NCCL_MNNVL_ENABLE",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_NSOCKS_PERTHREAD",
    "NCCL_P2P_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_NTHREADS",
    "NPROC_PER_NODE",
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
)


class Complaint(Struct, frozen=True):
    """A step of the set-up that went on after an error: what it was, its code, what it printed."""

    step: str
    code: int
    text: str


class Setup(Struct, frozen=True):
    """How entering a runtime ended. Without a `reason` it was entered, and the rest is known."""

    reason: str = ""
    why: str = ""
    python: str = ""  # the job's interpreter inside
    prefix: str = ""  # sys.prefix of that interpreter
    environment: str = ""  # the declared one, if the interpreter is none of it
    env: Mapping[str, str] = field(default_factory=dict)  # variables that matter
    unset: tuple[str, ...] = ()  # variables that were given and are gone
    lowered: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # limit -> before, inside
    complaints: tuple[Complaint, ...] = ()


def parse_setup(answer: Mapping[str, Any] | None = None) -> Setup | None:
    """Return how entering the runtime ended; None if the job runs on the node itself."""
    if answer is None:
        return None
    if "failed" in answer:
        reason, why = map(_text, answer["failed"])
        return Setup(reason, why)
    complaints = []
    for step, code, text in answer["complaints"]:
        complaints.append(Complaint(_text(step), int(code), _text(text)))
    lowered = {}
    for name, (before, inside) in answer["lowered"].items():
        lowered[_text(name)] = (_text(before), _text(inside))
    env = {_text(name): _text(value) for name, value in answer["env"].items()}
    return Setup(
        python=_text(answer["python"]),
        prefix=_text(answer["prefix"]),
        environment=_text(answer["environment"]),
        env=env,
        unset=tuple(map(_text, answer["unset"])),
        lowered=lowered,
        complaints=tuple(complaints),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, seen {value!r}")  # noqa: TRY004 - as every parse
    return value


def shell_runtime_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """Return the read of a runtime that a shell sets up; none for containers and plain hosts."""
    if node.runtime is None or node.runtime.container is not None:
        return ()
    given = tuple(sorted({*WRITTEN, *node.env}))
    arguments = (node.python, user_of_job(node), *read_arguments(node.runtime), given)
    return (Read("shell_runtime", arguments, limit=SETUP_LIMIT + setup_seconds(node)),)


SETUP = Fact("rt.setup", shell_runtime_reads, parse_setup, deep=True, needs=JOB_USER)
