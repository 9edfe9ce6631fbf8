"""What `make test` runs: the tests on hosts and, beside them, those that only compute, as two runs of pytest.

Tests on the lab's hosts mostly wait: for logins, for time limits, for what a fault brings about. Meanwhile a processor
can do the thousands that only compute, which give way to the others. `tests/conftest.py` says which are which; tests
that hold something to seconds run in the row with the hosts, where nothing busy is started beside them but these.

Words are pytest's. Where some of them name tests, or want to talk to somebody, there is one run as by hand.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO
from xml.etree import ElementTree as ET

PYTEST = (sys.executable, "-m", "pytest")
ALL, WAIT, COMPUTE = "not slow", "not slow and (lab or timed)", "not slow and not lab and not timed"
ASIDE = 10  # the niceness of those that compute
# What chooses tests, or needs standard input, is for one run.
ONE_RUN = ("-m", "-s", "--capture=no", "--pdb", "--trace", "--co", "--collect-only", "-h", "--help", "--markers")
NOTHING_COLLECTED = 5  # pytest's exit codes
JUNIT = ("--junitxml=", "--junit-xml=")


@dataclass(frozen=True)
class Part:
    """One of the two runs; what it says goes to `said`, or where ours goes."""

    name: str
    process: subprocess.Popen[bytes]
    said: IO[bytes] | None = None


def main(words: Sequence[str]) -> int:
    """The exit code of pytest for both together."""
    if in_one_run(words):
        os.execv(sys.executable, [*PYTEST, "-m", ALL, *words])
    words, report = without_junit(words)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as said:
        reports = [Path(folder, "hosts.xml"), Path(folder, "rest.xml")] if report else []
        junit = [[f"--junitxml={path}"] for path in reports] or [[], []]
        rest = start([*colour(), *cache("rest"), "-m", COMPUTE, *words, *junit[1]], said, ASIDE)
        hosts = start([*cache("hosts"), "-m", WAIT, *words, *junit[0]])
        ends = both_ends(Part("tests on hosts", hosts), Part("tests that compute", rest, said))
        if report:
            merge([path for path in reports if path.exists()], Path(report))
    return together(ends)


def in_one_run(words: Sequence[str]) -> bool:
    return any(word in ONE_RUN or word.startswith("-m=") or Path(word.partition("::")[0]).exists() for word in words)


def without_junit(words: Sequence[str]) -> tuple[list[str], str]:
    """The words but for the one that names a report, and the report's name."""
    named = [word for word in words if word.startswith(JUNIT)]
    return [word for word in words if word not in named], named[-1].partition("=")[2] if named else ""


def colour() -> list[str]:
    """What is shown later is to look as if it were shown now."""
    return ["--color=yes"] if sys.stdout.isatty() else []


def cache(name: str) -> list[str]:
    """Each remembers its own failures for --lf."""
    return ["-o", f"cache_dir=.pytest_cache/{name}"]


def start(words: Sequence[str], said: IO[bytes] | None = None, nice: int = 0) -> subprocess.Popen[bytes]:
    """In a session of its own, so that a Ctrl-C reaches each once, through us, and its hosts are ended in order."""
    argv = ["nice", "-n", str(nice), *PYTEST, *words]
    error = subprocess.STDOUT if said else None
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=error, start_new_session=True)


def both_ends(hosts: Part, rest: Part) -> list[int]:
    """Wait for both, and show in the end what the second said. A signal to us ends both as a Ctrl-C would."""
    stop = Stop((hosts, rest))
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, stop)
    print(f"{hosts.name} follow; beside them run the {rest.name}, shown at the end.", flush=True)
    code = hosts.process.wait()
    if rest.process.poll() is None:
        print(f"Waiting for the {rest.name}.", flush=True)
    ends = [code, rest.process.wait()]
    if rest.said is not None:
        print(f"\n{rest.name}:", flush=True)
        rest.said.seek(0)
        sys.stdout.buffer.write(rest.said.read())
        sys.stdout.flush()
    print(f"\n{hosts.name}: exit {ends[0]}; {rest.name}: exit {ends[1]}", flush=True)
    return ends


class Stop:
    """Ends the parts: pytest takes the first signal as Ctrl-C and puts everything away, the second one kills it."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts, self._asked = parts, False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        for part in self._parts:
            if part.process.poll() is None:
                part.process.send_signal(signal.SIGKILL if self._asked else signal.SIGINT)
        self._asked = True


def together(ends: Sequence[int]) -> int:
    """0 where both passed; a part in which nothing was selected says nothing unless the other had nothing either."""
    counted = [end if end >= 0 else 128 - end for end in ends if end != NOTHING_COLLECTED]
    return max(counted, default=NOTHING_COLLECTED)


def merge(parts: Sequence[Path], target: Path) -> None:
    """One JUnit report that has the suites of all."""
    whole = ET.Element("testsuites", name="pytest tests")
    for part in parts:
        whole.extend(ET.parse(part).getroot())  # noqa: S314  # pytest has just written it
    target.parent.mkdir(parents=True, exist_ok=True)
    ET.ElementTree(whole).write(target, encoding="utf-8", xml_declaration=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
