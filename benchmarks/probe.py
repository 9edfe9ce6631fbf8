"""Measure what one full look costs a node, in CPU time and memory of the agent and all it starts.

    python benchmarks/probe.py [--repeat N] [--apart]

Prints medians and minima of N looks at this machine with every check's reads, in turn with what a
look cannot avoid: a login shell with this machine's start-up files, and a start of the job's
interpreter. `--apart` prints instead what a look costs less without each kind of read.

The job's interpreter is the one that runs this. Its torch is looked up and not imported, so whether
it has one makes little difference; the system's interpreter is measured too.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterprep.model import Inventory, Node, Read
from clusterprep.remote import bootstrap
from clusterprep.remote.agent.shells import identity
from clusterprep.remote.transports.link import FrameReader
from clusterprep.survey import registry
from clusterprep.survey.queries import Queries, plan_queries

NONCE = "0123456789abcdef0123456789abcdef"
SYSTEM_PYTHON = "/usr/bin/python3"


@dataclass(frozen=True)
class Cost:
    wall: float  # seconds
    cpu: float  # seconds, user and system, with all children
    # MiB, the most that the agent itself held; what it starts shares its pages or is smaller. None
    # for what is no agent.
    memory: float | None = None


def all_reads(python: str = sys.executable) -> tuple[Read, ...]:
    """Return what `check` asks of a node with this interpreter as the job's."""
    node = Node("here", "127.0.0.1", 0, python=python)
    plan = plan_queries(tuple(registry.checks().values()), registry.facts())
    return Queries(plan, Inventory("here", (node,))).of(node).reads


def look(
    asked: Iterable[Read], near: bool = False, sent: Iterable[Read] = ()
) -> Callable[[], Cost]:
    """Return a function that has an agent read `asked`, and returns what that costs.

    A `near` node gets the agent compiled as well. The agent has the parts for `asked` and `sent`.
    """
    reads = tuple(asked)
    kinds = {read.kind for read in (*reads, *sent)}
    parts = (*bootstrap.parts_for(kinds), "dial")
    request = {
        "id": 1,
        "op": "look",
        "reads": [[read.kind, list(read.args), read.limit] for read in reads],
    }
    source = bootstrap.payload(NONCE, parts, near) + json.dumps(request).encode() + b"\n"
    return lambda: measured(["/bin/sh", "-c", bootstrap.command()], source)


def measured(argv: list[str], source: bytes) -> Cost:
    """Run to the first answer, or to the first byte, and count every process that was reaped."""
    began = time.monotonic()
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(source)
    process.stdin.flush()
    reader, answered = FrameReader(NONCE), not source
    while not answered:
        answered = any(
            "id" in frame for frame in reader.feed(os.read(process.stdout.fileno(), 1 << 16))
        )
    if not source:  # it says when it has started
        os.read(process.stdout.fileno(), 1)
    wall = time.monotonic() - began
    memory = peak(process.pid)
    process.stdin.close()
    cpu = reaped(process)
    process.stdout.close()
    return Cost(wall, cpu, memory)


def ended(argv: list[str], env: Mapping[str, str]) -> Cost:
    """Run a program to its end, with nothing to read and its output dropped."""
    began = time.monotonic()
    null = subprocess.DEVNULL
    process = subprocess.Popen(
        argv, executable=env["SHELL"], env=env, stdin=null, stdout=null, stderr=null, cwd="/"
    )
    cpu = reaped(process)
    return Cost(time.monotonic() - began, cpu)


def reaped(process: subprocess.Popen[bytes]) -> float:
    """Wait for a process; return the seconds of CPU of it and all that it waited for."""
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return usage.ru_utime + usage.ru_stime


def peak(pid: int) -> float:
    """MiB; not the rusage of wait4, which remembers what this process held when it forked."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def login_shell() -> Cost:
    """Return the cost of a login shell of this user that does nothing."""
    env = identity(pwd.getpwuid(os.geteuid()))
    return ended([f"-{Path(env['SHELL']).name}", "-c", "true"], env)


def job_interpreter() -> Cost:
    """Return the cost of one start of the job's interpreter that does nothing."""
    env = dict(os.environ, SHELL=sys.executable)
    return ended([sys.executable, "-c", "pass"], env)


def only_starts() -> Cost:
    """Return the cost of an interpreter with the agent's options that does nothing."""
    waits = "import os; os.write(1, b'.'); os.read(0, 1)"
    return measured([SYSTEM_PYTHON, bootstrap.FLAGS, "-c", waits], b"")


def in_turn(contenders: Mapping[str, Callable[[], Cost]], repeat: int) -> dict[str, list[Cost]]:
    """Return the costs of each contender: A B C, A B C, and so on."""
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    for _ in range(repeat):
        for name, contender in contenders.items():
            costs[name].append(contender())
    return costs


def print_whole(repeat: int) -> None:
    """Print what looks cost, and what they cannot avoid."""
    asked = all_reads()
    contenders = {
        f"a look with {len(asked)} reads, compiled": look(asked, near=True),
        "the same, sent as text": look(asked),
        "compiled, the job's is the system's": look(all_reads(SYSTEM_PYTHON), near=True),
        "a login shell": login_shell,
        "the job's interpreter": job_interpreter,
        "an interpreter that only starts": only_starts,
    }
    for name, costs in in_turn(contenders, repeat).items():
        wall = statistics.median(cost.wall for cost in costs)
        cpu = [cost.cpu for cost in costs]
        line = f"{name:36} {wall * 1000:5.0f} ms  {statistics.median(cpu) * 1000:5.0f} ms CPU"
        line += f" ({min(cpu) * 1000:.0f} at least)"
        if costs[0].memory is not None:
            line += f"  {costs[0].memory:5.1f} MiB"
        print(line)


def print_apart(repeat: int) -> None:
    """Print what a look costs less without each kind of read; commands apart from each other."""
    asked = all_reads()
    whole, nothing = "a look", "nothing, with all parts"
    contenders = {
        whole: look(asked, near=True),
        nothing: look((), near=True, sent=asked),
    }
    for name in dict.fromkeys(map(name_of, asked)):
        others = [read for read in asked if name_of(read) != name]
        contenders[name] = look(others, near=True, sent=asked)
    least = {}
    for name, costs in in_turn(contenders, repeat).items():
        least[name] = min(cost.cpu for cost in costs) * 1000
    print(f"{nothing:36} {least.pop(nothing):6.1f} ms CPU")
    of_whole = least.pop(whole)
    print(f"{whole:36} {of_whole:6.1f}, of which")
    for name, without in sorted(least.items(), key=lambda row: row[1]):
        print(f"{name:36} {of_whole - without:6.1f}")


def name_of(read: Read) -> str:
    return f"command {read.args[0]}" if read.kind == "command" else read.kind


def main() -> None:
    """Entry of ``python benchmarks/probe.py``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--apart", action="store_true", help="what each kind of read costs")
    args = parser.parse_args()
    print_part = print_apart if args.apart else print_whole
    print_part(args.repeat)


if __name__ == "__main__":
    main()
