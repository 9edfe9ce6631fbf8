"""Run the command line and end or stop it at one moment of writing.

    python -m tests.support.stopping HOW POINT WORD…

A point is «commit n2», when that request has been sent to that node, or «commit answered», when all
have answered it. The words of every point that was passed go to stderr as «point: …». What runs is
the command as it is: it is watched from outside, as a debugger would. But requests are sent by the
main thread, one after the other, so that a point is known to lie before the next node's.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from clusterprep.cli.main import main
from clusterprep.remote.transports.link import Link
from clusterprep.survey.fanout import Fanout

WRITES = frozenset({"lock", "stage", "commit", "settle", "undo"})
HOW = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "tell": None}


def watch(how: str, wanted: str) -> None:
    signum = HOW[how]

    def returned(frame: FrameType, event: str, value: object) -> None:
        if event != "return" or frame.f_code not in codes or frame.f_locals.get("op") not in WRITES:
            return
        where = "answered"
        if frame.f_code is Link.post.__code__:
            link: Link = frame.f_locals["self"]
            link.send_waiting()
            where = link.node.name
        point = f"{frame.f_locals['op']} {where}"
        sys.stderr.write(f"point: {point}\n")
        sys.stderr.flush()
        if point == wanted and signum is not None:
            os.kill(os.getpid(), signum)

    codes = {Link.post.__code__, Fanout.ask.__code__}
    threading.setprofile(returned)


if __name__ == "__main__":
    watch(*sys.argv[1:3])
    main(sys.argv[3:])
