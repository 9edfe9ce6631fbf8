"""`extract PROJECT SOURCE [VERSION…]` or `coverage`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.messages import table
from tests.support.messages.projects import PROJECTS


def main(words: list[str]) -> int:
    if words[:1] == ["extract"] and len(words) > 2:
        project = PROJECTS[words[1]]
        rows = table.extract(project, Path(words[2]), words[3:])
        print(f"{len(rows)} messages in {table.write(project, rows)}")
        return 0
    print(__doc__)
    return 2


sys.exit(main(sys.argv[1:]))
