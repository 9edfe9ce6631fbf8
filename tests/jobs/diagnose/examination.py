"""Labelled logs, and how what `diagnose` says of them is marked."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterprep.cli.exit import ending
from clusterprep.cli.main import cli

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
CODES = {"fatal": 1, "degraded": 1, "benign": 0, "unknown": 3}
NO_FAILURE = (0, 3)  # 3 where an excerpt of a healthy log does not show how the job ended


@dataclass(frozen=True)
class Case:
    """A log and what a reader could prove from it.

    `culprits` are all that are right, the best first. () means that nothing is to blame.
    """

    name: str
    files: tuple[Path, ...]
    cause: str | None
    also: tuple[str | None, ...]  # None: that nothing is known is right too
    severity: str
    culprits: tuple[str | None, ...]
    unexplained: str = ""


@dataclass(frozen=True)
class Mark:
    """One case as it was answered: a row of the table."""

    case: Case
    code: int
    cause: str | None
    culprit: str | None
    right: bool
    right_culprit: bool


def recorded() -> Iterator[Case]:
    """What real jobs printed."""
    for raw in json.loads((RECORDED / "cases.json").read_text()):
        yield _case(raw, raw["name"], tuple(RECORDED / name for name in raw["files"]))


def others(folder: Path) -> Iterator[Case]:
    """What people report, written anew; each log becomes a file of this folder."""
    for line in (HERE / "others.jsonl").read_text().splitlines():
        raw = json.loads(line)
        path = folder / f"{raw['id']}.log"
        path.write_text(raw["log"] + "\n")
        yield _case(raw, raw["id"], (path,))


def _case(raw: dict[str, Any], name: str, files: tuple[Path, ...]) -> Case:
    culprits = (raw["culprit"], *raw.get("culprit_also", ()))
    also = tuple(raw["also_acceptable"])
    return Case(
        name, files, raw["cause"], also, raw["severity"], culprits, raw.get("unexplained", "")
    )


def diagnosed(files: Sequence[Path]) -> tuple[int, dict[str, Any]]:
    """Return exit code and report of the command line.

    It runs in this process, as a process for each case would take a minute for all.
    """
    words = ["diagnose", *map(str, files), "--format", "json"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = ending(
            lambda: cli.main(words, prog_name="clusterprep", standalone_mode=False),
            words,
            "diagnose",
        )
    assert out.getvalue(), (
        f"diagnose said nothing on stdout, and ended with {code}: {err.getvalue()}"
    )
    return code, json.loads(out.getvalue())


def marked(case: Case) -> Mark:
    code, report = diagnosed(case.files)
    causes = report["causes"]
    top = causes[0] if causes else {"cause": None, "culprit": None}
    texts = [text for _, _, text in report["unexplained"]]
    right = _right(case, code, causes) and any(case.unexplained in text for text in [*texts, ""])
    blamed = any(same_culprit(wanted, top["culprit"]) for wanted in case.culprits)
    return Mark(
        case,
        code,
        top["cause"],
        top["culprit"],
        right,
        blamed and not _contradicts(case, top["culprit"]),
    )


def _right(case: Case, code: int, causes: list[dict[str, Any]]) -> bool:
    """The top cause is one of the right ones, and the exit code says the same."""
    if (
        case.cause is None and case.severity == "benign"
    ):  # noise without a name of its own; some of it may have one
        return code in NO_FAILURE and all(c["severity"] == "benign" for c in causes)
    if not causes:
        return None in {case.cause, *case.also} and code == CODES["unknown"]
    top = causes[0]
    if top["severity"] == "benign":
        right_code = code in NO_FAILURE
    else:
        right_code = code == CODES[top["severity"]]
    return top["cause"] in {case.cause, *case.also} and right_code


def same_culprit(wanted: str | None, got: str | None) -> bool:
    """Whether the culprit wanted is named in the one we got.

    «rank 3» is also named by «rank 3 on n2», but not by «ranks 3, 4».
    """
    if wanted is None or got is None:
        return wanted is got
    if _ranks(wanted):
        return _ranks(wanted) == _ranks(got)
    name = wanted.split()[-1].lower()
    return any(
        word == name or word.startswith(f"{name}.") or _tail(name, word) for word in _words(got)
    )


def _contradicts(case: Case, got: str | None) -> bool:
    """Ranks are named beside the right host, and they are others than the right ones."""
    right = [_ranks(wanted) for wanted in case.culprits if _ranks(wanted)]
    return bool(right and _ranks(got) and _ranks(got) not in right)


def _ranks(text: str | None) -> frozenset[int]:
    found = re.findall(r"\branks? ((?:\d+(?:, | and |,)?)+)", text or "")
    return frozenset(int(number) for group in found for number in re.findall(r"\d+", group))


def _words(text: str) -> list[str]:
    return [word.strip("«»()[]<>,;'\"").lower() for word in text.split()]


def _tail(name: str, word: str) -> bool:
    """«5d:00» is enough of a PCI address where all are in domain 0000."""
    return ":" in word and len(word) >= 5 and name.endswith(f":{word.removesuffix('.0')}")


def table(marks: Sequence[Mark]) -> str:
    """One line per case, and the totals."""
    rows = [f"{'case':32} {'wanted':28} {'got':28} {'':5} {'culprit wanted':30} got"]
    for mark in marks:
        told, blamed = "ok" if mark.right else "WRONG", "" if mark.right_culprit else "   WRONG"
        wanted, culprit, got = (
            mark.case.cause or "-",
            mark.case.culprits[0] or "-",
            (mark.culprit or "-") + blamed,
        )
        rows.append(
            f"{mark.case.name:32} {wanted:28} {mark.cause or '-':28} {told:5} {culprit:30} {got}"
        )
    total = len(marks)
    causes, culprits = sum(mark.right for mark in marks), sum(mark.right_culprit for mark in marks)
    rows.append(
        f"{causes} of {total} causes ({causes / total:.1%}), "
        f"{culprits} of {total} culprits ({culprits / total:.1%})"
    )
    return "\n".join(rows)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for name, cases in (("recorded", recorded()), ("others", others(Path(place)))):
            print(name, table([marked(case) for case in cases]), sep="\n", end="\n\n")
