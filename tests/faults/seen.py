"""Plant the faults of one run, run `clusterprep check`, compare the blamed hosts with the ill."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterprep.model import Because, Finding
from clusterprep.survey.consequences import cause_trees
from tests.faults.row import Placed, Run, Stage
from tests.support.command import Answer, clusterprep
from tests.support.lab import Lab
from tests.support.lab.faults import Fault

LEAVE = 3.0  # seconds that an agent gets to end after its controller
AGENT = "-ISB"  # how its Python is started
Charge = tuple[str, str, str]  # check, node, verdict


@dataclass(frozen=True)
class Seen:
    """What became of one fault: the nodes that its check named, and what it saw there.

    `counted` are the checks whose findings count on its host; all others follow from these.
    """

    stage: str
    placed: Placed
    nodes: tuple[str, ...]
    text: str
    counted: tuple[str, ...]


class Theatre:
    """The lab's hosts as machines of one kind after the other.

    What two stages have in common stays in between.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._base: object = None
        self._stage: Stage | None = None
        self._common, self._own = contextlib.ExitStack(), contextlib.ExitStack()

    def set(self, stage: Stage) -> None:
        """Make the hosts what a stage wants."""
        if stage is self._stage:
            return
        self._own.close()
        self._stage = None
        if stage.base is not self._base:
            self._common.close()
            self._base = None
            _enter(self._common, stage.base(self.lab))
            self._base = stage.base
        _enter(self._own, stage.prepare(self.lab))
        self._stage = stage

    def close(self) -> None:
        """Take all of it back."""
        self._own.close()
        self._common.close()


def _enter(stack: contextlib.ExitStack, faults: Iterable[Fault]) -> None:
    """All of them, or none."""
    with contextlib.ExitStack() as made:
        for fault in faults:
            made.enter_context(fault)
        stack.push(made.pop_all())


def asked(lab: Lab, stage: Stage, run: Run) -> Answer:
    """One `check` of the lab with these faults, which are gone afterwards."""
    with contextlib.ExitStack() as faults:
        for placed in run:
            faults.enter_context(placed.row.plant(lab.host(placed.host), lab))
        answer = clusterprep(lab, "check", inventory=lab.inventory(**stage.inventory(lab)))
        end = time.monotonic() + LEAVE
        while (left := left_over(lab)) and time.monotonic() < end:
            time.sleep(0.05)
    assert not left, f"the command has ended, and on the hosts there still runs {left}"
    return answer


def left_over(lab: Lab) -> list[str]:
    """Command lines of agents on the hosts, and of what they started."""
    hosts = {Path(f"/proc/{host.pid}/ns/pid").stat().st_ino for host in lab.hosts}
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and (entry / "ns/pid").stat().st_ino in hosts:
                found.append(
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                )
    return [line for line in found if AGENT in line]


def charges(answer: Answer, known: Mapping[tuple[str, str], str]) -> set[Charge]:
    """Who is blamed for what, without what is known of the healthy lab."""
    findings = (f for f in answer.report["findings"] if f["verdict"] in ("fail", "unknown"))
    return {
        (f["check"], node, f["verdict"])
        for f in findings
        if (f["check"], f["verdict"]) not in known
        for node in f["nodes"] or ("",)
    }


def expected(run: Run) -> set[Charge]:
    """Who must be blamed for what."""
    ill = [placed for placed in run if placed.row.verdict != "pass"]
    return {
        (placed.row.check, node, placed.row.verdict) for placed in ill for node in placed.blamed
    }


def allowed(run: Run) -> set[tuple[str, str]]:
    """Who may be blamed besides, check and node."""
    return {(check, node) for placed in run for check in placed.row.also for node in placed.blamed}


def found(stage: Stage, placed: Placed, answer: Answer) -> Seen:
    """What the check of a fault said about its host."""
    row = placed.row
    findings = [f for f in answer.findings(row.check, row.verdict) if placed.host in f["nodes"]]
    nodes = tuple(node for f in findings for node in f["nodes"] if node in placed.blamed)
    return Seen(
        stage.name,
        placed,
        tuple(dict.fromkeys(nodes)),
        "; ".join(map(_text, findings)),
        counted(answer, stage.known, placed.host),
    )


def counted(answer: Answer, known: Mapping[tuple[str, str], str], host: str) -> tuple[str, ...]:
    """The checks whose findings count on a host, without what is known of the healthy lab.

    A finding that is known counts where something follows from it that is not.
    """
    checks: dict[str, None] = {}
    for tree in cause_trees([_finding(row) for row in answer.report["findings"]]):
        told = [tree.finding, *tree.consequences]
        is_new = any((f.check, f.verdict) not in known and host in f.nodes for f in told)
        if tree.finding.verdict in ("fail", "unknown") and is_new and host in tree.finding.nodes:
            checks[tree.finding.check] = None
    return tuple(checks)


def _finding(row: dict[str, Any]) -> Finding:
    because = tuple(Because(c["check"], tuple(c["nodes"])) for c in row.get("because", ()))
    return Finding(
        row["check"],
        row["verdict"],
        row["severity"],
        tuple(row["nodes"]),
        row["message"],
        reason=row["reason"],
        fixed=row["fixed"],
        silenced=row["silenced"],
        because=because,
    )


def _text(finding: dict[str, Any]) -> str:
    return str(finding["seen"] or finding["reason"] or finding["message"])


def unlike(answer: Answer, stage: Stage, run: Run) -> list[str]:
    """What is wrong with an answer, in words; nothing when it is right."""
    told, wanted, besides = charges(answer, stage.known), expected(run), allowed(run)
    wrong = [
        f"{check} does not say {verdict} of {node}"
        for check, node, verdict in sorted(wanted - told)
    ]
    for check, node, verdict in sorted(told - wanted):
        if (check, node) not in besides:
            findings = [
                f for f in answer.findings(check, verdict) if node in f["nodes"] or not f["nodes"]
            ]
            words = "; ".join(f"{f['message']} (seen {f['seen']}, {f['reason']})" for f in findings)
            wrong.append(f"{check} says {verdict} of {node}: {words}")
    for placed in run:
        given = {
            f["reason"]
            for f in answer.findings(placed.row.check, placed.row.verdict)
            if placed.host in f["nodes"]
        }
        if placed.row.reason is not None and given != {placed.row.reason}:
            wrong.append(
                f"{placed.row.check} on {placed.host} gives {given} as its reason, "
                f"not {placed.row.reason}"
            )
        if placed.row.verdict != "pass":
            counts = counted(answer, stage.known, placed.host)
            if len(set(counts) - set(placed.row.apart)) != 1:
                wrong.append(f"«{placed.row.name}» is not one finding on {placed.host}: {counts}")
    return wrong
