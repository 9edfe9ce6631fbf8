"""Where the job runs: an activation file and a virtual environment, which has torch."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

from tests.faults.row import Row
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault

VENV, ACTIVATE = "/opt/train", "/opt/train.sh"
_PYTHON = f"{VENV}/bin/python3"
_MAKE = f"{sys.executable} -m venv --without-pip {VENV} && echo {sysconfig.get_path('purelib')} > "
_SITE = f"{VENV}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/torch.pth"
# What is asked inside, and so not known of a node whose runtime cannot be entered.
INSIDE = dict.fromkeys(
    (
        "cuda.runtime_vs_driver",
        "env.bad_cuda",
        "env.cuda_visible",
        "env.deprecated",
        "env.ld_path",
        "env.nccl_debug",
        "env.nccl_hca_exists",
        "env.nccl_uniform",
        "env.nccl_unknown",
        "env.no_effect",
        "env.shadow",
        "fabric.plugin",
        "launch.nproc",
        "launch.ranks",
        "nccl.iface",
        "nccl.plugin",
        "nccl.system",
        "nccl.torch",
        "python.env",
        "rt.env",
        "sw.known_bad",
        "torch.version",
    ),
    "it is asked inside",
)


def in_environments(lab: Lab) -> Iterator[Fault]:
    """Hosts on which jobs source a file and then a virtual environment."""
    for one in lab.hosts:
        one.run(["sh", "-c", _MAKE + _SITE])
        yield Fault(lambda one=one: one.run(["rm", "-r", VENV]))  # type: ignore[misc]
        yield faults.written(one, ACTIVATE, "export OMP_NUM_THREADS=4\n")


def inventory(lab: Lab) -> dict[str, Any]:
    return {"python": None, "runtime": {"activate": ACTIVATE, "venv": VENV}}


def _base_gone(host: Host, lab: Lab) -> Fault:
    """The interpreter that the environment was made from was removed by an upgrade."""
    before = host.run(["readlink", _PYTHON]).stdout.strip()
    host.run(["ln", "-sfn", "/opt/python-3.10/bin/python3", _PYTHON])
    return Fault(lambda: host.run(["ln", "-sfn", before, _PYTHON]))


ROWS = (
    Row(
        "the job's virtual environment is not there",
        "rt.engine",
        lambda host, lab: faults.without(host, VENV),
        also=INSIDE,
        several=True,
    ),
    Row(
        "the Python of the job's virtual environment is gone",
        "rt.engine",
        _base_gone,
        also=INSIDE,
        several=True,
    ),
    Row(
        "the file that jobs source is not there",
        "rt.engine",
        lambda host, lab: faults.without(host, ACTIVATE),
        also=INSIDE,
        several=True,
    ),
    Row(
        "the file that jobs source ends the shell",
        "rt.engine",
        lambda host, lab: faults.written(host, ACTIVATE, "set -e\nmodule load cuda\n"),
        also=INSIDE,
        several=True,
    ),
    Row(
        "the file that jobs source takes a variable of apply away",
        "rt.env",
        lambda host, lab: faults.written(host, ACTIVATE, "unset GLOO_SOCKET_IFNAME\n"),
        several=True,
    ),
)
