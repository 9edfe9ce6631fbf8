"""`check --stress` on hosts without GPUs: the same programs and judges on the processor."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.command import clusterprep
from tests.support.lab import Host, Lab, faults

pytestmark = [pytest.mark.hosts, pytest.mark.torch]
pytest.importorskip("torch")
TESTS = "gpu.gemm,gpu.hbm,gpu.h2d,gpu.p2p,gpu.sdc,gpu.liveness,mem.stream,gpu.dcgm"


def stress(lab: Lab, *options: str, **inventory: Any) -> Any:
    return clusterprep(lab, "check", "--stress", *options, inventory=lab.inventory(**inventory))


def processes(host: Host) -> list[int]:
    return host.processes("clusterprep")


def test_each_host_is_loaded_and_left_as_it_was(lab4: Lab) -> None:
    """Two hosts, which share the processors of this machine."""
    wanted = {"gpu.gemm": "0.0001", "gpu.hbm": "1000000"}
    found = stress(lab4, "--only", TESTS, "--limit", "n[1-2]", require=wanted)
    every = ["n1", "n2"]
    assert found.blamed("gpu.liveness", "pass") == every
    assert found.blamed("gpu.sdc", "pass") == every, "all processors here are one"
    assert found.blamed("gpu.gemm", "pass") == every
    assert found.blamed("gpu.hbm") == every, "no memory has a petabyte per second"
    (slow,) = [row for row in found.findings("gpu.hbm", "fail") if "n1" in row["nodes"]]
    assert slow["severity"] == "error"
    assert slow["seen"].startswith("CPU ")
    assert found.blamed("gpu.p2p", "skip") == every
    assert found.blamed("gpu.dcgm", "skip") == every
    assert found.blamed("mem.stream", "skip") == every, "two are too few to be compared"
    assert found.code == 1
    assert all(processes(host) == [] for host in lab4.hosts)


def test_gpus_in_use_are_not_loaded(lab4: Lab) -> None:
    used = [{"count": 1, "processes": [{"pid": 1, "mib": 40960}], "used": 40960}]
    with faults.gpus(lab4.hosts[2], used):
        began = time.monotonic()
        found = stress(lab4, "--only", "mem.stream", "--limit", "n3")
        assert time.monotonic() - began < 10
    (row,) = found.findings("mem.stream", "unknown")
    assert row["reason"] == "busy"
    assert found.blamed("gpu.busy") == ["n3"]


def test_a_host_without_torch_is_unknown(lab4: Lab) -> None:
    found = stress(
        lab4, "--only", "gpu.liveness,mem.stream", "--limit", "n1", python="/usr/bin/python3"
    )
    for check in ("gpu.liveness", "mem.stream"):
        (row,) = found.findings(check, "unknown")
        assert row["reason"] == "missing_tool"


def test_without_stress_nothing_is_loaded(lab4: Lab) -> None:
    found = clusterprep(lab4, "check", "--only", "gpu.gemm", "--limit", "n1")
    assert found.blamed("gpu.gemm", "skip") == ["n1"]
    assert found.code == 3
    assert "only `check --stress` runs it" in str(found.report["notices"])


DCGMI = """#!/bin/sh
[ "$*" = "diag -r 1 -j" ] || exit 9
cat <<'END'
{"DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": [{"name": "software",
"results": [{"entity_group": "GPU", "entity_id": 0, "status": "Fail", "warnings": [{"error_id": 29,
"error_severity": 5, "warning": "Persistence mode for GPU 0 is disabled."}]}]}]}]}}
END
exit 226
"""


def test_what_dcgm_says_is_told(lab4: Lab) -> None:
    """A stand-in for dcgmi in the form of release 4, whose exit code is not 0 either."""
    host = lab4.host("n2")
    script = faults.written(host, "/usr/local/sbin/dcgmi", DCGMI, 0o755)
    with faults.gpus(host, [{"count": 1}]), script:
        found = stress(lab4, "--only", "gpu.dcgm", "--limit", "n2", require={"gpu.dcgm": "1"})
    (row,) = found.findings("gpu.dcgm")
    assert row["seen"] == "software on GPU 0 «Persistence mode for GPU 0 is disabled.»"
    assert row["severity"] == "error", "it is required"
