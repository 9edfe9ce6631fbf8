"""Public logs that had no part in building `diagnose`, how it answered them, and the figures.

    python -m tests.jobs.diagnose.public              # print the figures of today, and every miss
    python -m tests.jobs.diagnose.public --write    # and renew the tables of docs/howto/diagnose.md

public.jsonl has one case a line: where it was published, what two readers or the thread's end say
of it, and the lines of the log that matter, without secrets and names of people. `first` is what
`diagnose` said when it met the log; what it says after something was mended proves less.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.jobs.diagnose.examination import diagnosed

CASES = Path(__file__).with_name("public.jsonl")
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "diagnose.md"
ANSWERED = 0.5  # confidence below which an answer is a hint
BANDS = ((0.9, 1.01, "0.9 and more"), (0.6, 0.9, "0.6 to 0.9"), (0.0, 0.6, "below 0.6"))
INTERVAL = 0.90

Round = Literal["open", "closed"]


@dataclass(frozen=True)
class PublicCase:
    """A public log and its label.

    `cause` is a cause of the catalogue, `unknown` where the log does not show it, or `none`.
    `culprits` are the names that a careful reader would accept; () if nothing is to blame, and None
    among them if to name nobody is right as well.
    `first` is the answer at first sight.
    """

    name: str
    round: Round
    source: str
    year: int
    is_whole: bool
    cause: str
    also: frozenset[str]
    culprits: tuple[str | None, ...]
    is_harmless: bool
    first: Answer
    files: dict[str, str]

    @property
    def is_failure(self) -> bool:
        """Whether the log shows a failure of which a reader can say the cause."""
        return not self.is_harmless and self.cause not in {"unknown", "none"}

    @property
    def is_proven(self) -> bool:
        """Whether the log alone proves that cause, so that silence is no right answer."""
        return self.is_failure and "unknown" not in self.also


@dataclass(frozen=True)
class Answer:
    """What `diagnose` said: its first cause, if any, and the exit code."""

    code: int
    cause: str | None = None
    confidence: float = 0.0
    culprit: str | None = None

    @property
    def is_benign(self) -> bool:
        return self.cause is not None and self.cause.startswith("benign_")

    @property
    def is_given(self) -> bool:
        """Whether it names the cause of a failure, and not only a hint."""
        return self.cause is not None and not self.is_benign and self.confidence >= ANSWERED


def cases() -> list[PublicCase]:
    """Return all cases, in the order of the file."""
    return [_case(json.loads(line)) for line in CASES.read_text().splitlines()]


def _case(raw: dict[str, Any]) -> PublicCase:
    return PublicCase(
        raw["id"],
        raw["round"],
        raw["source"],
        raw["year"],
        raw["whole"],
        raw["cause"],
        frozenset(raw["also"]),
        tuple(raw["culprits"]),
        raw["harmless"],
        Answer(**raw["first"]),
        raw["files"],
    )


def answer(case: PublicCase) -> Answer:
    """Return what the command line says of the case now."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, text in case.files.items():
            path = Path(folder) / name
            path.write_text(text)
            paths.append(path)
        code, report = diagnosed(paths)
    if not report["causes"]:
        return Answer(code)
    top = report["causes"][0]
    return Answer(code, top["cause"], top["confidence"], top["culprit"])


# ---------------------------------------------------------------- marks


def is_right(case: PublicCase, given: Answer) -> bool:
    """Whether the answer is one that the label accepts."""
    accepted = given.cause in {case.cause, *case.also}
    if case.is_harmless or case.cause == "none":
        return not given.is_given
    if case.cause == "unknown":
        return given.code != 0 and (accepted or not given.is_given)
    if not given.is_given:
        return given.code != 0 and (accepted or "unknown" in case.also)
    return accepted and given.code == 1


def is_silent(case: PublicCase, given: Answer) -> bool:
    """Whether a failure got no answer that counts."""
    return case.is_failure and not given.is_given


def has_right_culprit(case: PublicCase, given: Answer) -> bool:
    """Whether a name is given that a reader accepts, or none where nothing is to blame."""
    if given.culprit is None:
        return not case.culprits or None in case.culprits
    return any(_names_same(wanted, given.culprit) for wanted in case.culprits if wanted)


def has_invented_culprit(case: PublicCase, given: Answer) -> bool:
    """Whether a name is given that no reader of the log would accept."""
    return given.culprit is not None and not has_right_culprit(case, given)


def _names_same(wanted: str, given: str) -> bool:
    """Whether all names of `wanted` are in `given`: «rank 3» is in «rank 3 on n2»."""
    return _names(wanted) <= _names(given)


def _names(text: str) -> frozenset[str]:
    words = re.findall(r"[\w.:%-]+", re.sub(r" - |(?<= \d)-(?=\d+$)", " ", text.lower()))
    kinds = {"rank", "ranks", "host", "hosts", "link", "peer", "interface", "gpu", "gpus", "hca"}
    kinds |= {"and", "on", "as", "seen", "from", "address", "port", "hcas", "local", "name", "pair"}
    return frozenset(word.rstrip(".:") for word in words) - kinds


# ---------------------------------------------------------------- figures


@dataclass(frozen=True)
class Share:
    """So many of so many."""

    part: int
    whole: int

    def __str__(self) -> str:
        percent = f" ({self.part / self.whole:.0%})" if self.whole else ""
        return f"{self.part} of {self.whole}{percent}"


Rows = Sequence[tuple[PublicCase, Answer]]


def figures(rows: Rows) -> dict[str, Share]:
    """Return what the page says of these answers, by the words of its table."""
    failures = [row for row in rows if row[0].is_failure]
    given = [row for row in rows if row[1].is_given]
    answered = [row for row in failures if row[1].is_given]
    proven = [row for row in failures if row[0].is_proven]
    blamed = [row for row in answered if any(row[0].culprits)]
    harmless = [row for row in rows if row[0].is_harmless]
    return {
        "failures whose cause is known": Share(len(failures), len(rows)),
        "of these answered": Share(len(answered), len(failures)),
        "failures whose cause the log proves": Share(len(proven), len(rows)),
        "of these answered, too": _share(lambda _, given: given.is_given, proven),
        "answers that are right": _share(is_right, given),
        "culprits right, of the answers that have one": _share(has_right_culprit, blamed),
        "culprits invented": _share(has_invented_culprit, rows),
        "harmless logs called a failure": _share(lambda _, given: given.code == 1, harmless),
        "failures that ended with 0": _share(
            lambda case, given: given.code == 0 and not case.is_harmless and case.cause != "none",
            rows,
        ),
    }


def _share(test: Callable[[PublicCase, Answer], bool], rows: Rows) -> Share:
    return Share(sum(test(*row) for row in rows), len(rows))


def calibration(rows: Rows) -> Iterator[tuple[str, float, Share, bool]]:
    """Yield for each band: its name, the mean said, what was right, and whether they agree.

    They agree if the mean said lies in the interval that has INTERVAL of the probability.
    """
    for least, most, name in BANDS:
        band = [row for row in rows if _is_in_band(row[1], least, most)]
        if not band:
            continue
        said = sum(given.confidence for _, given in band) / len(band)
        share = _share(_names_the_cause, band)
        low, high = interval(share.part, share.whole)
        yield name, said, share, low <= said <= high


def _is_in_band(given: Answer, least: float, most: float) -> bool:
    return given.cause is not None and not given.is_benign and least <= given.confidence < most


def _names_the_cause(case: PublicCase, given: Answer) -> bool:
    """Whether the cause that is named is a right one, also where silence would be right too."""
    return given.cause in {case.cause, *case.also}


def interval(part: int, whole: int) -> tuple[float, float]:
    """Return Clopper's and Pearson's interval of a share, which holds INTERVAL of the cases."""
    tail = (1 - INTERVAL) / 2
    low = 0.0 if part == 0 else _solved(lambda p: 1 - _at_most(part - 1, whole, p), tail)
    high = 1.0 if part == whole else 1 - _solved(lambda p: _at_most(part, whole, 1 - p), tail)
    return low, high


def _at_most(part: int, whole: int, chance: float) -> float:
    """Return how likely at most `part` of `whole` trials succeed."""
    return sum(
        math.comb(whole, k) * chance**k * (1 - chance) ** (whole - k) for k in range(part + 1)
    )


def _solved(rising: Callable[[float], float], wanted: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if rising(middle) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


# ---------------------------------------------------------------- the page


def first_sight(all_cases: Sequence[PublicCase]) -> list[tuple[PublicCase, Answer]]:
    return [(case, case.first) for case in all_cases]


def today(all_cases: Sequence[PublicCase]) -> list[tuple[PublicCase, Answer]]:
    return [(case, answer(case)) for case in all_cases]


def tables(all_cases: Sequence[PublicCase], now: Rows) -> str:
    """Return the tables of the page: figures, calibration, and every miss at first sight."""
    opened = first_sight([case for case in all_cases if case.round == "open"])
    closed = first_sight([case for case in all_cases if case.round == "closed"])
    columns = [figures(opened), figures(closed), figures(now)]
    lines = ["| | first round, at first sight | second round, at first sight | all, today |"]
    lines.append("|---|---|---|---|")
    for name in columns[0]:
        cells = " | ".join(str(column[name]) for column in columns)
        lines.append(f"| {name} | {cells} |")
    lines += ["", "| confidence said | mean | right at first sight | agree |", "|---|---|---|---|"]
    for name, said, share, agree in calibration([*opened, *closed]):
        lines.append(f"| {name} | {said:.2f} | {share} | {'yes' if agree else 'no'} |")
    lines += ["", "| missed at first sight | wanted | said | today |", "|---|---|---|---|"]
    current = {case.name: given for case, given in now}
    for case, given in (*opened, *closed):
        if is_silent(case, given) or not is_right(case, given):
            lines.append(_miss(case, given, current[case.name]))
    return "\n".join(lines)


def _miss(case: PublicCase, given: Answer, current: Answer) -> str:
    verdict = (
        "right" if is_right(case, current) and not is_silent(case, current) else _said(current)
    )
    return f"| {case.source} | {case.cause} | {_said(given)} | {verdict} |"


def _said(given: Answer) -> str:
    if given.cause is None:
        return "nothing"
    return f"{given.cause} {given.confidence:.2f}"


def renewed(page: str, shown: str) -> str:
    """Return the page with the tables between its marks."""
    begin, end = "<!-- figures -->\n", "<!-- end of figures -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}{shown}\n{end}{after}"


def main(words: Sequence[str]) -> None:
    all_cases = cases()
    now = today(all_cases)
    shown = tables(all_cases, now)
    print(shown)
    if "--write" in words:
        PAGE.write_text(renewed(PAGE.read_text(), shown))


if __name__ == "__main__":
    main(sys.argv[1:])
