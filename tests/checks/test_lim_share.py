"""CPUs and memory of a session against the machine, its GPUs and their NUMA nodes."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.gpu import Function, Gpu, Nvml
from clusterprep.facts.launch_limits import Share, parse_cpus
from clusterprep.facts.memory import NumaNode
from clusterprep.model import Finding
from tests.support.fleet import absent, findings, fleet, told

TIB = 1 << 40
NUMA = (NumaNode(0, "0-63", True), NumaNode(1, "64-127", True))


def gpus(count: int) -> Nvml:
    seen = tuple(Gpu(i, "H100", f"GPU-{i}", f"00000000:{i:02x}:00.0") for i in range(count))
    return Nvml("550.54.15", "12.4", seen, ())


def functions(count: int = 8) -> tuple[Function, ...]:
    return tuple(Function(f"0000:{i:02x}:00.0", False, i // 4, False) for i in range(count))


def node(cpus: str = "0-127", visible: int = 8, **fields: Any) -> dict[str, Any]:
    """A machine of 128 CPUs and 1 TiB with eight GPUs on two NUMA nodes."""
    return {
        "lim.share": Share(parse_cpus(cpus), parse_cpus("0-127"), **fields),
        "gpu.functions": functions(),
        "gpu.nvml": gpus(visible),
        "numa.nodes": NUMA,
        "mem.total": TIB,
    }


def blamed(check: str, facts: dict[str, Any]) -> Finding:
    (bad,) = findings(fleet(n1=facts), check)
    return bad


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(node(), "pass", id="all"),
        pytest.param(node("2-63,66-127"), "pass", id="some-kept-for-the-system"),
        pytest.param(node("0-31,64-95"), "pass", id="half"),
        pytest.param(node("0-30,64-95"), "fail warning", id="less-than-half"),
        pytest.param(node("0-63"), "fail warning", id="one-socket"),
        pytest.param(node("0"), "fail warning + fail warning", id="one-core"),
        pytest.param(node("0-15,64", visible=1), "pass", id="one-gpu-of-eight"),
        pytest.param(node("0-7", visible=1), "pass", id="half-of-an-eighth"),
        pytest.param(node("0-6", visible=1), "fail warning", id="less-than-half-of-an-eighth"),
        pytest.param(node("64-79", visible=1), "fail warning", id="beside-another-gpu"),
        pytest.param(node(quota=64.0), "pass", id="quota-of-half"),
        pytest.param(node(quota=8.0), "fail warning", id="quota"),
        pytest.param(node("0", slurm=True), "skip not_applicable", id="what-the-job-asked-for"),
        pytest.param(
            {**node("0-31,64-95"), "gpu.nvml": absent("hung"), "numa.nodes": absent()},
            "pass",
            id="gpus-not-known",
        ),
        pytest.param(
            {**node(), "lim.share": absent("garbled")}, "unknown warning garbled", id="not-known"
        ),
        pytest.param(
            {**node(), "lim.daemon_cpus": (("slurmd", frozenset({0, 1})),)},
            "fail warning",
            id="slurmd",
        ),
        pytest.param(
            {**node(), "lim.daemon_cpus": (("containerd", frozenset({0, 1})),)},
            "pass",
            id="a-container-has-its-own-cpuset",
        ),
    ],
)
def test_the_cpus_of_a_session(facts: dict[str, Any], expected: str) -> None:
    assert told(fleet(n1=facts), "lim.cpus") == {"n1": expected}


def test_gpus_without_a_cpu_beside_them_are_named_with_what_was_wanted() -> None:
    bad = blamed("lim.cpus", node("0-63"))
    assert bad.message == "an ssh session may run on no CPU beside GPU 4,5,6,7"
    assert bad.seen == "CPUs 0-63; NUMA 1 has 64-127"
    assert bad.wanted == "at least 64 of 128, and some beside each GPU"


def test_what_limits_the_cpus_is_named() -> None:
    group = "/sys/fs/cgroup/user.slice"
    bad = blamed("lim.cpus", node(quota=8.0, sources=(("quota", group),)))
    assert bad.seen == f"8 CPUs of 128 ({group})"
    assert group in bad.remedy
    few = blamed("lim.cpus", node("0-9,64-73", sources=(("cpus", group),)))
    assert few.seen == f"CPUs 0-9,64-73: 20 of 128 ({group})"


@pytest.mark.parametrize(
    ("facts", "wanted", "expected"),
    [
        pytest.param(node(), None, "pass", id="no-limit"),
        pytest.param(node(memory=TIB // 2), None, "pass", id="half"),
        pytest.param(node(memory=TIB // 2 - 1), None, "fail warning", id="less"),
        pytest.param(node(memory=TIB // 16, visible=1), None, "pass", id="one-gpu-of-eight"),
        pytest.param(node(memory=0), None, "fail warning", id="none"),
        pytest.param(node(memory=4 * TIB), None, "pass", id="more-than-there-is"),
        pytest.param(node(), "2T", "fail error", id="required-and-not-in-the-machine"),
        pytest.param(node(memory=TIB // 2), "900G", "fail error", id="required"),
        pytest.param(node(memory=1, slurm=True), None, "skip not_applicable", id="slurm"),
        pytest.param(
            {**node(), "lim.share": absent("hung")}, None, "unknown warning hung", id="not-known"
        ),
    ],
)
def test_the_memory_of_a_session(facts: dict[str, Any], wanted: str | None, expected: str) -> None:
    settings = {"require": {"lim.memory": wanted}} if wanted else {}
    assert told(fleet(each=settings, n1=facts), "lim.memory") == {"n1": expected}


def test_a_number_of_cpus_can_be_required() -> None:
    seen = fleet(each={"require": {"lim.cpus": "96"}}, n1=node("0-31,64-117"))
    assert told(seen, "lim.cpus") == {"n1": "fail error"}
