"""The time limits of a start and of a collective: defaults by release, and where they are set.

Defaults as `diagnose` names them when one fires (jobs/diagnose/limits.py). Each limit has the
source of its figures: file and release.
"""

from __future__ import annotations

import textwrap

from msgspec import Struct

WIDTH = 98  # columns of a page
TOPIC = "time-limits"  # the page of all limits
_GROUP_SET = (
    "init_process_group(timeout=…), in Lightning by DDPStrategy(timeout=…), "
    "in Transformers by ddp_timeout"
)


class TimeLimit(Struct, frozen=True):
    """A limit: what waits, how long by default, where that is set, and who says so."""

    waits: str
    default: str
    where: str
    source: str


JOIN = TimeLimit(
    "torchrun waits for all nodes",
    "600 s",
    "--rdzv-conf join_timeout=…; with the static back end timeout=…",
    "torch 2.13, elastic/rendezvous/dynamic_rendezvous.py, static_tcp_rendezvous.py",
)
RENDEZVOUS_READ = TimeLimit(
    "a node asks torchrun's c10d store for something",
    "60 s",
    "--rdzv-conf read_timeout=…",
    "torch 2.13, elastic/rendezvous/c10d_rendezvous_backend.py",
)
EXIT_BARRIER = TimeLimit(
    "torchrun waits at the end for the agents of other nodes",
    "300 s",
    "nothing on the command line",
    "torch 2.13, elastic/agent/server/api.py",
)
CLIENTS = TimeLimit(
    "the store of init_process_group waits for all ranks",
    "600 s for an NCCL group since torch 2.2; 1800 s before, for gloo and in Lightning",
    _GROUP_SET,
    "torch 2.2, pull request 110947; Lightning 1.8.3, strategies/ddp.py",
)
STORE = TimeLimit(
    "a store waits for a key",
    "300 s of a bare TCPStore, 900 s of torchrun's own",
    "TCPStore(timeout=…)",
    "torch 2.13, c10d/Store.hpp, distributed/launcher/api.py",
)
NCCL_GROUP = TimeLimit(
    "a collective of an NCCL group",
    "600 s since torch 2.2, 1800 s before",
    _GROUP_SET,
    "torch 2.2, pull request 110947",
)
GLOO_GROUP = TimeLimit(
    "a collective of a gloo group",
    "1800 s",
    _GROUP_SET,
    "torch 2.13, distributed/constants.py",
)
HEARTBEAT = TimeLimit(
    "the watchdog's own heartbeat",
    "480 s, up to torch 2.5 600 s",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    "torch 2.6 c10d/ProcessGroupNCCL.cpp, torch 2.12.1 ProcessGroupNCCL.hpp",
)
CONNECT = TimeLimit(
    "NCCL connects to a peer",
    "34 attempts, about a minute in all",
    "NCCL_SOCKET_RETRY_CNT, NCCL_SOCKET_RETRY_SLEEP_MSEC",
    "NCCL 2.24 to 2.30, src/misc/socket.cc",
)
RDMA = TimeLimit(
    "an RDMA card waits for the answer to a packet and sends it again",
    "4.096 µs × 2^20 and 7 retries since NCCL 2.23; 2^18 since 2.14, 2^14 before",
    "NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT",
    "NCCL 2.30, src/transport/net_ib/connect.cc",
)
LIGHTNING = TimeLimit(
    "Lightning gives its process group a limit of its own",
    "1800 s",
    "DDPStrategy(timeout=…)",
    "Lightning 1.8.3, strategies/ddp.py",
)
TRANSFORMERS = TimeLimit(
    "Transformers' Trainer gives its process group a limit of its own",
    "1800 s",
    "TrainingArguments(ddp_timeout=…), --ddp_timeout",
    "Transformers, training_args.py",
)
ACCELERATE = TimeLimit(
    "accelerate's wait_for_everyone is a barrier of torch and has the limit of the group",
    "that of torch",
    "Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=…)])",
    "accelerate, utils/dataclasses.py",
)
DEEPSPEED = TimeLimit(
    "DeepSpeed gives its process group a limit of its own",
    "30 minutes",
    "DEEPSPEED_TIMEOUT (minutes), deepspeed.init_distributed(timeout=…)",
    "DeepSpeed, deepspeed/constants.py",
)
MEGATRON = TimeLimit(
    "Megatron gives its process groups a limit of its own",
    "10 minutes",
    "--distributed-timeout-minutes",
    "Megatron-LM, training/arguments.py",
)
RAY = TimeLimit(
    "Ray Train gives its process group a limit of its own",
    "1800 s",
    "TorchConfig(timeout_s=…); Lightning's own is ignored there",
    "Ray 2.x, train/torch/config.py",
)
HCCL = TimeLimit(
    "a task of HCCL waits for the other devices",
    "1836 s",
    "HCCL_EXEC_TIMEOUT",
    "CANN 8.0, reference of environment variables",
)
HOROVOD = TimeLimit(
    "Horovod waits for ranks that did not submit a tensor",
    "a warning after 60 s, and no end",
    "HOROVOD_STALL_CHECK_TIME_SECONDS, HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    "Horovod, common/stall_inspector.cc",
)
MPI = TimeLimit(
    "an MPI collective or barrier waits for all ranks",
    "no limit",
    "mpirun --timeout SECONDS ends the whole job",
    "Open MPI, mpirun(1)",
)

ALL = (
    JOIN,
    RENDEZVOUS_READ,
    CLIENTS,
    STORE,
    NCCL_GROUP,
    GLOO_GROUP,
    HEARTBEAT,
    EXIT_BARRIER,
    LIGHTNING,
    TRANSFORMERS,
    ACCELERATE,
    DEEPSPEED,
    MEGATRON,
    RAY,
    HCCL,
    HOROVOD,
    MPI,
    CONNECT,
    RDMA,
)
_START = (JOIN, CLIENTS, STORE)
_FIRST_COLLECTIVE = (CLIENTS, NCCL_GROUP, HEARTBEAT, CONNECT)
_COLLECTIVE = (NCCL_GROUP, GLOO_GROUP, HEARTBEAT)
_FRAMEWORKS = (LIGHTNING, TRANSFORMERS, ACCELERATE, DEEPSPEED, MEGATRON, RAY)
# Topics of `explain` and the limits that fire there.
LIMITS: dict[str, tuple[TimeLimit, ...]] = {
    "rendezvous_incomplete": (*_START, NCCL_GROUP),
    "net.ports": (*_START, CONNECT),
    "name.resolve": _START,
    "launch.nproc": (JOIN, CLIENTS),
    "launch.ranks": (JOIN, CLIENTS),
    "nccl.init_time": _FIRST_COLLECTIVE,
    "nccl.hang": _COLLECTIVE,
    "rendezvous_misconfigured": _START,
    "world_size_mismatch": _START,
    "slow_work_exceeds_timeout": (*_COLLECTIVE, *_FRAMEWORKS),
    "rank_desync_uneven_data": _COLLECTIVE,
    "rank_desync_control_flow": (*_COLLECTIVE, HOROVOD),
    "firewall_blocked_port": (JOIN, CLIENTS, CONNECT),
    "ib_fabric_unreachable": (RDMA, NCCL_GROUP),
}


def limit_lines(topic: str) -> list[str]:
    """Return lines for each limit of a topic: what waits how long, and where that is set."""
    lines = []
    for limit in LIMITS.get(topic, ()):
        lines += _lines_of(limit)
    return lines


def page() -> str:
    """Return the page of all limits, each with the source of its figures."""
    lines = [f"{TOPIC}: how long things wait, and where that is set", ""]
    for limit in ALL:
        lines += _lines_of(limit)
        lines += _wrapped(f"source: {limit.source}", "      ")
    return "\n".join(lines)


def _lines_of(limit: TimeLimit) -> list[str]:
    lines = _wrapped(f"{limit.waits}: {limit.default}", "  ")
    return lines + _wrapped(f"set by {limit.where}", "      ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ")
