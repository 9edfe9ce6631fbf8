"""The self-test can fail: no proof, a silent check, one that others echo, one that fails before."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.checks import Check, Outcome, Proof, each
from clusterprep.cli.commands.selftest import VICTIM, packed, prove, selftest, unpacked
from clusterprep.remedies import shell_line
from clusterprep.survey import registry
from tests.machines import play
from tests.machines.__main__ import DATA, packed_recording, wanted
from tests.support.fleet import absent, fleet

HEALTHY = {
    ("test.hot", "n1"): {"pass"},
    ("test.hot", "n2"): {"pass"},
    ("test.echo", "n2"): {"pass"},
}


def check(name: str, fact: str, limit: float, proof: Proof | None = None) -> Check:
    """A check that fails where a number is over its limit."""

    def judge(context: Any, node: Any, value: float) -> Outcome:
        return Outcome("fail" if value > limit else "pass", (node.name,), "judged")

    return Check(
        name, (fact,), each(judge, fact), "warning", "t", "w", "h", shell_line("r"), proof=proof
    )


HOT = check("test.hot", "heat", 50, Proof("heat", lambda heat: heat + 40))
SEEN = fleet(n1={"heat": 20.0, "noise": 1.0}, n2={"heat": 20.0, "noise": 1.0})


def proved(proof: Proof, *others: Check, seen: Any = SEEN, healthy: Any = None) -> tuple[str, str]:
    one = replace(HOT, proof=proof)
    found = prove(one, proof, seen, HEALTHY if healthy is None else healthy, [one, *others])
    return found.verdict, found.message


def test_a_check_that_fires_alone_is_proved() -> None:
    assert HOT.proof is not None
    assert proved(HOT.proof) == ("pass", "fires when heat is turned bad")


def test_a_fact_that_does_not_trip_the_check_proves_nothing() -> None:
    verdict, message = proved(Proof("heat", lambda heat: heat + 1))
    assert (verdict, message) == ("fail", "the fact was turned bad and this check did not fire")


def test_a_fault_that_others_report_too_is_not_its_own() -> None:
    verdict, message = proved(Proof("heat", lambda heat: heat + 40), check("test.echo", "heat", 55))
    assert (verdict, message) == ("fail", "other checks fire on the same fault")


def test_a_check_that_fails_on_the_healthy_machine_proves_nothing() -> None:
    assert (
        proved(Proof("heat", lambda heat: heat + 40), healthy={("test.hot", "n2"): {"fail"}})[0]
        == "fail"
    )


def test_a_check_that_says_nothing_of_the_healthy_machine_proves_nothing() -> None:
    assert proved(Proof("heat", lambda heat: heat + 40), healthy={})[0] == "fail"


def test_a_fact_that_the_recording_lacks_is_said() -> None:
    seen = fleet(n1={"heat": 20.0}, n2={"heat": absent("not_recorded", "sensors")})
    assert proved(Proof("heat", lambda heat: 99.0), seen=seen) == (
        "fail",
        "the recorded fleet hgx-h100-ib has no heat: not_recorded sensors",
    )


def test_a_check_without_proof_is_listed() -> None:
    report = selftest({"test.bare": check("test.bare", "heat", 50)})
    assert (report.code, report.verdict) == (1, "fail")
    assert [(f.check, f.verdict, f.seen) for f in report.findings or ()] == [
        ("test.bare", "fail", "no proof")
    ]


def test_the_victim_is_neither_the_rendezvous_host_nor_alone() -> None:
    assert VICTIM > 0


def test_packing_keeps_every_answer() -> None:
    recording = {
        "n1": {"offset": 0.0, "peer": "10.0.0.1", "answers": {"a": ["ok", 1], "b": ["ok", 2]}},
        "n2": {
            "offset": 0.5,
            "peer": "10.0.0.2",
            "answers": {"a": ["ok", 1], "b": ["no", "denied", ""]},
        },
    }
    assert unpacked(packed(recording)) == recording


# ---------------------------------------------------------------- the checks that there are


@pytest.fixture(scope="module")
def report() -> Any:
    return selftest()


def test_every_check_fires_on_its_fault(report: Any) -> None:
    assert {f.check: (f.message, f.seen) for f in report.findings if f.verdict != "pass"} == {}
    assert {f.check for f in report.findings} == set(registry.checks())
    assert report.code == 0


def test_the_command_says_how_many() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clusterprep", "selftest"],
        capture_output=True,
        text=True,
        check=False,
    )
    count = len(registry.checks())
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{count} of {count} checks fire on their fault" in done.stdout


@pytest.mark.machine
@play.needs_chroot
@pytest.mark.parametrize("name", wanted())
def test_the_recordings_are_what_the_machines_answer_today(name: str) -> None:
    """After a check has changed what it reads: `make format`."""
    there = json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))
    now = json.loads(json.dumps(packed_recording(name)))
    assert there["nodes"].keys() == now["nodes"].keys()
    recorded, answered = there["base"]["answers"].keys(), now["base"]["answers"].keys()
    assert recorded == answered, "`make format` records the machines anew"
