"""What is named of nodes under load, and what is not, by samples that are composed here."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.counters import Earlier, Sample
from clusterprep.facts.gpu import Gpu, Nvml
from clusterprep.facts.kernel_log import KernelLog, KernelRecord, SXids, Xid, Xids
from clusterprep.facts.pci import PciLink
from clusterprep.jobs.load.findings import judge_load
from clusterprep.jobs.load.samples import (
    GpuSample,
    GpuTotals,
    LoadSample,
    Looks,
    NodeLooks,
    NodeSamples,
    SampledGpu,
    parse_totals,
)
from clusterprep.model import Absent, Finding, Fleet, Gpus
from clusterprep.survey.judge import without_rest
from tests.support.fleet import by_node, fleet
from tests.support.rails import tree

TREE = tree()
GPU_AT = TREE.gpus[0].at
FULL, SLOW = PciLink(16, 16, 32.0, 32.0), PciLink(16, 16, 2.5, 32.0)
GPU = SampledGpu(0, f"0000{GPU_AT}", "NVIDIA H100 80GB HBM3", 1980, 89)
NVML = Nvml("550.54.15", "12.4", (Gpu(0, GPU.model, "GPU-1", GPU.pci),))
AT_WORK = GpuSample(97, 0, 1980, 2619, 0, 61, 480_000)
AT_REST = GpuSample(0, 0, 345, 2619, 1, 34, 70_000)
COUNTED: dict[str, Any] = {
    "index": 0,
    "uuid": "GPU-1",
    "ecc_volatile": 0,
    "ecc_corrected": 0,
    "violations": {"power": 0, "thermal": 0, "board_limit": 0, "reliability": 0},
    "pcie_replays": 0,
    "links": [[link, 1, None] for link in range(18)],
    "link_errors": {"replay": 0, "recovery": 0, "crc": 0},
}
QUIET = KernelLog(1000.0, 0, 0.0)
NO_LINK_ERRORS = {"eth0": {"rx_errors": 0, "carrier_down_count": 1}}
NO_PCIE_ERRORS: dict[str, dict[str, int]] = {GPU_AT: {}}
LOOK: dict[str, Any] = {
    "log.records": QUIET,
    "gpu.xids": Xids(QUIET),
    "gpu.sxids": SXids(QUIET),
    "ib.counters": {},
    "pci.errors": NO_PCIE_ERRORS,
    "load.link_errors": NO_LINK_ERRORS,
}


def counted(**changes: Any) -> GpuTotals:
    """The counters of a node with one GPU, as its agent tells them."""
    return parse_totals([{**COUNTED, **changes}])


def on_link(link: int, **kinds: int) -> dict[str, list[int]]:
    """The counters of the GPU's links: 0, but for those of one link."""
    return {kind: [0] * link + [count] + [0] * (17 - link) for kind, count in kinds.items()}


NO_ERRORS = counted()
NOT_TOLD: Any = ["no", "not_applicable"]


def samples(*gpu: GpuSample, link: PciLink = FULL, **fields: Any) -> NodeSamples:
    """Samples of a node with one GPU, a second apart."""
    row = tuple(
        LoadSample(float(second), {0: one}, {GPU_AT: link}) for second, one in enumerate(gpu)
    )
    whole = {"gpus": {0: GPU}, "first": NO_ERRORS, "last": NO_ERRORS, **fields}
    return NodeSamples(None, samples=row, **whole)


HEALTHY = samples(AT_REST, *[AT_WORK] * 8, AT_REST)


def nodes(count: int = 1, **facts: Any) -> Fleet:
    each = {"pci.tree": TREE, "rdma.devices": (), "gpu.nvml": NVML, **facts}
    return fleet(**{f"n{number}": each for number in range(1, count + 1)})


def found(
    seen: NodeSamples | None = None,
    after: dict[str, Any] | None = None,
    before: dict[str, Any] | None = None,
    seconds: float = 60.0,
    on_gpus: bool = True,
) -> dict[str, Finding]:
    """What is said of one node, but for passes."""
    look = NodeLooks({**LOOK, **(before or {})}, {**LOOK, **(after or {})}, seen or HEALTHY)
    looks = Looks(seconds, on_gpus, {"n1": look})
    findings = judge_load(nodes(), looks)
    return {finding.check: finding for finding in findings if finding.verdict != "pass"}


def line(number: int, text: str) -> KernelRecord:
    return KernelRecord(
        number,
        1000.0 + number,
        3,
        1,
        1000.0 + number,
        text,
    )


def test_a_healthy_node_is_not_named() -> None:
    assert found() == {}


def test_a_link_that_was_fast_at_work_passes() -> None:
    looks = Looks(60.0, True, {"n1": NodeLooks(LOOK, LOOK, HEALTHY)})
    (passed,) = judge_load(nodes(), looks)
    assert (passed.check, passed.verdict) == ("pcie.gen", "pass")


# ---------------------------------------------------------------- GPUs


def test_a_gpu_at_work_over_gen1_is_named() -> None:
    bad = found(samples(*[AT_WORK] * 5, link=SLOW))["pcie.gen"]
    assert (bad.verdict, bad.severity) == ("fail", "warning")
    assert bad.message.startswith("while verify ran: ")
    assert bad.seen == f"GPU {GPU_AT} 2.5 of 32 GT/s"


def test_a_gpu_that_hides_its_maximum_at_rest_is_named() -> None:
    """GeForce cards tell 2.5 GT/s as their maximum too while they rest."""
    rows = samples(*[AT_WORK] * 5, link=SLOW)
    resting = replace(rows.samples[0], links={GPU_AT: PciLink(16, 16, 2.5, 2.5)})
    assert "pcie.gen" in found(replace(rows, samples=(resting, *rows.samples[1:])))


def test_a_gpu_that_raised_its_link_at_work_passes() -> None:
    rows = samples(*[AT_WORK] * 5)
    resting = replace(rows.samples[0], gpus={0: AT_REST}, links={GPU_AT: SLOW})
    assert found(replace(rows, samples=(resting, *rows.samples[1:]))) == {}


@pytest.mark.parametrize(("on_gpus", "expected"), [(True, {"n1": "unknown warning at_rest"})])
def test_a_job_on_gpus_that_never_shows_them_at_work_is_unknown(
    on_gpus: bool, expected: dict[str, str]
) -> None:
    seen = found(samples(*[AT_REST] * 5, link=SLOW), on_gpus=on_gpus)
    assert by_node(seen.values()) == expected


def test_an_idle_gpu_of_a_job_without_gpus_is_not_named() -> None:
    assert found(samples(*[AT_REST] * 5, link=SLOW), on_gpus=False) == {}


def test_a_lane_that_was_lost_meanwhile_is_named() -> None:
    narrow = replace(FULL, width=8)
    assert found(samples(*[AT_WORK] * 5, link=narrow))["pcie.width"].seen == (
        f"GPU {GPU_AT} x8 of x16"
    )


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        pytest.param([0, 0x48, 0x48, 0], "hardware slowdown and hardware thermal", id="sustained"),
        pytest.param([0, 0x8, 0, 0x8], None, id="a-flash-is-a-change-of-clocks"),
        pytest.param([0x4, 0x4, 0x4, 0x4], None, id="a-power-limit-is-normal"),
        pytest.param([None, None], None, id="not-told"),
    ],
)
def test_throttling(reasons: list[int | None], expected: str | None) -> None:
    seen = found(samples(*[replace(AT_WORK, reasons=bits) for bits in reasons]))
    assert set(seen) == ({"gpu.throttle_hw"} if expected else set())
    if expected:
        assert expected in seen["gpu.throttle_hw"].seen


@pytest.mark.parametrize(
    ("clocks", "expected"),
    [
        pytest.param([1980, 1980, 600, 600, 600], "GPU 0 fell from 1980 to 600 MHz", id="falls"),
        pytest.param([345, 1980, 1980, 1980], None, id="rises"),
        pytest.param([1980, 1980, 1395, 1395, 1395], None, id="a-power-limit"),
        pytest.param([1980, 600, 600, 1980, 600], None, id="for-moments"),
    ],
)
def test_clocks(clocks: list[int], expected: str | None) -> None:
    seen = found(samples(*[replace(AT_WORK, clock=clock) for clock in clocks]))
    told = seen["gpu.clocks"].seen if "gpu.clocks" in seen else None
    assert told == expected


def test_why_a_clock_fell_is_told() -> None:
    low = replace(AT_WORK, clock=600, reasons=0x4)
    bad = found(samples(AT_WORK, low, low, low))["gpu.clocks"]
    assert bad.seen == "GPU 0 fell from 1980 to 600 MHz (software power cap)"


def test_a_clock_that_is_low_all_the_time_is_named_by_its_peers() -> None:
    slow = samples(*[replace(AT_WORK, clock=1200)] * 5)
    looks = {f"n{number}": NodeLooks(LOOK, LOOK, HEALTHY) for number in range(1, 5)}
    looks["n3"] = NodeLooks(LOOK, LOOK, slow)
    seen = judge_load(nodes(4), Looks(60.0, True, looks))
    (bad,) = [finding for finding in seen if finding.verdict == "fail"]
    assert (bad.check, bad.nodes) == ("gpu.clocks", ("n3",))
    assert bad.seen == "GPU 0 1200 MHz where the same GPUs have 1980"


def test_the_clock_of_a_gpu_that_ended_its_work_may_fall() -> None:
    stale = replace(AT_REST, utilization=60, reasons=0)  # use of the second before
    assert found(samples(*[AT_WORK] * 5, stale, stale, AT_REST)) == {}


def test_heat_is_judged_at_its_highest() -> None:
    hot = samples(AT_WORK, replace(AT_WORK, temperature=86), AT_WORK)
    assert found(hot)["gpu.temp"].seen == "GPU 0: 86 °C, 3 °C left"


NEW_KINDS = dict.fromkeys(("received", "recovered", "effective"), 0)


@pytest.mark.parametrize(
    ("changes", "check", "seen"),
    [
        pytest.param({"ecc_volatile": 2}, "gpu.ecc_unc", "GPU 0: 2", id="uncorrected"),
        pytest.param({"ecc_corrected": 9}, "gpu.ecc_corr", "GPU 0: +9 in 60 s", id="corrected"),
        pytest.param(
            {"link_errors": on_link(7, replay=12)},
            "nvl.errors",
            "GPU 0: link 7 +12 replays in 60 s",
            id="nvlink-replays",
        ),
        pytest.param(
            {"link_errors": {"replay": 0, **on_link(7, recovery=1)}},
            "nvl.errors",
            "GPU 0: link 7 +1 recoveries in 60 s",
            id="nvlink-recovery",
        ),
        pytest.param(
            {"violations": {"thermal": 3_000_000_000}},
            "gpu.throttle_hw",
            "GPU 0: heat for 5% of the time in 60 s",
            id="heat-between-the-samples",
        ),
        pytest.param(
            {"pcie_replays": 400}, "pcie.aer", "GPU 0 +400 replays in 60 s", id="pcie-replays"
        ),
    ],
)
def test_counters_of_gpus_that_grow(changes: dict[str, Any], check: str, seen: str) -> None:
    bad = found(replace(HEALTHY, last=counted(**changes)))
    assert {name: finding.seen for name, finding in bad.items()} == {check: seen}
    assert {finding.message[:18] for finding in bad.values()} == {"while verify ran: "}


def test_errors_of_nvlink_5_are_judged_by_their_kinds() -> None:
    first = counted(link_errors=NEW_KINDS)
    grown = {**NEW_KINDS, **on_link(16, received=40, recovered=1)}
    bad = found(replace(HEALTHY, first=first, last=counted(link_errors=grown)))
    assert {name: finding.seen for name, finding in bad.items()} == {
        "nvl.errors": "GPU 0: link 16 +40 packets with errors, link 16 +1 recoveries in 60 s"
    }


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"link_errors": on_link(7, replay=2, crc=1)}, id="few-corrected-on-a-link"),
        pytest.param({"ecc_corrected": 1}, id="one-corrected"),
        pytest.param({"violations": {"power": 60_000_000_000}}, id="a-power-limit"),
        pytest.param({"pcie_replays": 3}, id="few-replays"),
        pytest.param(
            {
                "ecc_volatile": NOT_TOLD,
                "ecc_corrected": NOT_TOLD,
                "pcie_replays": NOT_TOLD,
                "violations": dict.fromkeys(("power", "thermal"), NOT_TOLD),
                "link_errors": NOT_TOLD,
            },
            id="not-told",
        ),
    ],
)
def test_counters_that_say_nothing(changes: dict[str, Any]) -> None:
    assert found(replace(HEALTHY, last=counted(**changes))) == {}


OLD = {"ecc_volatile": 1, "ecc_corrected": 5, "pcie_replays": 900, "violations": {"thermal": 9**12}}
OLD_LINKS = {"link_errors": on_link(3, replay=50, recovery=2)}


def test_errors_from_before_are_not_those_of_this_job() -> None:
    old = counted(**OLD, **OLD_LINKS)
    assert found(replace(HEALTHY, first=old, last=old)) == {}


def test_counters_that_began_anew_tell_no_growth() -> None:
    """The driver was loaded anew, or the GPU was reset: NVML counts from 0 again."""
    assert found(replace(HEALTHY, first=counted(**OLD, **OLD_LINKS))) == {}


def test_growth_between_two_runs_is_not_told_again() -> None:
    """`check` names it by the history; what verify adds is its own growth alone."""
    old = Sample(1200.0, {}, gpu={"GPU-1": {"held down by thermal": 0, "link 3 replay": 0}})
    now = {"held down by thermal": 10**12, "link 3 replay": 50}
    past = {"counters.earlier": Earlier(old, old), "gpu.counters": {"GPU-1": now}}
    grown = counted(violations={"thermal": 10**12}, link_errors=on_link(3, replay=50))
    look = {**LOOK, "ib.counters": Absent("denied")}
    both = NodeLooks(look, look, replace(HEALTHY, first=grown, last=grown))
    seen = judge_load(nodes(**past), Looks(60.0, True, {"n1": both}))
    assert "fail" not in {finding.verdict for finding in seen}


def test_growth_has_the_severity_and_the_remedy_of_its_check() -> None:
    bad = found(replace(HEALTHY, last=counted(link_errors=on_link(7, replay=12))))["nvl.errors"]
    assert (bad.severity, bad.message) == ("warning", "while verify ran: errors of NVLinks grow")
    assert bad.remedy == "nvidia-smi nvlink -s -i 0"


def test_a_link_that_went_down_is_named() -> None:
    links = [[link, int(link != 7), None] for link in range(18)]
    bad = found(replace(HEALTHY, last=counted(links=links)))
    assert {name: (one.severity, one.seen) for name, one in bad.items()} == {
        "nvl.state": ("error", "GPU 0: down: 7")
    }
    down_before = counted(links=links)
    assert found(replace(HEALTHY, first=down_before, last=down_before)) == {}


def test_gpus_that_the_job_does_not_use_are_not_judged() -> None:
    slow = [replace(AT_WORK, clock=clock) for clock in (1980, 600, 600, 600)]
    worse = counted(pcie_replays=400, ecc_corrected=90, links=[[0, 0, None]])
    both = NodeLooks(LOOK, LOOK, samples(*slow, last=worse))
    whole = nodes()
    (node,) = whole.inventory.nodes
    used = (replace(node, gpus=Gpus(count=2, use=(1,))),)
    other = replace(whole, inventory=replace(whole.inventory, nodes=used))
    seen = judge_load(other, Looks(60.0, True, {"n1": both}))
    assert "fail" not in {finding.verdict for finding in seen}


def test_errors_that_nvml_refuses_are_unknown() -> None:
    lost: Any = ["no", "gpu_lost"]
    gone = dict.fromkeys(("ecc_volatile", "ecc_corrected", "links", "pcie_replays"), lost)
    seen = found(replace(HEALTHY, last=counted(**gone)))
    assert {name: (one.verdict, one.reason) for name, one in seen.items()} == dict.fromkeys(
        ("gpu.ecc_corr", "gpu.ecc_unc", "nvl.errors"), ("unknown", "gpu_lost")
    )


def test_samples_that_ended_before_the_job_make_growth_unknown() -> None:
    seen = found(replace(HEALTHY, last=None))
    assert {name: (one.verdict, one.reason) for name, one in seen.items()} == dict.fromkeys(
        ("gpu.ecc_corr", "gpu.ecc_unc", "nvl.errors"), ("unknown", "garbled")
    )


@pytest.mark.parametrize(
    "row",
    [
        pytest.param({**COUNTED, "index": "0"}, id="an-index-that-is-a-text"),
        pytest.param({**COUNTED, "pcie_replays": 1.5}, id="half-a-replay"),
        pytest.param({**COUNTED, "ecc_volatile": "2"}, id="a-count-that-is-a-text"),
        pytest.param({**COUNTED, "link_errors": {"crc": [1, 2]}}, id="too-few-links"),
        pytest.param({"index": 0}, id="nothing"),
        pytest.param([], id="no-row"),
    ],
)
def test_counters_of_another_shape_are_refused(row: Any) -> None:
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        parse_totals([row])


# ---------------------------------------------------------------- links and the log


@pytest.mark.parametrize(
    ("after", "check", "seen"),
    [
        pytest.param(
            {"load.link_errors": {"eth0": {"rx_errors": 3, "carrier_down_count": 1}}},
            "eth.errors",
            "eth0 rx_errors +3 in 60 s",
            id="interface",
        ),
        pytest.param(
            {"pci.errors": {GPU_AT: {"correctable BadTLP": 900}}},
            "pcie.aer",
            f"GPU {GPU_AT} correctable BadTLP 900",
            id="many-corrected",
        ),
        pytest.param(
            {"pci.errors": {GPU_AT: {"fatal MalfTLP": 1}}},
            "pcie.aer",
            f"GPU {GPU_AT} fatal MalfTLP 1",
            id="one-fatal",
        ),
    ],
)
def test_counters_of_links_that_grow(after: dict[str, Any], check: str, seen: str) -> None:
    bad = found(after=after)
    assert {name: finding.seen for name, finding in bad.items()} == {check: seen}


@pytest.mark.parametrize(
    "after",
    [
        pytest.param({"pci.errors": {GPU_AT: {"correctable BadTLP": 4}}}, id="few-corrected"),
        pytest.param({"pci.errors": {GPU_AT: {"nonfatal UnsupReq": 4}}}, id="harmless"),
        pytest.param({"pci.errors": {GPU_AT: {}, "0000:99:00.0": {"fatal X": 1}}}, id="came"),
        pytest.param(
            {"load.link_errors": {**NO_LINK_ERRORS, "veth9": {"rx_errors": 9}}}, id="interface-came"
        ),
    ],
)
def test_errors_of_links_that_are_no_fault(after: dict[str, Any]) -> None:
    assert found(after=after) == {}


def test_pcie_errors_from_before_are_not_those_of_this_job() -> None:
    old = {"pci.errors": {GPU_AT: {"fatal MalfTLP": 1, "correctable BadTLP": 900}}}
    assert found(before=old, after=old) == {}


def test_one_bad_pcie_link_is_named_once() -> None:
    """The GPU counts what it sent again, the kernel the errors for which it did."""
    look = {"pci.errors": {GPU_AT: {"correctable BadTLP": 900}}}
    both = NodeLooks(LOOK, {**LOOK, **look}, replace(HEALTHY, last=counted(pcie_replays=400)))
    seen = judge_load(nodes(), Looks(60.0, True, {"n1": both}))
    assert [finding.check for finding in seen if finding.verdict == "fail"] == ["pcie.aer"]


XID = line(7, "NVRM: Xid (PCI:0000:13:00): 79, pid=4711, GPU has fallen off the bus.")
OLD_XID = replace(XID, number=3, seconds=900.0)
HUNG = line(8, "INFO: task python3:4711 blocked for more than 120 seconds.")


def logged(*records: KernelRecord) -> dict[str, Any]:
    log = replace(QUIET, now=1060.0, records=records)
    events = tuple(Xid("0000:13:00", 79, one) for one in records if "Xid" in one.text)
    return {"log.records": log, "gpu.xids": Xids(log, events)}


def test_an_xid_that_was_written_meanwhile_is_named() -> None:
    bad = found(after=logged(XID))["gpu.xid"]
    assert (bad.verdict, bad.severity) == ("fail", "error")
    assert bad.seen.startswith("Xid 79 on 0000:13:00: last ")


def test_a_line_of_the_log_that_was_written_meanwhile_is_named() -> None:
    assert found(after=logged(HUNG))["log.kernel"].seen.startswith("hung task: last ")


def test_lines_from_before_are_not_those_of_this_job() -> None:
    assert found(before=logged(OLD_XID), after=logged(OLD_XID)) == {}
    assert set(found(before=logged(OLD_XID), after=logged(OLD_XID, XID))) == {"gpu.xid"}


def test_lines_from_before_are_not_counted_again() -> None:
    """The agent sends the newest line of a kind, with the number of all that the log has."""
    old = replace(XID, number=3, seconds=900.0, since=800.0, count=4)
    again = replace(XID, since=800.0, count=6)
    bad = found(before=logged(old), after=logged(again))["gpu.xid"]
    assert bad.seen.startswith("Xid 79 on 0000:13:00: 2 times, last ")


def test_a_short_log_is_whole_for_the_time_of_the_job() -> None:
    short = replace(QUIET, first_number=500, first_seconds=990.0)
    look = {"log.records": short, "gpu.xids": Xids(short), "gpu.sxids": SXids(short)}
    assert found(before=look, after=look) == {}


def test_lines_that_were_overwritten_meanwhile_are_unknown() -> None:
    later = replace(QUIET, first_number=9000, first_seconds=1030.0, now=1060.0)
    after = {"log.records": later, "gpu.xids": Xids(later), "gpu.sxids": SXids(later)}
    seen = found(after=after)
    assert {name: (one.verdict, one.reason) for name, one in seen.items()} == dict.fromkeys(
        ("gpu.sxid", "gpu.xid", "log.kernel"), ("unknown", "truncated")
    )


# ---------------------------------------------------------------- what is not known


def test_a_driver_that_hangs_makes_gpus_unknown_and_nothing_else() -> None:
    seen = found(NodeSamples(Absent("hung", "no sample within 3 s")))
    assert {name: finding.verdict for name, finding in seen.items()} == {
        "gpu.ecc_corr": "unknown",
        "gpu.ecc_unc": "unknown",
        "nvl.errors": "unknown",
        "gpu.temp": "unknown",
        "gpu.throttle_hw": "unknown",
    }
    assert {finding.severity for finding in seen.values()} == {"warning"}


def test_a_node_without_a_driver_has_nothing_to_sample() -> None:
    assert found(NodeSamples(Absent("missing_tool"))) == {}


def test_a_log_that_may_not_be_read_is_unknown() -> None:
    denied = dict.fromkeys(("log.records", "gpu.xids", "gpu.sxids"), Absent("denied"))
    seen = found(before=denied, after=denied)
    assert {name: (one.verdict, one.reason) for name, one in seen.items()} == dict.fromkeys(
        ("gpu.sxid", "gpu.xid", "log.kernel"), ("unknown", "denied")
    )


# ---------------------------------------------------------------- what it replaces


def finding(verdict: Any, reason: str | None, *names: str) -> Finding:
    return Finding("pcie.gen", verdict, "warning", names, "", reason=reason)


def test_what_rested_gives_way_to_what_was_judged_at_work() -> None:
    rested = finding("skip", "at_rest", "n1", "n2")
    judged = finding("pass", None, "n1")
    assert [one.nodes for one in without_rest([rested], [judged])] == [("n2",)]
    assert without_rest([rested], []) == (rested,)


def test_other_skips_stay() -> None:
    virtual = finding("skip", "not_applicable", "n1")
    assert without_rest([virtual], [finding("pass", None, "n1")]) == (virtual,)
