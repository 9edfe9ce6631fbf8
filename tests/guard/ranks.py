"""Run the ranks of a script on this machine over loopback.

torch is imported once, then each rank is forked.

    python -m tests.guard.ranks WORLD PORT SCRIPT FOLDER

Rank N runs the script with the variables that torchrun sets, and writes FOLDER/rankN.log. The exit
codes come on stdout, as JSON, with the seconds until all had ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path


def main(world: int, port: int, script: Path, folder: Path) -> None:
    import torch.distributed  # noqa: F401 - before the fork, so that it is paid for once

    code = compile(script.read_text(), str(script), "exec")
    started = time.monotonic()
    pids = [start(rank, world, port, code, folder) for rank in range(world)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    print(json.dumps({"codes": codes, "seconds": time.monotonic() - started}))


def start(rank: int, world: int, port: int, code: object, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    sink = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    words = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in words.items()}, GLOO_SOCKET_IFNAME="lo")
    status = 0
    try:
        exec(code, {"__name__": "__main__"})  # type: ignore[call-overload]  # noqa: S102 - the test's own script
    except SystemExit as leaving:
        status = int(leaving.code or 0)
    except BaseException:  # noqa: BLE001 - shown as Python would, with torch's mark of the rank
        for line in traceback.format_exc().splitlines():
            print(f"[rank{rank}]: {line}", file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
