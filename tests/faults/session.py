"""Start-up files and variables of a login, some that must not matter and some that do."""

from __future__ import annotations

from collections.abc import Mapping

from tests.faults.row import Plant, Row
from tests.support.lab import faults

_TALKS = 'echo "Welcome to $(hostname)!"; head -c 300000 /dev/zero | tr "\\0" x; echo\n'


def _environment(**variables: str) -> Plant:
    return lambda host, lab: faults.session_environment(host, variables)


def _bashrc(text: str) -> Plant:
    return lambda host, lab: faults.written(host, "/root/.bashrc", text)


def _harmless(name: str, plant: Plant, also: Mapping[str, str] | None = None) -> Row:
    return Row(name, "ssh.reach", plant, verdict="pass", several=True, also=also or {})


def _conf(text: str) -> Plant:
    return lambda host, lab: faults.written(host, "/etc/nccl.conf", text)


_JOB = dict.fromkeys(
    (
        "torch.version",
        "nccl.torch",
        "nccl.system",
        "nccl.plugin",
        "fabric.plugin",
        "sw.known_bad",
        "cuda.runtime_vs_driver",
    ),
    "the interpreter that does not start is asked",
)
_JOB |= dict.fromkeys(
    ("env.deprecated", "env.no_effect"), "what a name does depends on the version of torch"
)
_JOB |= {"nccl.iface": "NCCL is asked through that interpreter"}

ROWS = (
    _harmless("a start-up file that talks", _bashrc(_TALKS)),
    _harmless("PATH with nothing in it", _environment(PATH="/nowhere")),
    Row(
        "PYTHONHOME that leads nowhere",
        "python.env",
        _environment(PYTHONHOME="/nowhere"),
        also=_JOB,
        several=True,
    ),
    _harmless("LD_PRELOAD that is not there", _environment(LD_PRELOAD="/usr/lib/libnothing.so")),
    _harmless(
        "another language", _environment(LANG="de_DE.UTF-8", LC_ALL="de_DE.UTF-8", LANGUAGE="de")
    ),
    _harmless("TMPDIR that is not there", _environment(TMPDIR="/nowhere")),
    Row("a start-up file that ends the shell", "ssh.reach", _bashrc("exit 3\n"), several=True),
    Row(
        "a misspelt name of NCCL's",
        "env.nccl_unknown",
        _bashrc("export NCCL_SOKET_IFNAME=eth0\n"),
        several=True,
    ),
    Row(
        "a name of old torches",
        "env.deprecated",
        _bashrc("export NCCL_ENABLE_TIMING=1\n"),
        several=True,
    ),
    Row(
        "a version that chooses nothing",
        "env.no_effect",
        _bashrc("export NCCL_VERSION=2.11.4-1\n"),
        several=True,
    ),
    Row(
        "export in nccl.conf",
        "env.nccl_conf",
        _conf("export NCCL_SET_THREAD_NAME=1\n"),
        several=True,
    ),
    Row(
        "nccl.conf as it should be",
        "env.nccl_conf",
        _conf("NCCL_SET_THREAD_NAME=1\n"),
        verdict="pass",
        several=True,
    ),
    Row(
        "Python that does not start",
        "ssh.reach",
        lambda host, lab: faults.written(host, "/usr/bin/python3", "#!/bin/sh\nexit 1\n", 0o755),
        reason="no_python",
        several=True,
    ),
)
