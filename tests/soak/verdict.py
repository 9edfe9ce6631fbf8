"""Holds what the observer saw against what a command told.

Pure: every sentence that is returned is a violation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from clusterprep.model.nodeset import expand
from tests.soak.observer import BROKEN, Seen, Size, Versions
from tests.soak.schedule import BY_NAME, REACH, Round

KEPT = 40  # runs whose old bytes a node keeps: 20 that can be rolled back, and 20 others
JOURNAL = "state.journal"
JUDGED = (
    REACH,
    "host.identity",
    "time.offset",
    "eth.mtu",
)  # of a node on which nothing is wrong none may fail
GRAVE = frozenset({REACH, "time.offset"})
CODES = frozenset({0, 1, 3, 4, 130})
# Of the median of the second half over that of the first; journals of up to 20 runs, which rollback
# reads, have a part.
GROWTH = 1.25
ENOUGH = 8  # values from which on there are halves worth comparing


# run → node → what it may have had before that run, more than one thing where an earlier run was
# settled first
History = Mapping[str, Mapping[str, Collection[Versions]]]


@dataclass(frozen=True)
class Told:
    """How a command ended: `report` is None where it was killed before it could say anything."""

    code: int
    report: Mapping[str, Any] | None
    stderr: str = ""
    killed: bool = False

    def verdicts(self, check: str, node: str) -> set[str]:
        """What findings say of a node, those that were cured meanwhile left out."""
        rows = (self.report or {}).get("findings", ())
        return {
            r["verdict"]
            for r in rows
            if r["check"] == check and node in r["nodes"] and not r["fixed"]
        }

    def outcomes(self, node: str) -> set[str]:
        return {
            row["outcome"] for row in (self.report or {}).get("changes", ()) if node in row["nodes"]
        }

    @property
    def run(self) -> str | None:
        return (self.report or {}).get("run") or None


@dataclass(frozen=True)
class Case:
    """One round as it went: what each node had before and after, and before each run it knows."""

    round: Round
    told: Told
    nodes: Sequence[str]
    before: Mapping[str, Seen]
    after: Mapping[str, Seen]
    history: History = field(default_factory=dict)

    @property
    def healthy(self) -> list[str]:
        """Nodes on which nothing was wrong for the whole command."""
        return [node for node in self.round.nodes or self.nodes if node not in self.round.harmed()]


def violations(case: Case) -> list[str]:
    """All that is wrong with a round, but for what it left behind."""
    return [*_ending(case), *_wrong_verdicts(case), *_files(case), *_untrue_sentences(case)]


def _ending(case: Case) -> Iterator[str]:
    if case.told.killed:
        return
    if case.told.code not in CODES or case.told.report is None:
        yield f"it ended with {case.told.code}: {case.told.stderr[-500:]}"


# ---------------------------------------------------------------- passes and failures


def _wrong_verdicts(case: Case) -> Iterator[str]:
    report = case.told.report
    if report is None or "findings" not in report:
        return
    for harm in case.round.harms:
        check = BY_NAME[harm.kind].tells
        if check is not None:
            yield from _wrong_pass(case, harm.node, check, harm.kind)
    for node in case.healthy:
        for check in JUDGED:
            if "fail" in case.told.verdicts(check, node):
                yield f"wrong failure: {check} on {node}, where nothing was wrong"
    if case.round.command == "check":
        yield from _wrong_journal(case)
    if case.round.command == "verify":
        yield from _wrong_culprits(case)


def _wrong_pass(case: Case, node: str, check: str, kind: str) -> Iterator[str]:
    verdicts = case.told.verdicts(check, node)
    reached = "pass" in case.told.verdicts(REACH, node)
    if "pass" in verdicts or "skip" in verdicts:
        yield f"wrong pass: {check} on {node} in spite of {kind}"
    elif not verdicts and (check == REACH or reached):
        yield f"nothing is said of {check} on {node} in spite of {kind}"
    if case.round.command == "check" and case.told.code == 0 and check in GRAVE:
        yield f"wrong pass: exit 0 in spite of {kind} on {node}"


def _wrong_journal(case: Case) -> Iterator[str]:
    for node in case.healthy:
        seen, verdicts = case.before[node], case.told.verdicts(JOURNAL, node)
        if seen.pending and not seen.locked and "pass" in verdicts:
            run = seen.pending[0]
            yield f"wrong pass: {JOURNAL} on {node}, whose run {run.run} is {run.state}"
        if not seen.pending and "fail" in verdicts:
            yield f"wrong failure: {JOURNAL} on {node}, where every run is settled"


def _wrong_culprits(case: Case) -> Iterator[str]:
    for row in ((case.told.report or {}).get("verify") or {}).get("culprits", ()):
        innocent = set(row["nodes"]) & set(case.healthy)
        if innocent and not set(row["nodes"]) & case.round.harmed():
            yield f"wrong culprit: {', '.join(sorted(innocent))}: {row['cause']}"


def unreached(case: Case) -> list[str]:
    """Return nodes without a fault that were not reached: no violation, and worth a number."""
    return [node for node in case.healthy if "unknown" in case.told.verdicts(REACH, node)]


# ---------------------------------------------------------------- sentences

# A set of nodes as a sentence has it: n[1-3,5], or several of them.
_NODES = r"(n[\d\[\],n-]*[\d\]])"


def _untrue_sentences(case: Case) -> Iterator[str]:
    """What a command said about nodes, held against their bytes and journals."""
    report = case.told.report or {}
    said = "\n".join([str(report.get("error") or ""), *report.get("notices", ())])
    asked = case.round.nodes or case.nodes
    unwritten = [node for node in case.nodes if _has_old(case, node)]
    if "put back on all nodes" in said:
        yield from _claims("put back", asked, unwritten)
    if re.search(r"(nothing was written|wrote nothing)", said):
        yield from _claims("not written", case.nodes, unwritten)
    yield from _claims("put back", _named(said, "was put back on {} only"), unwritten)
    stays = [node for node in case.nodes if case.round.value in case.after[node].versions]
    yield from _claims("written", _named(said, "what was written stays on {}"), stays)
    for run in re.findall(r"run (\S+) was cut off", said):
        settled = [node for node in case.nodes if not _is_pending(case.after[node], run)]
        for words in ("it was undone on {}", "it is done now on {}"):
            yield from _claims("settled", _named(said, f"{run} was cut off; {words}"), settled)


def _claims(what: str, nodes: Collection[str], true_of: Collection[str]) -> Iterator[str]:
    wrong = sorted(set(nodes) - set(true_of))
    if wrong:
        yield f"untrue sentence: {', '.join(wrong)} is said to be {what}"


def _named(said: str, sentence: str) -> set[str]:
    """Return the nodes that stand in a sentence, in which `{}` is their place."""
    names: set[str] = set()
    before, after = (re.escape(part) for part in sentence.split("{}"))
    for text in re.findall(f"{before}{_NODES}{after}", said):
        names.update(expand(text))
    return names


def _has_old(case: Case, node: str) -> bool:
    return case.after[node].versions in bases(case.before[node])


def _is_pending(seen: Seen, run: str) -> bool:
    return any(pending.run == run for pending in seen.pending)


# ---------------------------------------------------------------- files


def _files(case: Case) -> Iterator[str]:
    for node in case.nodes:
        before, after = case.before[node], case.after[node]
        if BROKEN in after.versions:
            yield f"half a file on {node}: {after.versions}"
            continue
        yield from _wrong_versions(case, node, before, after)
        yield from _wrong_pending(case, node, after)
        told = before.beside == after.beside and not before.pending
        if after.beside and not after.pending and not told:
            names = ", ".join(sorted(after.beside))
            yield f"left beside files of {node}, whose journal is settled: {names}"
        if len(after.runs) > KEPT + 1 + len(after.pending):
            yield f"{node} keeps {len(after.runs)} runs"


def _wrong_versions(case: Case, node: str, before: Seen, after: Seen) -> Iterator[str]:
    allowed, outcomes = _allowed(case, node, before, after), case.told.outcomes(node)
    if after.versions in allowed or (case.round.command in ("check", "verify") and after == before):
        return
    mixed = all(one in {v[at] for v in allowed} for at, one in enumerate(after.versions))
    if not (mixed and after.pending):
        told = f"told {sorted(outcomes) or 'nothing'}, exit {case.told.code}"
        yield f"{node} has {after.versions}, which is none of {sorted(allowed, key=str)} ({told})"


def _allowed(case: Case, node: str, before: Seen, after: Seen) -> set[Versions]:
    outcomes, new = case.told.outcomes(node), (case.round.value,) * len(after.versions)
    stays = "what was written stays" in str((case.told.report or {}).get("error"))
    if case.round.command == "apply" and (
        stays or (outcomes and outcomes <= {"done", "unchanged"})
    ):
        return {new}
    if undone := _undone(case, node):
        return undone
    nobody_knows = (
        case.told.report is None
        or outcomes & {"failed", "unanswered"}
        or (after.pending and node in case.round.harmed())
    )
    if nobody_knows or stays:
        return bases(before) | ({new} if case.round.command == "apply" else _earlier(case, node))
    return bases(before)


def bases(before: Seen) -> set[Versions]:
    """Return what a node may have if this command wrote nothing to it.

    That is what it had before, or either side of a run that is not settled.
    """
    return {before.versions} | {
        version for run in before.pending for version in (run.before, run.after)
    }


def _undone(case: Case, node: str) -> set[Versions]:
    """What a node has to have again after a rollback that says so; nothing where none does."""
    notices = " ".join((case.told.report or {}).get("notices", ()))
    found = re.search(r"run (\S+) is undone", notices)
    done = case.told.outcomes(node) == {"undone"}
    return set(case.history.get(found[1], {}).get(node, ())) if found and done else set()


def _earlier(case: Case, node: str) -> set[Versions]:
    return {version for nodes in case.history.values() for version in nodes.get(node, ())}


def _wrong_pending(case: Case, node: str, after: Seen) -> Iterator[str]:
    """What a command leaves unsettled it has to tell, or the next one's check does."""
    if case.told.report is None or case.round.command not in ("apply", "rollback"):
        return
    told = {"fail", "unknown"} & (
        case.told.verdicts(JOURNAL, node) | case.told.verdicts(REACH, node)
    )
    for run in after.pending:
        if run.run == case.told.run and not told and case.told.code == 0:
            yield f"{node} has run {run.run} {run.state}, and the command ended with 0"


# ---------------------------------------------------------------- what stays


def leftovers(baseline: Mapping[str, Collection[str]], after: Mapping[str, Seen]) -> list[str]:
    """Files in folders where all may write that were not there at the beginning."""
    new = {node: sorted(seen.stray - set(baseline[node])) for node, seen in after.items()}
    return [f"left on {node}: {', '.join(paths)}" for node, paths in new.items() if paths]


def trend(name: str, values: Sequence[int]) -> list[str]:
    """Whether a size grows: the second half of its values against the first."""
    if len(values) < ENOUGH:
        return []
    half = len(values) // 2
    first, second = median(values[:half]), median(values[half:])
    return (
        [f"{name} grows: {first:.0f} KiB, then {second:.0f} KiB"] if second > first * GROWTH else []
    )


def leaks(sizes: Sequence[Size]) -> list[str]:
    """Threads and files of a process that does the same again and again, after its first times."""
    if len(sizes) < ENOUGH:
        return []
    half = len(sizes) // 2
    rows = (("threads", [s.threads for s in sizes]), ("open files", [s.files for s in sizes]))
    return [
        f"the {name} of one process grow: {values}"
        for name, values in rows
        if min(values[half:]) > max(values[1:half])
    ]
