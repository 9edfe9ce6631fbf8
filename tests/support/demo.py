"""What `make demo` shows.

The main job on four real hosts, with two planted faults and then without them.

Where no lab can run (it needs root and namespaces), the same job runs on `transport: local` with
two folders as the nodes' roots, and a fault that a folder can have. Either way it ends with 0 only
if everything came as announced.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.stages import own_kernel
from tests.support.lab import Lab, faults, running, why_not

CLOCK_OFF, ODD_MTU = 5.0, 1400  # seconds, bytes
VERIFY_CHECKS = {"nccl.correct", "nccl.hang"}
LAB_TOOLS = {"chronyd": "chrony", "sudo": "sudo"}  # besides what the lab itself looks for
MARK = secrets.token_hex(8)  # in the environment of what runs on this machine itself
Start = Callable[..., "subprocess.Popen[str]"]


class NotAsAnnounced(Exception):
    """The demo showed something else than it said it would."""


@dataclass(frozen=True)
class Result:
    """How one apply ended, and its report."""

    code: int
    report: dict[str, Any]

    def failed(self) -> dict[str, list[str]]:
        """Every check that failed, with the nodes it blames."""
        return {
            f["check"]: f["nodes"]
            for f in self.report["findings"]
            if f["verdict"] == "fail" and not f["fixed"]
        }

    def outcomes(self) -> set[str]:
        return {change["outcome"] for change in self.report["changes"]}


def main() -> int:
    """Run whichever of the two demos is possible here."""
    reason = why_not() or missing_tool()
    try:
        if reason is None:
            on_lab_hosts()
        else:
            on_two_folders(reason)
    except NotAsAnnounced as surprise:
        say(f"The demo failed: {surprise}")
        return 1
    return 0


def missing_tool() -> str | None:
    """Why the lab could run, but not with these faults."""
    for tool, package in LAB_TOOLS.items():
        if shutil.which(tool, path="/usr/sbin:/usr/bin:/sbin:/bin") is None:
            return f"the demo's lab needs {tool} (apt install {package})"
    if not list(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")):
        return "the demo's lab needs a clock to set wrong (apt install libfaketime)"
    return None


# ---------------------------------------------------------------- four hosts


def on_lab_hosts() -> None:
    """Four hosts behind real OpenSSH servers, each with its own files, network and processes."""
    say("Starting four hosts n1 to n4 with real OpenSSH, on a network of their own.")
    with Lab(4, chrony=True) as lab:
        lab.wait_time_sync()
        for host in lab.hosts:  # their kernel is the machine's, and tells of all that runs here
            list(own_kernel(host))
        # No process may raise its limits above the machine's, so the lab asks for what is there.
        inventory = lab.inventory(cluster="demo", require={"memlock": "8MiB", "lim.nofile": "1024"})

        say(
            f"Planting two faults: the clock of n3 goes {CLOCK_OFF:g} s ahead, "
            f"eth0 of n2 gets an MTU of {ODD_MTU}."
        )
        with faults.clock(lab.host("n3"), CLOCK_OFF), faults.mtu(lab.host("n2"), ODD_MTU):
            first = apply(lab.controller.popen, inventory)
        expect(first.code == 1, f"the first apply to end with 1, not with {first.code}")
        expect(
            first.failed() == {"time.offset": ["n3"], "eth.mtu": ["n2"], "eth.path_mtu": ["n2"]},
            f"the clock and the MTU, not {first.failed()}",
        )
        expect(first.outcomes() == {"done"}, "the environment to be written on all nodes")

        say("Both faults are gone. The same command again:")
        expect_pass(apply(lab.controller.popen, inventory))
        left = [host.name for host in lab.hosts if host.processes("clusterprep")]
        expect(
            not left, f"nothing of clusterprep to run on the hosts any more, but it does on {left}"
        )
        folder, supervisor = lab.folder, lab.supervisor
    expect(not folder.exists() and folder not in running(), f"the lab's folder {folder} to be gone")
    expect(not Path(f"/proc/{supervisor}").exists(), f"the lab's process {supervisor} to be gone")
    say(
        "This was the lab: four real hosts over SSH. "
        "Nothing is left: no agent on them, no host, no process, no file."
    )


# ---------------------------------------------------------------- two folders


def on_two_folders(reason: str) -> None:
    """Run on two nodes that are both this machine, over `transport: local`, each in its folder."""
    say(
        f"No lab hosts here: {reason}.\n"
        "The same job instead on `transport: local`, with two folders as roots."
    )
    with tempfile.TemporaryDirectory(prefix="clusterprep-demo-") as folder:
        state = {
            "XDG_STATE_HOME": str(Path(folder, "state"))
        }  # not among the notes about the user's own nodes
        start = functools.partial(here, env={**os.environ, **state, "DEMO": MARK})
        roots = [make_root(Path(folder, name), name) for name in ("a", "b")]
        inventory = local_inventory(Path(folder), roots)

        say("Planting a fault: b says that it runs Debian 11, and the inventory requires 12.")
        (roots[1] / "etc/os-release").write_text(os_release(11))
        first = apply(start, inventory)
        expect(first.code == 1, f"the first apply to end with 1, not with {first.code}")
        expect(
            first.failed().get("os.release") == ["b"],
            f"os.release to fail on b, not {first.failed()}",
        )
        expect(first.outcomes() == {"done"}, "the environment to be written below both roots")

        say("The fault is gone. The same command again:")
        (roots[1] / "etc/os-release").write_text(os_release(12))
        expect_pass(apply(start, inventory))
    expect(not Path(folder).exists(), f"{folder} to be gone")
    expect(not (left := marked()), f"no process to be left, but there are {left}")
    say(
        f"This was `transport: local` on this machine alone ({reason}). "
        "Nothing is left: no process, no file."
    )


def make_root(folder: Path, name: str) -> Path:
    """A folder with as much of /etc as tells one machine from another."""
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/machine-id").write_text(name * 32 + "\n")
    (folder / "etc/os-release").write_text(os_release(12))
    return folder


def os_release(version: int) -> str:
    return f'ID=debian\nVERSION_ID="{version}"\n'


def local_inventory(folder: Path, roots: Sequence[Path]) -> Path:
    nodes = [
        {
            "name": root.name,
            "address": "127.0.0.1",
            "root": str(root),
            "env": {"NCCL_HOSTID": root.name},
        }
        for root in roots
    ]
    content = {"cluster": "demo", "transport": "local", "python": sys.executable, "nodes": nodes}
    path = folder / "inventory.yaml"
    path.write_text(json.dumps({**content, "require": {"os.release": "debian 12"}}, indent=2))
    return path


def here(argv: Sequence[str | Path], **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([str(word) for word in argv], text=True, **options)


def marked() -> list[int]:
    """Processes that were started from here and still run: they inherited the mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"DEMO={MARK}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


# ---------------------------------------------------------------- both


def apply(start: Start, inventory: Path, *options: str) -> Result:
    """`clusterprep apply`, its output as it comes, and its report."""
    print(f"\n$ {' '.join(['clusterprep', 'apply', inventory.name, *options])}\n", flush=True)
    saved = inventory.with_name("report.json")
    # From its folder, so that the commands in the report have the name that is shown above.
    program = ["env", f"--chdir={inventory.parent}", sys.executable, "-m", "clusterprep"]
    argv = [*program, "apply", inventory.name, *options, "--output", saved]
    # One session with the terminal: Ctrl-C reaches the command, which then puts everything back.
    process = start(argv, start_new_session=False)
    try:
        code = process.wait(timeout=300)
    except BaseException:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
        process.kill()
        raise
    expect(saved.exists(), f"a report, but apply ended with {code} and wrote none")
    return Result(code, json.loads(saved.read_text()))


def expect_pass(second: Result) -> None:
    expect(second.code == 0, f"the second apply to end with 0, not with {second.code}")
    expect(second.outcomes() == {"unchanged"}, "nothing to be left to write")
    expect(second.report.get("verify", {}).get("verdict") == "pass", "the all-reduce to pass")
    passed = {f["check"] for f in second.report["findings"] if f["verdict"] == "pass"}
    expect(passed >= VERIFY_CHECKS, f"{sorted(VERIFY_CHECKS - passed)} to pass")


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise NotAsAnnounced(f"expected {what}")


def say(text: str) -> None:
    """A heading between the tool's own words."""
    bold, plain = (
        ("\033[1m", "\033[0m") if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ("", "")
    )
    print(f"\n{bold}==> {text}{plain}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
