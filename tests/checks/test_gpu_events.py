"""Xids by code: fatal, contained, a program's own, not known, and how long each counts."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.checks.gpu_events import CODES, LAST_CODE, NVLINK_CODES, RECOVERY_ACTION
from clusterprep.facts.kernel_log import FATAL_XIDS, XID, KernelLog, KernelRecord, Xids, parse_xids
from clusterprep.model import Absent
from tests.support.fleet import absent, findings, fleet, told
from tests.support.kernel_lines import (
    GPU,
    NO_JOURNAL,
    facts_of,
    journal_answer,
    ring_answer,
)

NOW = 30 * 86400.0
HOUR, DAY = 3600.0, 86400.0


def line(code: int, rest: str = "pid='<unknown>', name=<unknown>", pci: str = "0000:1b:00") -> str:
    return f"NVRM: Xid (PCI:{pci}): {code}, {rest}"


def xids(
    *texts: str, age: float = 600.0, first: Any = (0, 0.0), cut: int = 0, journal: Any = NO_JOURNAL
) -> dict[str, Any]:
    records = [[n, NOW - age - n, 3, 1, NOW - age - n, text] for n, text in enumerate(texts)]
    answer = {
        "now": NOW,
        "first": list(first),
        "records": records,
        "cut": {XID: cut} if cut else {},
    }
    return {"gpu.xids": parse_xids(answer, journal, GPU)}


FATAL = (
    46,
    48,
    54,
    62,
    64,
    74,
    79,
    95,
    109,
    110,
    119,
    120,
    136,
    140,
    143,
    144,
    150,
    151,
    155,
    156,
    158,
    167,
    169,
    171,
    172,
)
WARNED = (8, 63, 78, 92, 94, 121, 137, 157, 0, 1, 44, 66, 160, 168, 999)
OF_PROGRAMS = (11, 13, 14, 25, 31, 32, 37, 43, 45, 69, 80, 106, 107)
RECOVERY = "GPU recovery action changed from 0x0 (None) to "


@pytest.mark.parametrize("code", FATAL)
@pytest.mark.parametrize("age", [60.0, 20 * 86400.0])
def test_fatal_ones_are_errors_until_the_next_boot(code: int, age: float) -> None:
    assert told(fleet(n1=xids(line(code), age=age)), "gpu.xid") == {"n1": "fail error"}


@pytest.mark.parametrize("code", WARNED)
def test_contained_and_unknown_ones_are_warnings_for_a_day(code: int) -> None:
    assert told(fleet(n1=xids(line(code), age=86000.0)), "gpu.xid") == {"n1": "fail warning"}
    assert told(fleet(n1=xids(line(code), age=86401.0)), "gpu.xid") == {"n1": "pass"}


@pytest.mark.parametrize("code", OF_PROGRAMS)
def test_xids_of_programs_pass_and_are_said(code: int) -> None:
    seen = fleet(n1=xids(line(code, "pid=4711, name=python3")))
    assert told(seen, "gpu.xid") == {"n1": "pass"}
    assert findings(seen, "gpu.xid")[0].seen.startswith(f"Xid {code}: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            line(149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6)"),
            "fail error",
            id="fatal",
        ),
        pytest.param(
            line(149, "NETIR_LINK_EVT  Nonfatal XC0 i0 Link 08 (0x004505c6)"),
            "fail warning",
            id="nonfatal",
        ),
        pytest.param(
            line(145, "RLW_REMAP  Non-fatal XC0 i0 Link 02"), "fail warning", id="non-fatal"
        ),
        pytest.param(
            line(154, RECOVERY + "0x1 (GPU Reset Required)"), "fail error", id="reset-required"
        ),
        pytest.param(
            line(154, RECOVERY + "0x2 (Node Reboot Required)"), "fail error", id="reboot-required"
        ),
        pytest.param(line(154, RECOVERY + "0x3 (Drain P2P)"), "fail warning", id="drain"),
        pytest.param(
            line(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
            "pass",
            id="cured",
        ),
        pytest.param("NVRM: Xid (PCI:0000:1b:00): ", "fail warning", id="cut"),
    ],
)
def test_some_say_in_their_text_how_grave_they_are(text: str, expected: str) -> None:
    assert told(fleet(n1=xids(text)), "gpu.xid") == {"n1": expected}


def test_a_fatal_one_outweighs_what_programs_did_meanwhile() -> None:
    seen = fleet(n1=xids(line(13), line(79), line(45), line(94)))
    assert told(seen, "gpu.xid") == {"n1": "fail error + fail warning"}


# The form of a line of github.com/NVIDIA/open-gpu-kernel-modules/issues/1150, with other numbers.
CAUSED = "pid=4711, name=python3, Ch 0000000c caused by previous Xid "


@pytest.mark.parametrize(
    ("texts", "expected", "seen"),
    [
        pytest.param(
            (line(45, CAUSED + "149"), line(45, CAUSED + "149", "0000:43:00")),
            "fail error",
            "Xid 149, named by Xid 45 as its cause, on 0000:1b:00, 0000:43:00: 2 times",
            id="nvlink",
        ),
        pytest.param(
            (line(45, CAUSED + "79"), line(45, "pid=4711, name=python3, Ch 00000001")),
            "fail error",
            "Xid 79, named by Xid 45 as its cause, on 0000:1b:00: last",
            id="and-one-without-a-cause-after-it",
        ),
        pytest.param(
            (line(43, CAUSED + "94"),),
            "fail warning",
            "Xid 94, named by Xid 43 as its cause, on 0000:1b:00: last",
            id="of-another-code",
        ),
        pytest.param((line(45, CAUSED + "31"),), "pass", "Xid 45: ", id="a-programs-own"),
        pytest.param(
            (line(48), line(45, CAUSED + "48")),
            "fail error",
            "Xid 48 on 0000:1b:00: last",
            id="told-once",
        ),
        pytest.param(
            (line(149, "NETIR_LINK_EVT  Nonfatal XC0 i0 Link 08"), line(45, CAUSED + "149")),
            "fail warning",
            "Xid 149 on 0000:1b:00 (link 8): last",
            id="whose-own-line-says-how-grave",
        ),
    ],
)
def test_an_xid_that_another_names_as_its_cause(
    texts: tuple[str, ...], expected: str, seen: str
) -> None:
    """By way of the agent, which keeps lines with different causes apart."""
    node = fleet(n1=facts_of(ring_answer(*texts)))
    assert told(node, "gpu.xid") == {"n1": expected}
    assert findings(node, "gpu.xid")[0].seen.startswith(seen)


def test_one_finding_for_each_code_names_all_its_gpus() -> None:
    seen = fleet(n1=xids(line(48), line(48, pci="0000:43:00"), line(48, pci="0000:43:00")))
    (bad,) = findings(seen, "gpu.xid")
    assert bad.seen == "Xid 48 on 0000:1b:00, 0000:43:00: 3 times, last 10 min ago"
    assert bad.remedy.startswith("nvidia-smi --gpu-reset -i 0000:1b:00.0")


@pytest.mark.parametrize(
    ("code", "cure"),
    [
        (79, "reboot"),
        (74, "nvidia-smi nvlink"),
        (95, "--gpu-reset"),
        (54, "power cables of 0000:1b:00.0"),
    ],
)
def test_each_has_its_cure(code: int, cure: str) -> None:
    assert cure in findings(fleet(n1=xids(line(code))), "gpu.xid")[0].remedy


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(xids(), "pass", id="none"),
        pytest.param(
            xids(first=(7000, NOW - 7200)), "unknown error truncated", id="a-ring-of-two-hours"
        ),
        pytest.param(
            xids(first=(7000, NOW - 600)), "unknown error truncated", id="a-ring-of-minutes"
        ),
        pytest.param(xids(first=(7000, NOW - 7 * DAY)), "pass", id="a-ring-of-a-week"),
        pytest.param(
            xids(line(13), first=(7000, NOW - 600)),
            "unknown error truncated",
            id="which-holds-a-programs",
        ),
        pytest.param(
            xids(line(79), first=(7000, NOW - 600)), "fail error", id="which-holds-a-fatal-one"
        ),
        pytest.param(
            xids(line(13), cut=900), "unknown error truncated", id="too-many-to-bring-home"
        ),
        pytest.param(xids(line(79), cut=900), "fail error", id="too-many-and-one-fatal"),
        pytest.param({"gpu.xids": absent("denied")}, "unknown error denied", id="denied"),
        pytest.param({"gpu.xids": absent("hung")}, "unknown error hung", id="hung"),
        pytest.param({"gpu.xids": absent("garbled")}, "unknown error garbled", id="garbled"),
        pytest.param(
            {"gpu.xids": Absent("not_applicable", "no NVIDIA GPU here")},
            "skip not_applicable",
            id="no-gpu",
        ),
    ],
)
def test_what_the_log_does_not_hold(facts: dict[str, Any], expected: str) -> None:
    assert told(fleet(n1=facts), "gpu.xid") == {"n1": expected}


def test_the_log_of_a_node_with_xids_is_the_logs_own_check_too() -> None:
    log = KernelLog(NOW, 0, 0.0, (KernelRecord(1, NOW - 5, 3, 1, NOW - 5, line(79)),))
    assert told(fleet(n1={"log.records": log, "gpu.xids": Xids(log)}), "log.kernel") == {
        "n1": "pass"
    }


# Of NVIDIA's Xid catalogue, docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html as it was
# on 2025-10-29, column «Resolution Bucket (Immediate Action)»; "" where that is empty.
CATALOGUE = {
    "RESET_GPU": (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
    "RESTART_BM": (79,),
    "RESTART_VM": (151,),
    "CHECK_MECHANICALS": (54,),
    "WORKFLOW": (48, 74, *range(144, 151)),
    "XID_154": (154,),
    "UPDATE_SWFW": (78,),
    "CHECK_UVM": (159,),
    "RESTART_APP": (
        *(8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84),
        *(85, 86, 88, 89, 94, *range(96, 106), *range(126, 136), 139),
    ),
    "IGNORE": (
        *(14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157),
        *(160, 161),
    ),
    "WORKFLOW_XID_45": (45,),
    "CONTACT_SUPPORT, and not unused": (142,),
    "": tuple(range(162, 173)),
}
RESETS = ("RESET_GPU", "RESTART_BM", "RESTART_VM", "CHECK_MECHANICALS", "WORKFLOW")


def test_every_code_of_the_catalogue_that_is_used_has_a_class() -> None:
    listed = [code for codes in CATALOGUE.values() for code in codes]
    assert len(listed) == len(set(listed))
    assert set(CODES) == set(listed) - {RECOVERY_ACTION}
    assert max(listed) == LAST_CODE


def test_what_the_catalogue_resets_is_fatal_and_what_it_ignores_is_not() -> None:
    for action in RESETS:
        assert {CODES[code].kind for code in CATALOGUE[action]} == {"fatal"}, action
    for action in ("RESTART_APP", "IGNORE", "UPDATE_SWFW", "CHECK_UVM"):
        assert "fatal" not in {CODES[code].kind for code in CATALOGUE[action]}, action


def test_the_agent_keeps_the_codes_that_are_fatal_here() -> None:
    fatal = {code for code, means in CODES.items() if means.kind == "fatal"}
    assert set(FATAL_XIDS) == fatal | {RECOVERY_ACTION}
    assert fatal.issuperset(NVLINK_CODES)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        # Words of drivers 570 and 595, of 610.43.02, and of none: the number counts.
        ("0x1 (GPU Reset Required)", "fail error"),
        ("0x1 (PF FLR)", "fail error"),
        ("0x2 (Node Reboot Required)", "fail error"),
        ("0x2 (OS Reboot)", "fail error"),
        ("0x3 (Drain P2P)", "fail warning"),
        ("0x4 (Drain and Reset)", "fail error"),
        ("0x5 (words to come)", "fail warning"),
        ("0x6 (words to come)", "fail error"),
        ("0x7 (words to come)", "fail error"),
        ("0x0 (None)", "pass"),
        ("0x0 (words to come)", "pass"),
    ],
)
@pytest.mark.parametrize("age", [60.0, 2 * DAY])
def test_a_recovery_is_judged_by_its_number(action: str, expected: str, age: float) -> None:
    """Driver 610.43.02 says «PF FLR» and «OS Reboot», as public reports of Xid 79 show.

    The numbers are those of nvmlDeviceGpuRecoveryAction_t in nvml.h 13.5; «words to come» are not.
    """
    facts = xids(line(154, RECOVERY + action), age=age)
    if expected == "fail warning" and age > DAY:
        expected = "pass"
    assert told(fleet(n1=facts), "gpu.xid") == {"n1": expected}


MIG = "NVRM: Xid (PCI:0000:01:00 GPU-I:{:02d}): {}, pid=7194, name=python3, {}"


def test_events_of_mig_instances_are_kept_apart() -> None:
    """The form of table 3 of «GPU memory error management»; processes and codes are made up."""
    facts = facts_of(
        ring_answer(
            MIG.format(5, 95, "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"),
            MIG.format(7, 43, "Ch 00000008"),
            MIG.format(7, 94, "Contained: CE User Channel (0x9). RST: No, D-RST: No"),
            "NVRM: Xid (PCI:0000:01:00 GPU-I:02 GPU-CI:00): 43, pid=1, name=python3, Ch 00000008",
        )
    )
    assert told(fleet(n1=facts), "gpu.xid") == {"n1": "fail error + fail warning"}
    fatal, contained = findings(fleet(n1=facts), "gpu.xid")
    assert fatal.seen.startswith("Xid 95 on 0000:01:00 (GPU instance 5): last ")
    assert contained.seen.startswith("Xid 94 on 0000:01:00 (GPU instance 7): last ")
    assert fatal.remedy.startswith("nvidia-smi --gpu-reset -i 0000:01:00.0")


def test_errors_of_nvlinks_of_different_gpus_and_links_are_kept_apart() -> None:
    """The form of leptonai/gpud#1160 and #1174; two of the addresses are made up."""
    rest = "XC0 i0 Link {} (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)"
    texts = [
        f"NVRM: Xid (PCI:{pci}:01:00): {code}, RLW_RXPIPE Nonfatal {rest.format(link)}"
        for pci, code, link in (
            ("0018", 145, "13"),
            ("0008", 145, "13"),
            ("0008", 145, "02"),
            ("0009", 149, "01"),
        )
    ]
    found = findings(fleet(n1=facts_of(ring_answer(*texts))), "gpu.xid")
    assert {finding.seen.partition(": ")[0] for finding in found} == {
        "Xid 145 on 0018:01:00 (link 13), 0008:01:00 (link 13), 0008:01:00 (link 2)",
        "Xid 149 on 0009:01:00 (link 1)",
    }


def test_a_flood_of_lesser_ones_never_hides_a_fatal_one() -> None:
    texts = [line(79)]
    texts += [
        line(145, f"RLW_REMAP Nonfatal XC0 i0 Link {link:02d}", f"00{gpu:02x}:01:00")
        for gpu in range(16)
        for link in range(18)
    ]
    texts += [line(13, pci=f"00{gpu:02x}:01:00") for gpu in range(16)]
    assert "fail error" in told(fleet(n1=facts_of(ring_answer(*texts))), "gpu.xid")["n1"]


FALLEN = line(79, "GPU has fallen off the bus.")


@pytest.mark.parametrize(
    ("ring", "journal", "expected"),
    [
        pytest.param(
            ring_answer(first=(7000, NOW - HOUR)),
            journal_answer(reach=40 * DAY),
            "pass",
            id="the-journal-has-the-boot",
        ),
        pytest.param(
            ring_answer(first=(7000, NOW - HOUR)),
            journal_answer(reach=7 * DAY),
            "pass",
            id="the-journal-has-a-week",
        ),
        pytest.param(
            ring_answer(first=(7000, NOW - HOUR)),
            journal_answer(reach=6 * DAY),
            "unknown error truncated",
            id="the-journal-has-six-days",
        ),
        pytest.param(
            ring_answer(up=2 * HOUR, first=(7000, HOUR)),
            journal_answer(up=2 * HOUR, reach=2 * HOUR - 20),
            "pass",
            id="the-journal-begins-with-this-boot",
        ),
        pytest.param(
            ring_answer(first=(7000, NOW - HOUR)),
            journal_answer(reach=40 * DAY, lines=0),
            "unknown error truncated",
            id="the-journal-does-not-take-the-kernels-lines",
        ),
        pytest.param(
            ring_answer(first=(7000, NOW - HOUR)),
            journal_answer((2 * DAY, FALLEN), reach=7 * DAY),
            "fail error",
            id="the-ring-lost-it-and-the-journal-has-it",
        ),
        pytest.param(
            Absent("denied", "/dev/kmsg: Operation not permitted"),
            journal_answer((2 * DAY, FALLEN)),
            "fail error",
            id="only-the-journal-may-be-read",
        ),
        pytest.param(
            Absent("denied", "/dev/kmsg: Operation not permitted"),
            journal_answer(),
            "pass",
            id="only-the-journal-and-nothing-in-it",
        ),
        pytest.param(
            Absent("denied", "/dev/kmsg: Operation not permitted"),
            Absent("denied", "only root and the groups adm and systemd-journal may read it"),
            "unknown error denied",
            id="neither-may-be-read",
        ),
        pytest.param(
            Absent("denied", "/dev/kmsg: Operation not permitted"),
            journal_answer(lines=0),
            "unknown error denied",
            id="only-the-journal-without-the-kernels-lines",
        ),
        pytest.param(
            ring_answer(),
            journal_answer(earlier=((2 * DAY, FALLEN),)),
            "pass",
            id="before-the-last-boot",
        ),
        pytest.param(
            ring_answer(FALLEN),
            journal_answer(earlier=((2 * DAY, FALLEN),)),
            "fail error",
            id="before-the-last-boot-and-again",
        ),
    ],
)
def test_what_ring_and_journal_tell_together(ring: Any, journal: Any, expected: str) -> None:
    assert told(fleet(n1=facts_of(ring, journal)), "gpu.xid") == {"n1": expected}


def test_a_fatal_one_that_a_reboot_cleared_is_said() -> None:
    ring = ring_answer(line(31), up=DAY)
    journal = journal_answer(earlier=((2 * DAY, FALLEN),), up=DAY)
    (good,) = findings(fleet(n1=facts_of(ring, journal)), "gpu.xid")
    assert good.verdict == "pass"
    assert good.seen.endswith(
        "; before the last boot: Xid 79: the GPU has fallen off the bus, last 2 d ago"
    )


def test_what_was_overwritten_is_unknown_and_says_since_when() -> None:
    ring = ring_answer(first=(7000, NOW - 2 * HOUR))
    (open_,) = findings(fleet(n1=facts_of(ring)), "gpu.xid")
    assert open_.message == (
        "the log goes back 2 h only: what was before has been overwritten, and the journal tells "
        "nothing: journalctl is not there"
    )


@pytest.mark.parametrize(
    "broken",
    [
        {"up": -1},
        {"now": "x"},
        {"from": float("nan")},
        {"records": [[True, 1.0]]},
        {"records": None},
        {"cut": None},
        {"lines": None},
    ],
)
def test_a_journal_that_makes_no_sense_is_no_silence(broken: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        facts_of(ring_answer(first=(7000, NOW - HOUR)), {**journal_answer(), **broken})


def test_a_gpu_without_an_xid_and_one_with_are_told_apart() -> None:
    texts = (FALLEN, "NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.")
    found = findings(fleet(n1=facts_of(ring_answer(*texts))), "gpu.xid")
    assert {finding.seen.partition(": ")[0] for finding in found} == {
        "Xid 79 on 0000:1b:00",
        "«fallen off the bus», without an Xid, on 0000:91:00",
    }
