"""Extract the messages of a program from its sources, or count those that the rules know.

python -m tests.support.messages extract PROJECT SOURCE [--libraries FOLDER] [VERSION…]
python -m tests.support.messages coverage [PROJECT]
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.messages import coverage, table
from tests.support.messages.projects import PROJECTS


def main(words: list[str]) -> int:
    match words:
        case ["extract", name, source, "--libraries", folder, *versions]:
            project = PROJECTS[name]
            rows = table.extract(project, Path(source), versions, Path(folder))
            print(f"{len(rows)} messages in {table.write(project, rows)}")
        case ["extract", name, source, *versions]:
            project = PROJECTS[name]
            rows = table.extract(project, Path(source), versions)
            print(f"{len(rows)} messages in {table.write(project, rows)}")
        case ["coverage"]:
            print(coverage.table(), end="")
        case ["coverage", name]:
            for message in coverage.of(name).unclassified:
                print(f"{message.text}  ({message.file}, {message.first} to {message.last})")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


sys.exit(main(sys.argv[1:]))
