"""Names and addresses as a few entries with ranges, in the order that the nodes have: it is the order of ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from clusterprep.runtime.lazy_dataclass import dataclass

_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,15})([^0-9]*)", re.DOTALL)
_MOST = 4  # pieces in one bracket; nodes without any order are easier to read one by one


@dataclass(frozen=True)
class _Cut:
    """A text around its last number."""

    before: str
    number: str
    after: str

    @property
    def padded(self) -> int:
        """The width that leading zeros give the number; 0 where it has none."""
        return len(self.number) if self.number.startswith("0") and len(self.number) > 1 else 0


def fold_rows(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """(names, addresses) of one entry each; expanding them one after the other gives the rows again."""
    entries: list[list[tuple[str, str]]] = []
    for row in rows:
        if entries and _fits(entries[-1], row):
            entries[-1].append(row)
        else:
            entries.append([row])
    return [
        (_text([name for name, _ in entry]), _text([address for _, address in entry]))
        for entry in entries
    ]


def _fits(entry: Sequence[tuple[str, str]], row: tuple[str, str]) -> bool:
    columns = [[*(before[place] for before in entry), row[place]] for place in (0, 1)]
    return all(_one_range(column) for column in columns)


def _one_range(texts: Sequence[str]) -> bool:
    """Whether texts are the same but for their last number, with few gaps. It sees the first and the last two alone."""
    first, before, last = (_cut(text) for text in (texts[0], texts[-2], texts[-1]))
    if first is None or last is None or before is None or ":" in texts[0]:
        return False
    alike = (first.before, first.after) == (last.before, last.after) and first.number != last.number
    if not alike or not _same_padding(first, last):
        return False
    return (
        int(last.number) == int(before.number) + 1
        or len(_pieces([c.number for c in _cuts(texts)])) <= _MOST
    )


def _same_padding(first: _Cut, last: _Cut) -> bool:
    """001 … 099, 100: a number may outgrow its zeros, but then no other may be shorter."""
    if first.padded:
        return len(last.number) == first.padded
    return not last.padded


def _cut(text: str) -> _Cut | None:
    found = _LAST_NUMBER.fullmatch(text)
    return _Cut(*found.groups()) if found else None


def _cuts(texts: Sequence[str]) -> list[_Cut]:
    return [cut for text in texts if (cut := _cut(text)) is not None]


def _pieces(numbers: Sequence[str]) -> list[str]:
    """1-3 and 7 of 1, 2, 3, 7, in this order."""
    runs: list[list[str]] = []
    for number in numbers:
        if runs and int(number) == int(runs[-1][-1]) + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


def _text(texts: Sequence[str]) -> str:
    cuts = _cuts(texts)
    if len(texts) == 1 or len(cuts) < len(texts):
        return texts[0]
    return f"{cuts[0].before}[{','.join(_pieces([cut.number for cut in cuts]))}]{cuts[0].after}"
