"""Write what follows from the code and is checked in: tables, pages, a picture, recordings.

`make format` runs it, after a check, a fact or a cause is new or has changed. A test of each says
when it is due.
"""

from __future__ import annotations

from tests.machines import __main__ as recordings
from tests.machines.play import can_be_played
from tests.support import readme


def main() -> None:
    readme.renew_derived()
    if not can_be_played():
        print("clusterprep/data/fleets is as before: to record it takes cc, and root or unshare")
        return
    for name in recordings.wanted():
        recordings.write(name)


if __name__ == "__main__":
    main()
