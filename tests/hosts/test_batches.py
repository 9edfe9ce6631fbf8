"""apply in batches on eight hosts: who has what is true by the bytes, and one command mends it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Answer, clusterprep, started
from tests.support.lab import Lab, faults
from tests.support.lab.faults.files import inside
from tests.support.lab.fixtures import require_lab
from tests.support.lab.rooms import Host

pytestmark = pytest.mark.hosts

CONF, PROFILE = "/etc/nccl.conf", "/etc/profile.d/clusterprep-nccl.sh"
NAMES = tuple(f"n{number}" for number in range(1, 9))
BATCHES = ("--batches", "1,25%,rest")
Files = dict[str, tuple[bytes | None, bytes | None]]


@pytest.fixture(scope="module")
def lab8() -> Iterator[Lab]:
    require_lab()
    with Lab(8) as made:
        yield made


def inventory(lab: Lab) -> Path:
    """Eight hosts whose ranks must agree on a value that is not derived."""
    path = lab.folder / "eight.yaml"
    return lab.inventory(path, env={"NCCL_ALGO": "Ring"})


def run(lab: Lab, command: str, *words: str) -> Answer:
    return clusterprep(lab, command, *words, inventory=inventory(lab), timeout=300)


def apply(lab: Lab, *words: str) -> Answer:
    return run(lab, "apply", "--no-verify", "--only", "ssh.", *words)


def held(host: Host, path: str) -> bytes | None:
    place = inside(host, path)
    return place.read_bytes() if place.exists() else None


def files(lab: Lab) -> Files:
    return {host.name: (held(host, CONF), held(host, PROFILE)) for host in lab.hosts}


def rows(found: Answer) -> list[tuple[str, str, str | None]]:
    return [(row["name"], row["outcome"], row["gate"]) for row in found.report["batches"]]


def test_a_gate_that_fails_on_the_second_batch(lab8: Lab) -> None:
    lab8.host("n2").write(CONF, "# ours\nNCCL_DEBUG=INFO\n", mode=0o640)
    lab8.host("n7").write(CONF, "# ours, too\n")
    before = files(lab8)
    asked = lab8.folder / "asked"
    gate = (
        f'echo "$CLUSTERPREP_NODES" >> {asked}; '
        'case ",$CLUSTERPREP_NODES," in *,n3,*) echo n3 is slow >&2; exit 9;; esac'
    )
    stopped = apply(lab8, *BATCHES, "--gate", gate)

    # Who has what is said, and true by the bytes.
    now = files(lab8)
    changed = {name for name in NAMES if now[name] != before[name]}
    assert (stopped.code, changed) == (1, {"n1"})
    assert rows(stopped) == [
        ("1", "done", "pass"),
        ("2", "rolled-back", "fail"),
        ("3", "not-started", None),
    ]
    assert (
        "n1 has what this apply writes; n[2-8] has what was there before"
        in (stopped.report["notices"])
    )
    assert stopped.report["batches"][1]["detail"].endswith("ended with 9:\nn3 is slow")
    assert asked.read_text().split() == ["n1", "n2,n3"]

    # A job across the batches is refused, within one it is not.
    refused = run(lab8, "launch", "--direct", "--", "true")
    assert refused.code == 4, refused.report
    assert "n1 has it, n[2-8] has not" in refused.report["error"]["message"]

    # One command makes all equal, and then there is nothing to do in any batch.
    mended = apply(lab8, "--retry-failed", stopped.report["run"])
    assert mended.code == 0, mended.report
    assert {row["name"] for row in mended.report["nodes"]} == set(NAMES) - {"n1"}
    again = apply(lab8, *BATCHES, "--gate", "false")
    assert again.code == 0, again.report
    assert {outcome for _, outcome, _ in rows(again)} == {"unchanged"}
    after = files(lab8)
    assert all(after[name] != before[name] for name in NAMES)
    assert len({profile for _, profile in after.values()}) == 1
    launched = run(lab8, "launch", "--direct", "--no-preflight", "--", "true")
    assert launched.code == 0, launched.stderr

    # Two runs wrote it, and two rollbacks put back every byte.
    for found in (run(lab8, "rollback"), run(lab8, "rollback", "--run", stopped.report["run"])):
        assert found.code == 0, found.report
    assert files(lab8) == before


def test_all_batches_are_taken_back_where_that_is_wanted(lab8: Lab) -> None:
    before = files(lab8)
    gate = 'case ",$CLUSTERPREP_NODES," in *,n8,*) exit 1;; esac'
    found = apply(lab8, *BATCHES, "--gate", gate, "--on-failure", "rollback-all")
    assert found.code == 1, found.report["notices"]
    ended = [outcome for _, outcome, _ in rows(found)]
    assert ended == ["undone", "undone", "rolled-back"], found.report["notices"]
    assert files(lab8) == before
    assert "n[1-8] has what was there before" in found.report["notices"]


def test_a_controller_that_dies_between_two_batches(lab8: Lab) -> None:
    """Its gate kills it. The next rollback puts back what was cut off and what was finished."""
    before = files(lab8)
    gate = 'case ",$CLUSTERPREP_NODES," in *,n3,*) kill -9 $PPID;; esac'
    words = ("--no-verify", "--only", "ssh.", *BATCHES, "--gate", gate)
    process = started(lab8, "apply", *words, inventory=inventory(lab8))
    _, err = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, err
    end = time.monotonic() + 60
    while any(host.processes("-ISB") for host in lab8.hosts):
        assert time.monotonic() < end, "agents are left"
        time.sleep(0.05)
    differing = {name for name, held_now in files(lab8).items() if held_now != before[name]}
    assert differing == {"n1", "n2", "n3"}
    back = run(lab8, "rollback")
    assert back.code == 0, back.report
    assert files(lab8) == before


def test_what_is_known_when_the_time_is_over_and_what_failed_is_retried(lab8: Lab) -> None:
    """A host that says nothing: the others are in the report; it is tried again beside two more."""
    fault = faults.stop_sshd(lab8.host("n5"))
    try:
        found = run(lab8, "check", "--only", "kernel.", "--timeout", "5")
    finally:
        fault.undo()
    reached = {row["name"] for row in found.report["nodes"] if row["reached"]}
    assert (found.code, reached) == (3, set(NAMES) - {"n5"}), found.report
    assert set(found.blamed("kernel.version", "pass")) == reached
    assert found.report["error"]["message"] == "--timeout of 5 s reached"
    again = run(lab8, "check", "--only", "kernel.", "--retry-failed", found.report["run"])
    assert [row["name"] for row in again.report["nodes"]] == ["n1", "n2", "n5"]
    assert all(row["reached"] for row in again.report["nodes"])
