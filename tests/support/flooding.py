"""A node of a launch prints without end, in events of the largest size, to a terminal that is slow.

python -m tests.support.flooding FOLDER   # → {"before": MiB, "peak": MiB, "logs": bytes, …}
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from clusterprep.jobs.launch.command import program_of
from clusterprep.jobs.launch.display import Source
from clusterprep.jobs.launch.follow import run_launch
from clusterprep.jobs.launch.logs import Logs
from clusterprep.jobs.launch.plan import LaunchRequest, plan_launch
from clusterprep.model import Node
from clusterprep.remote.transports.link import Link

NONCE = "00112233aabbccdd"
EVENTS = 800  # of 200 KB each: 160 MB
LINES = 25  # of 8 KB in each event
QUOTA = 4 << 20  # bytes of a log; on a busy machine most of the lines do not arrive
LOOK = 0.01  # seconds that the terminal takes for the lines of one event


class Flooding:
    """An agent's channel: answers all requests, and tells of ever more output in between."""

    peer = None
    near = False
    alive = True

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._events = EVENTS
        self._has_ended = False
        lines = ["x" * 8000] * LINES
        self._event = framed({**told(0), "what": "lines", "lines": lines})

    def send(self, data: bytes) -> None:
        for line in data.splitlines():
            request = json.loads(line)
            if "id" in request:
                self._waiting.append(framed({"id": request["id"]}))

    def recv(self, timeout: float) -> bytes:
        if self._waiting:
            return self._waiting.popleft()
        if self._events:
            self._events -= 1
            return self._event
        if not self._has_ended:
            self._has_ended = True
            return b"".join(framed({**told(rank), "what": "exit", "code": 0}) for rank in (0, 1))
        time.sleep(min(timeout, 0.05))
        raise TimeoutError

    def stderr(self) -> bytes:
        return b""

    def kill(self) -> None: ...

    def close(self) -> None: ...


def told(rank: int) -> dict[str, object]:
    return {"rank": rank, "mono": 1.0, "wall": 1.0}


def framed(body: dict[str, object]) -> bytes:
    payload = json.dumps(body).encode()
    return b"\n%s %d %s\n" % (NONCE.encode(), len(payload), payload)


def main() -> None:
    """Follow the launch, and print what it took."""
    node = Node("n1", "10.0.0.1", 0, nproc_per_node=2)
    wanted = LaunchRequest(program_of(["train.py"]), direct=True)
    plan = plan_launch([node], {}, {}, ("10.0.0.1", 29500), wanted)
    logs = Logs(Path(sys.argv[1]), QUOTA)
    heard: set[str] = set()

    def hear(source: Source, lines: Sequence[str], *, shown: bool) -> None:
        time.sleep(LOOK)
        heard.update(line for line in lines if line.startswith("clusterprep: "))
        logs.write(source, lines)

    before = peak()
    record = run_launch(
        {"n1": Link(node, Flooding(), NONCE)}, plan, hear, lambda: None, lambda: None
    )
    paths = logs.close()
    answer = {
        "before": before,
        "peak": peak(),
        "logs": sum(path.stat().st_size for path in paths),
        "trouble": logs.trouble,
        "ending": record.ending,
        "missing": sorted(heard)[:1],
    }
    print(json.dumps(answer))


def peak() -> float:
    """Return the largest resident size so far in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
