"""Lines in real files of a host that decide what a job gets.

The files are start-up files of shells, units, NCCL's own file, and the journal of apply.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping

from tests.faults.row import Plant, Row
from tests.support import real_nccl
from tests.support.command import clusterprep
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault

BASHRC, PROFILE, SYSTEM = "/root/.bashrc", "/etc/profile.d/zz-site.sh", "/etc/environment"
CONF, HOME_CONF = "/etc/nccl.conf", "/root/.nccl.conf"
UNITS = "/etc/systemd/system"
SYSTEM_NCCL = "/usr/lib/x86_64-linux-gnu/libnccl.so.2"
RELEASE = [*real_nccl.RELEASES][-1]
_OTHER_NCCL = "/opt/nccl"
_RUNS, _WRITTEN = "/var/lib/clusterprep", "/etc/lab-journal.conf"


def _line(path: str, text: str) -> Plant:
    return lambda host, lab: faults.written(host, path, text)


def _row(name: str, check: str, path: str, text: str, also: Mapping[str, str] | None = None) -> Row:
    return Row(name, check, _line(path, text), several=True, also=also or {})


def _decoy(
    name: str, check: str, path: str, text: str, also: Mapping[str, str] | None = None
) -> Row:
    return Row(name, check, _line(path, text), verdict="pass", several=True, also=also or {})


SERVICE = "[Service]\nExecStart=/bin/true\nLimitNOFILE=65536\nLimitMEMLOCK=infinity\n"


def _unit(name: str) -> Plant:
    """A service of a host with systemd, and another package's drop-in for it."""

    def plant(host: Host, lab: Lab) -> Fault:
        return faults.together(
            faults.written(host, "/run/systemd/system/.there", ""),
            faults.written(host, f"{UNITS}/{name}", SERVICE),
            faults.written(
                host, f"{UNITS}/{name}.d/nccl.conf", "[Service]\nEnvironment=NCCL_DEBUG=INFO\n"
            ),
        )

    return plant


def _another_nccl(host: Host, lab: Lab) -> Fault:
    """A site's profile puts an NCCL of its own before the job's, in login shells alone."""
    library = faults.compiled_nccl(host, f"{_OTHER_NCCL}/libnccl.so.2", 22304)
    return faults.together(
        library, faults.written(host, PROFILE, f"export LD_LIBRARY_PATH={_OTHER_NCCL}\n")
    )


# ---------------------------------------------------------------- what runs of ours leave


def _words(host: Host, lab: Lab) -> list[str]:
    """An apply of one file to this host alone."""
    book = lab.folder / "journal.yaml"
    book.write_text(f'- file: {{path: {_WRITTEN}, content: "new\\n"}}\n')
    return ["--playbook", str(book), "--no-verify", "--only", "ssh.", "--limit", host.name]


def _forgotten(host: Host) -> Fault:
    return Fault(lambda: host.run(["rm", "-rf", _RUNS, _WRITTEN]))


def _cut_off(host: Host, lab: Lab) -> Fault:
    """Kill the controller when the host has committed, before it hears that the run is done."""
    inventory = lab.inventory(lab.folder / "journal-inventory.yaml")
    argv = [
        sys.executable,
        "-m",
        "tests.support.stopping",
        "kill",
        "commit answered",
        "apply",
        str(inventory),
    ]
    killed = lab.controller.run([*argv, *_words(host, lab)])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    return _forgotten(host)


def _undone(host: Host, lab: Lab) -> Fault:
    inventory = lab.inventory(lab.folder / "journal-inventory.yaml")
    applied = clusterprep(lab, "apply", *_words(host, lab), inventory=inventory)
    undone = clusterprep(lab, "rollback", "--limit", host.name, inventory=inventory)
    assert (applied.code, undone.code) == (0, 0), (applied.stderr, undone.stderr)
    return _forgotten(host)


# ---------------------------------------------------------------- the rows

_OVERRIDES = {"env.shadow": "it overrides what apply would write"}
_DETAIL = {"env.nccl_uniform": "with it on one node alone the start hangs"}
_NOBODY = "export NCCL_DEBUG=TRACE CUDA_VISIBLE_DEVICES=3 CUDA_LAUNCH_BLOCKING=1\n"

PROXY = "/etc/profile.d/proxy.sh"
ROWS = (
    _row(
        "proxy between nodes",
        "net.endpoints",
        PROXY,
        "export http_proxy=http://proxy.example:3128 no_proxy=localhost\n",
    ),
    _decoy(
        "proxy that leaves the nodes out",
        "net.endpoints",
        PROXY,
        "export http_proxy=http://proxy.example:3128 no_proxy=localhost,10.0.0.0/8,n1,n2\n",
    ),
    _row("NCCL_DEBUG in ~/.bashrc", "env.shadow", BASHRC, "# mine\nexport NCCL_DEBUG=INFO\n"),
    _row("NCCL_DEBUG in /etc/environment", "env.shadow", SYSTEM, 'NCCL_DEBUG="INFO"\n'),
    _row("NCCL_DEBUG in ~/.nccl.conf", "env.shadow", HOME_CONF, "NCCL_DEBUG=INFO\n"),
    Row("NCCL_DEBUG in a unit's drop-in", "env.shadow", _unit("train.service"), several=True),
    Row("NCCL_DEBUG for slurmd", "env.shadow", _unit("slurmd.service"), several=True),
    _row(
        "another buffer size on one node",
        "env.nccl_uniform",
        PROFILE,
        "export NCCL_BUFFSIZE=8388608\n",
    ),
    _row("another buffer size in nccl.conf", "env.nccl_uniform", CONF, "NCCL_BUFFSIZE=1048576\n"),
    _row(
        "an interface that is not there",
        "env.nccl_hca_exists",
        BASHRC,
        "export TP_SOCKET_IFNAME=eth9\n",
    ),
    _row(
        "NCCL's interface is not there",
        "env.nccl_hca_exists",
        BASHRC,
        "export NCCL_SOCKET_IFNAME=ib7\n",
        _OVERRIDES,
    ),
    _row(
        "a blank before a name in nccl.conf",
        "env.nccl_conf",
        CONF,
        "# site\n NCCL_SET_THREAD_NAME=1\n",
    ),
    _row(
        "a comment behind a value in nccl.conf",
        "env.nccl_conf",
        CONF,
        "NCCL_SET_THREAD_NAME=1 # names\n",
    ),
    _row("a byte-order mark in nccl.conf", "env.nccl_conf", CONF, "\ufeffNCCL_SET_THREAD_NAME=1\n"),
    _row(
        "a misspelt name for all sessions",
        "env.nccl_unknown",
        SYSTEM,
        "NCCL_DEBUG_SUBSYSTEM=INIT\n",
    ),
    _row(
        "a name that torch gave up",
        "env.deprecated",
        PROFILE,
        "export TORCH_NCCL_TRACE_BUFFER_SIZE=2000\n",
    ),
    _row(
        "true where NCCL reads a number",
        "env.no_effect",
        PROFILE,
        "export NCCL_IB_PCI_RELAXED_ORDERING=true\n",
    ),
    _row(
        "P2P switched off and forgotten", "env.nccl_debug", PROFILE, "export NCCL_P2P_DISABLE=1\n"
    ),
    _row(
        "details of every collective, forgotten",
        "env.nccl_debug",
        SYSTEM,
        "TORCH_DISTRIBUTED_DEBUG=DETAIL\n",
        _DETAIL,
    ),
    _row("every kernel waited for", "env.bad_cuda", SYSTEM, "CUDA_LAUNCH_BLOCKING=1\n"),
    _row(
        "a profiler in every program",
        "env.bad_cuda",
        PROFILE,
        "export CUDA_INJECTION64_PATH=/opt/prof.so\n",
    ),
    Row(
        "LD_LIBRARY_PATH with an NCCL, in login shells", "env.ld_path", _another_nccl, several=True
    ),
    _row(
        "CUDA_VISIBLE_DEVICES in login shells alone",
        "env.cuda_visible",
        PROFILE,
        "export CUDA_VISIBLE_DEVICES=0\n",
    ),
    _row(
        "CUDA_VISIBLE_DEVICES with a hole",
        "env.cuda_visible",
        SYSTEM,
        "CUDA_VISIBLE_DEVICES=0,1,-1,2\n",
    ),
    _row("NPROC_PER_NODE of another job", "launch.nproc", SYSTEM, "NPROC_PER_NODE=4\n"),
    _row("a rank of an earlier job", "launch.ranks", BASHRC, "export RANK=5 WORLD_SIZE=64\n"),
    _row(
        "the rendezvous of an earlier job",
        "launch.ranks",
        PROFILE,
        "export MASTER_ADDR=old MASTER_PORT=12355\n",
    ),
    _decoy("the rendezvous of this job", "launch.ranks", PROFILE, "export MASTER_PORT=29500\n"),
    Row("apply killed between commit and finalize", "state.journal", _cut_off, several=True),
    Row(
        "apply and rollback, both finalized", "state.journal", _undone, verdict="pass", several=True
    ),
    _decoy("a line that is commented out", "env.shadow", BASHRC, "# export NCCL_DEBUG=INFO\n"),
    _decoy("the value that apply writes", "env.shadow", BASHRC, "export NCCL_DEBUG=WARN\n"),
    _decoy("start-up files of another user", "env.cuda_visible", "/home/somebody/.bashrc", _NOBODY),
    _decoy("a switch that is off", "env.bad_cuda", SYSTEM, "CUDA_LAUNCH_BLOCKING=0\n"),
    _decoy("P2P said to be on", "env.nccl_debug", PROFILE, "export NCCL_P2P_DISABLE=0\n"),
    _decoy("the default, written down", "env.nccl_uniform", PROFILE, "export NCCL_SHM_DISABLE=0\n"),
    _decoy(
        "a search path without NCCL",
        "env.ld_path",
        PROFILE,
        "export LD_LIBRARY_PATH=/opt/lib:/usr/local/lib\n",
    ),
    _decoy(
        "a list that excludes what is not there",
        "env.nccl_hca_exists",
        BASHRC,
        "export NCCL_IB_HCA=^mlx5_9\n",
    ),
)

_FEWER = {"launch.nproc": "a launcher starts one process per visible GPU"}
# On servers with eight GPUs and their cards.
GPU_ROWS = (
    _row(
        "half of the GPUs in login shells",
        "env.cuda_visible",
        PROFILE,
        "export CUDA_VISIBLE_DEVICES=0,1,2,3\n",
        _FEWER,
    ),
    _row(
        "an RDMA card that is not there",
        "env.nccl_hca_exists",
        PROFILE,
        "export NCCL_IB_HCA=mlx5_77\n",
        _OVERRIDES,
    ),
)


# ---------------------------------------------------------------- NVIDIA's own library


def missing_nccl() -> str | None:
    """Why NCCL itself cannot be had, if so."""
    try:
        real_nccl.library(RELEASE)
    except LookupError as why:
        return str(why)
    return None


def with_nccl(lab: Lab) -> Iterator[Fault]:
    """Hosts with the system's NCCL, and with what containers leave behind."""
    for host in lab.hosts:
        host.run(["mkdir", "-p", SYSTEM_NCCL.rpartition("/")[0]])
        host.run(["ln", "-s", str(real_nccl.library(RELEASE)), SYSTEM_NCCL])
        yield Fault(lambda host=host: host.run(["rm", SYSTEM_NCCL]))  # type: ignore[misc]
        yield faults.docker0(host)


NCCL_ROWS = (
    _row("a list that leaves loopback in", "nccl.iface", CONF, "NCCL_SOCKET_IFNAME=^docker\n"),
    _row(
        "no interface of that name, as NCCL sees it",
        "nccl.iface",
        CONF,
        "NCCL_SOCKET_IFNAME=ib7\n",
        {"env.nccl_hca_exists": "it says the same without NCCL"},
    ),
    _row(
        "docker's bridge, by ~/.nccl.conf",
        "nccl.iface",
        HOME_CONF,
        "NCCL_SOCKET_IFNAME=docker0\n",
        _OVERRIDES,
    ),
    _decoy(
        "a list that excludes loopback too", "nccl.iface", CONF, "NCCL_SOCKET_IFNAME=^lo,docker\n"
    ),
)
