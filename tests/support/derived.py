"""Write what follows from the code and is checked in: tables, pages, a picture, recordings.

`make format` runs it, after a check, a fact or a cause is new or has changed. A test of each says
when it is due.
"""

from __future__ import annotations

import json

from clusterprep.survey import registry
from tests.machines import __main__ as recordings
from tests.machines.play import can_be_played
from tests.support import readme


def add_check_names() -> None:
    """Add the names of checks that are not in the catalogue, which `require:` accepts."""
    path = readme.ROOT / "clusterprep" / "data" / "check_names.json"
    before = path.read_text()
    names = sorted({*json.loads(before), *registry.checks()})
    text = json.dumps(names, indent=1, ensure_ascii=False) + "\n"
    if text != before:
        path.write_text(text)


def main() -> None:
    add_check_names()
    # Before the pages: the picture shows a recorded fleet.
    if can_be_played():
        for name in recordings.wanted():
            recordings.write(name)
    else:
        print("clusterprep/data/fleets is as before: to record it takes cc, and root or unshare")
    readme.renew_derived()


if __name__ == "__main__":
    main()
