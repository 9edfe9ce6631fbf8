"""Jobs of real ranks on the lab's hosts, and what they print, as users would have it in files."""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import STDOUT, Popen, TimeoutExpired
from typing import Any

from tests.support.lab import Host, Lab, processes
from tests.support.lab.lab import REPOSITORY

JOBS = Path(__file__).with_name("jobs")
SCRIPT = "/opt/job/train.py"
LONGEST = 90.0  # seconds; gloo's start does not keep its own limit where packets are dropped
MOST = 200  # lines of a recording; what is cut out is noise that repeats
PLACES = (
    (str(Path(sys.prefix)), "/opt/env"),
    (str(Path(sys.base_prefix)), "/usr/local"),
    (str(REPOSITORY), "/opt/job"),
)


class Stage:
    """One play: jobs that it starts, what it does to them, and afterwards what they printed."""

    def __init__(self, lab: Lab, job: str) -> None:
        self.lab = lab
        self.folder = Path(tempfile.mkdtemp(prefix="play-"))
        self.jobs: list[Popen[Any]] = []
        text = re.sub(
            "  # noqa: .*", "", (JOBS / f"{job}.py").read_text()
        )  # tracebacks show the lines
        for host in lab.hosts:
            host.write(SCRIPT, text)

    def host(self, name: str) -> Host:
        return self.lab.host(name)

    def command(
        self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None, log: str = ""
    ) -> None:
        """A command on a host, whose words go to the file of that name, or of the host's."""
        with (self.folder / f"{log or name}.log").open("ab") as out:
            full = {"PYTHONUNBUFFERED": "1"} | dict(env or {})
            self.jobs.append(
                self.host(name).popen(argv, env=full, stdout=out, stderr=STDOUT, text=False)
            )

    def torchrun(
        self,
        name: str,
        *flags: str,
        env: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> None:
        """Torchrun on one host, with a shell line `before` it, such as a ulimit."""
        run = [sys.executable, "-m", "torch.distributed.run", *flags, SCRIPT]
        shell = ["sh", "-c", f'{"; ".join(before)}; exec "$@"', "sh"] if before else []
        self.command(name, [*shell, *run], env)

    def static(self, *names: str, flags: Sequence[str] = (), **more: Any) -> None:
        """The usual: two processes on each of these hosts, the first of them the master."""
        master = self.host(names[0]).address
        for number, name in enumerate(names):
            place = [
                "--nnodes",
                str(len(names)),
                "--node-rank",
                str(number),
                "--nproc-per-node",
                "2",
            ]
            where = ["--master-addr", master, "--master-port", "29500", "--rdzv-conf", "timeout=20"]
            self.torchrun(name, *place, *where, *flags, **more)

    def elastic(
        self, *names: str, nnodes: str = "", run: str = "7001", join: int = 20, **more: Any
    ) -> None:
        """Through the c10d rendezvous, which the first of these hosts holds."""
        for name in names:
            self.join(name, names[0], nnodes or str(len(names)), run, join, **more)

    def join(
        self, name: str, head: str, nnodes: str, run: str, join: int = 20, **more: Any
    ) -> None:
        where = [
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"{self.host(head).address}:29400",
            "--rdzv-id",
            run,
        ]
        conf = ["--rdzv-conf", f"join_timeout={join},timeout={join}"]
        self.torchrun(name, "--nnodes", nnodes, "--nproc-per-node", "2", *where, *conf, **more)

    def plain(self, name: str, env: Mapping[str, str], log: str = "") -> None:
        """One process without a launcher."""
        self.command(name, [sys.executable, SCRIPT], env, log)

    def wait_for(self, name: str, text: str, limit: float = 60) -> None:
        """Until a file has this text."""
        end = time.monotonic() + limit
        while text not in self.said(name):
            if time.monotonic() > end:
                raise TimeoutError(f"{name} never said {text!r}:\n{self.said(name)}")
            time.sleep(0.05)

    def said(self, name: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / f"{name}.log").read_text(errors="replace")
        return ""

    def rank(self, name: str, local: int) -> int:
        """Process id, as its host counts, of a rank."""
        host = self.host(name)
        for pid in host.processes(f"^[^ ]*python[0-9.]* -u {SCRIPT}$"):
            words = host.run(["cat", f"/proc/{pid}/environ"], check=False).stdout.split("\0")
            if f"LOCAL_RANK={local}" in words:
                return pid
        raise LookupError(f"{name} has no local rank {local}")

    def signal(self, name: str, pid: int, signum: str) -> None:
        self.host(name).run(["kill", f"-{signum}", str(pid)])

    def agent(self, name: str) -> int:
        return self.host(name).processes("-m torch.distributed.run")[0]

    def end(self) -> None:
        """Wait for all jobs as long as is reasonable, then end what is left of them."""
        end = time.monotonic() + LONGEST
        for job in self.jobs:
            with contextlib.suppress(TimeoutExpired):
                job.wait(max(0.1, end - time.monotonic()))
        for host in self.lab.hosts:
            for pid in [*host.processes("torch.distributed.run"), *host.processes(SCRIPT)]:
                host.run(["kill", "-KILL", str(pid)], check=False)
        for job in self.jobs:
            processes.kill_group(job)
            job.wait(10)

    def files(self) -> dict[str, str]:
        """What was said, by host; of a log folder each rank's own file."""
        found = {
            path.stem: path.read_text(errors="replace")
            for path in sorted(self.folder.glob("*.log"))
        }
        return {name: _trimmed(_neutral(text)) for name, text in found.items() if text}

    def fetch(self, name: str, pattern: str, log: str) -> None:
        """A file of a host becomes one of ours."""
        text = self.host(name).run(["sh", "-c", f"cat {pattern}"], check=False).stdout
        (self.folder / f"{log}.log").write_text(text)


def _neutral(text: str) -> str:
    """Torch's own log lines name its files without the first slash."""
    for place, shown in PLACES:
        text = text.replace(place, shown).replace(place.lstrip("/"), shown.lstrip("/"))
    return text


def _trimmed(text: str) -> str:
    """Return no more than so many lines.

    Of lines that differ in numbers only the first few are kept; then the middle is left out.
    """
    lines = text.splitlines()
    if len(lines) > MOST:
        seen: dict[str, int] = {}
        kept = []
        for line in lines:
            form = re.sub(r"0x[0-9a-f]+|[0-9]+", "#", line)
            seen[form] = seen.get(form, 0) + 1
            if seen[form] <= 8:
                kept.append(line)
        lines = kept
    if len(lines) > MOST:
        lines = lines[: MOST // 2] + lines[-MOST // 2 :]
    return "\n".join([*lines, ""])
