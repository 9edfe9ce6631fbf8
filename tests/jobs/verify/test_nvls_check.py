"""nccl.nvls: what NCCL logged of NVLink SHARP, against what GPUs and switches have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from clusterprep.facts.gpu import Model
from clusterprep.facts.nvlink import NvLinks
from clusterprep.jobs.verify.nccl_log import parse
from clusterprep.jobs.verify.nvls_check import nvls_findings
from clusterprep.jobs.verify.schedule import TrialPlan, plan_trial
from clusterprep.model import Finding, Fleet, Node, VerifySettings
from clusterprep.remote.agent.nccl_lines import Output
from tests.jobs.verify import nccl_logs
from tests.jobs.verify.stories import on_node, story
from tests.machines import play
from tests.support.fleet import absent, fleet

EIGHT = 8
AVAILABLE = "NVLS multicast support is available on dev {dev} (NVLS_NCHANNELS 16)"
CHANNELS = "24 coll channels, 24 collnet channels, {count} nvls channels, 32 p2p channels, x"
SWITCHED = NvLinks(tuple(range(18)), (), True, ())


def kept(text: str) -> list[str]:
    """What the agent keeps of a rank's output."""
    output = Output()
    output.hear(text.encode())
    return output.lines


def hgx(
    model: str = "NVIDIA H100 80GB HBM3",
    capability: str = "9.0",
    links: Any = SWITCHED,
    count: int = EIGHT,
    nodes: int = 2,
) -> Fleet:
    facts = {
        "gpu.model": {number: Model(model, 80 << 30, capability) for number in range(count)},
        "nvlink.links": dict.fromkeys(range(count), links),
    }
    if not isinstance(links, NvLinks):
        facts["nvlink.links"] = links
    return fleet(**{f"n{number}": dict(facts) for number in range(1, nodes + 1)})


def plan(
    seen: Fleet, count: int = EIGHT, env: Mapping[str, str] | None = None, **more: Any
) -> TrialPlan:
    of = [
        Node(name, "10.0.0.1", index, nproc_per_node=count, **more)
        for index, name in enumerate(seen.snapshots)
    ]
    settings = VerifySettings(backend="nccl", sizes=(8, 1 << 20), timeout=10.0)
    given = {node.name: dict(env or {}) for node in of}
    return plan_trial(of, given, ("10.0.0.1", 29500), settings, {n.name: count for n in of})


def healthy(rank: int) -> list[str]:
    return [AVAILABLE.format(dev=rank % EIGHT), CHANNELS.format(count=16)]


def told(seen: Fleet, lines: Mapping[int, list[str]], of: TrialPlan | None = None) -> list[Finding]:
    made = of or plan(seen)
    events = [on_node(made, rank, "nccl", lines=heard, cut=0) for rank, heard in lines.items()]
    return list(nvls_findings(story(*events, plan=made), seen))


def one(seen: Fleet, lines: Mapping[int, list[str]], of: TrialPlan | None = None) -> Finding:
    (found,) = told(seen, lines, of)
    return found


def of_all(lines: list[str], nodes: int = 2, count: int = EIGHT) -> dict[int, list[str]]:
    return dict.fromkeys(range(nodes * count), lines)


def test_nvls_with_channels_passes() -> None:
    found = one(hgx(), {rank: healthy(rank) for rank in range(16)})
    assert (found.verdict, found.severity, found.nodes) == ("pass", "warning", ("n1", "n2"))
    assert found.seen == "16 NVLS channels"


def test_what_nccl_says_of_the_h200_without_multicast() -> None:
    """«Available», and then it went on without: the first line alone says the reverse."""
    lines = {rank: healthy(rank) for rank in range(16)}
    lines[3] = kept(nccl_logs.NVLS_REFUSED)
    failed, passed = sorted(told(hgx(), lines), key=lambda finding: finding.verdict)
    assert (failed.verdict, failed.severity, failed.nodes) == ("fail", "warning", ("n1",))
    assert "CUDA error 401" in failed.message
    assert "Proceeding without NVLS support" in failed.message
    assert failed.remedy
    assert (passed.verdict, passed.nodes) == ("pass", ("n2",))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(nccl_logs.NVLS_USED, "pass", id="2.19"),
        pytest.param(nccl_logs.NVLS_MISSING, "fail", id="2.18-driver-without"),
        pytest.param(nccl_logs.NVLS_REFUSED, "fail", id="2.27-refused"),
        pytest.param(nccl_logs.NVLS_CHANNELS, "unknown", id="one-line-of-two"),
        pytest.param(nccl_logs.GPUDIRECT, "unknown", id="no-word-of-it"),
    ],
)
def test_logs_that_were_published(text: str, expected: str) -> None:
    found = one(hgx(), of_all(kept(text)))
    assert (found.verdict, found.nodes) == (expected, ("n1", "n2"))


def test_available_and_on_no_channel_is_not_in_use() -> None:
    """As on two trays of GB200 where one GPU was cut off from its switch: 33 of 500 GB/s."""
    found = one(hgx(), of_all([AVAILABLE.format(dev=0), CHANNELS.format(count=0)]))
    assert (found.verdict, found.seen) == (
        "fail",
        "GPUs and switches have NVLS, and NCCL uses it on no channel",
    )


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        pytest.param(hgx("NVIDIA A100-SXM4-80GB", "8.0"), "A100-SXM4-80GB has no NVLS", id="a100"),
        pytest.param(
            hgx("NVIDIA H100 NVL", links=NvLinks((0, 1), (), False, ("0000:01:00.0",))),
            "needs NVSwitches",
            id="h100-nvl",
        ),
        pytest.param(hgx("NVIDIA L40S", "8.9", absent("not_applicable")), "", id="no-nvlink"),
        pytest.param(
            hgx(links=NvLinks(tuple(range(18)), (), True, (), virtual=True)),
            "virtual machine was given no NVLS",
            id="vm",
        ),
    ],
)
def test_where_there_is_none_it_is_skipped(seen: Fleet, why: str) -> None:
    found = one(seen, of_all(kept(nccl_logs.NVLS_MISSING)))
    assert (found.verdict, found.reason) == ("skip", "not_applicable")
    assert why in found.message


def test_a_virtual_machine_that_has_it_passes() -> None:
    seen = hgx(links=NvLinks(tuple(range(18)), (), True, (), virtual=True))
    assert one(seen, of_all(kept(nccl_logs.NVLS_USED))).verdict == "pass"


@pytest.mark.parametrize(
    ("env", "verdict"),
    [
        ({"NCCL_NVLS_ENABLE": "0"}, "skip"),
        ({"NCCL_NVLS_ENABLE": "1"}, "fail"),
        ({"NCCL_NVLS_ENABLE": "2"}, "fail"),
        ({"NCCL_ALGO": "Ring,Tree"}, "skip"),
        ({"NCCL_ALGO": "Ring,NVLSTree"}, "fail"),
    ],
)
def test_what_is_switched_off_is_not_missed(env: dict[str, str], verdict: str) -> None:
    seen = hgx()
    found = one(seen, of_all(kept(nccl_logs.NVLS_MISSING)), plan(seen, env=env))
    assert found.verdict == verdict


def test_two_gpus_of_a_node_are_too_few() -> None:
    seen = hgx(count=2)
    found = one(seen, {}, plan(seen, 2))
    assert (found.verdict, found.reason) == ("skip", "not_applicable")


def test_what_is_not_known_of_the_gpus_is_not_known_here() -> None:
    seen = hgx(links=absent("timed_out"))
    found = one(seen, of_all(kept(nccl_logs.NVLS_USED)))
    assert (found.verdict, found.severity, found.reason) == ("unknown", "warning", "timed_out")


def test_a_node_that_requires_it_has_an_error() -> None:
    seen = hgx()
    found = one(
        seen, of_all(kept(nccl_logs.NVLS_MISSING)), plan(seen, require={"nccl.nvls": "any"})
    )
    assert (found.verdict, found.severity) == ("fail", "error")


def test_over_gloo_there_is_nothing_to_say() -> None:
    seen = hgx()
    of = [Node(name, "10.0.0.1", index) for index, name in enumerate(seen.snapshots)]
    made = plan_trial(of, {}, ("h", 1), VerifySettings(sizes=(8, 1 << 20)), {})
    assert list(nvls_findings(story(plan=made), seen)) == []


@pytest.mark.machine
@play.needs_chroot
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("hgx-h100-ib", "pass"),
        ("hgx-b200", "pass"),
        ("dgx-h200", "pass"),
        ("h800", "pass"),
        ("azure-nd-h100", "pass"),
        ("a100-4hdr", "skip"),
        ("v100-dgx1", "skip"),
        ("l40s-pcie", "skip"),
        ("a6000-bridged", "skip"),
    ],
)
def test_healthy_machines(kind: str, expected: str) -> None:
    seen = play.world(kind).fleet
    count = len(seen.fact(seen.reached[0].name, "gpu.model"))
    made = plan(seen, count)
    lines = dict.fromkeys(range(made.world_size), kept(nccl_logs.NVLS_USED))
    if expected == "skip":
        lines = dict.fromkeys(range(made.world_size), kept(nccl_logs.NVLS_BEFORE_HOPPER))
    assert {finding.verdict for finding in told(seen, lines, made)} == {expected}


def test_both_forms_of_the_number_of_channels() -> None:
    assert parse(0, kept(nccl_logs.NVLS_USED)).nvls_channels == 16
    assert parse(0, kept(nccl_logs.NVLS_CHANNELS)).nvls_channels == 16
    before = parse(0, kept(nccl_logs.NVLS_BEFORE_HOPPER))
    assert (before.nvls, before.nvls_channels) == (False, 0)
