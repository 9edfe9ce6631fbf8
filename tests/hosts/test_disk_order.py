"""The system calls of an agent that writes, on a real host.

No name before its bytes, no word before its names.

Every file is written, synced, renamed into place and its folder synced, and only then does the
journal say the next word, which reaches the disk in the same way. That is what a host is made whole
from after a power cut.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.command import clusterprep
from tests.support.lab import Host, Lab
from tests.support.tracing import strace

pytestmark = pytest.mark.hosts

TARGETS = {
    "/etc/profile.d/clusterprep-nccl.sh": "profile.d",
    "/etc/nccl.conf": "nccl.conf",
    "/etc/clusterprep/nccl.env": "env-file",
    "/etc/clusterprep/task_prolog.sh": "slurm-task-prolog",
}
CALLS = "trace=write,fsync,fdatasync,rename,renameat,renameat2,link,linkat,unlink,unlinkat"
STATES = ["staged", "committed", "done"]


@dataclass(frozen=True)
class Call:
    """A system call that succeeded, with its path: of a rename and a link the new one.

    `more` is the old path of these, and what a write wrote.
    """

    name: str
    path: str
    more: str = ""


def calls(log: str) -> list[Call]:
    """What strace wrote down; a call that others came into the midst of counts where it ended."""
    begun: dict[str, str] = {}
    found = []
    for line in log.splitlines():
        pid, _, text = line.partition(" ")
        text = text.strip()
        if text.endswith("<unfinished ...>"):
            begun[pid] = text.removesuffix("<unfinished ...>")
            continue
        if text.startswith("<... "):
            text = begun.pop(pid, "") + text.partition("resumed>")[2]
        if (call := _call(text)) is not None:
            found.append(call)
    return found


def _call(text: str) -> Call | None:
    done = re.fullmatch(r"(\w+)\((.*)\)\s+= (\d+).*", text)
    if done is None:
        return None
    name, words = done[1], done[2]
    if name in ("fsync", "fdatasync", "write"):
        opened = re.match(r"\d+<([^>]*)>(?:, \"(.*)\")?", words)
        return opened and Call(name, opened[1], opened[2] or "")
    paths = re.findall(r'"([^"]*)"', words)
    kind = next(kind for kind in ("rename", "unlink", "link") if name.startswith(kind))
    return Call(kind, paths[-1], paths[0])


def disorder(seen: list[Call], targets: Iterable[str]) -> list[str]:
    """Everything in the calls of one run that a power cut could turn into a loss, in words.

    Empty where nothing is.
    """
    words = [*_journal(seen)]
    committed = next((at for at, state in _states(seen) if state == "committed"), len(seen))
    staged = next((at for at, state in _states(seen) if state == "staged"), len(seen))
    for at, call in enumerate(seen):
        kept = re.search(r"/runs/[^/]+/\d+\.(before|after)$", call.path)
        if call.name == "write" and kept and not _between(seen, "fsync", call.path, at, staged):
            words.append(f"{call.path} is not on disk when the journal says staged")
    for target in targets:
        words += _moved(seen, target, committed)
        words += _kept(seen, target)
    return words


def _kept(seen: list[Call], target: str) -> Iterator[str]:
    """The second name of an old file: there before the new one, and gone before the last word."""
    made = [at for at, call in enumerate(seen) if (call.name, call.more) == ("link", target)]
    if not made:
        return
    moved = next(
        at
        for at, call in enumerate(seen)
        if call.path == target and call.name in ("rename", "unlink")
    )
    if moved < made[0]:
        yield f"{target} has no second name when it is replaced"
    link = seen[made[0]].path
    done = next((at for at, state in _states(seen) if state == "done"), len(seen))
    gone = [at for at, call in enumerate(seen) if (call.name, call.path) == ("unlink", link)]
    if not gone or not _between(seen, "fsync", str(Path(link).parent), gone[0], done):
        yield f"{link} may be there for ever"


def _moved(seen: list[Call], target: str, committed: int) -> Iterator[str]:
    """One file: bytes, sync, name, sync of the folder, and then the journal."""
    moved = [
        at
        for at, call in enumerate(seen)
        if call.path == target and call.name in ("rename", "unlink")
    ]
    if len(moved) != 1:
        yield f"{target} is renamed or removed {len(moved)} times"
        return
    (at,) = moved
    if seen[at].name == "rename":
        beside = seen[at].more
        written = [n for n, call in enumerate(seen) if (call.name, call.path) == ("write", beside)]
        if not written or not _between(seen, "fsync", beside, written[-1], at):
            yield f"{target} has its name before its bytes are on disk"
    if not _between(seen, "fsync", str(Path(target).parent), at, committed):
        yield f"the folder of {target} is not on disk when the journal says committed"


def _journal(seen: list[Call]) -> Iterator[str]:
    """Every word of the journal is on disk before its name, its name before any other action."""
    states = _states(seen)
    if [state for _, state in states] != STATES:
        yield f"the journal says {[state for _, state in states]}"
    for at, state in states:
        manifest, beside = seen[at].path, seen[at].more
        written = max(
            n for n, call in enumerate(seen[:at]) if (call.name, call.path) == ("write", beside)
        )
        if not _between(seen, "fsync", beside, written, at):
            yield f"the journal's {state} has its name before its bytes are on disk"
        if seen[at + 1 : at + 2] != [Call("fsync", str(Path(manifest).parent))]:
            yield f"the folder of the journal is not on disk right after {state}"


def _states(seen: list[Call]) -> list[tuple[int, str]]:
    """Where the journal of a run gets a new word, and which."""
    found, word = [], ""
    for at, call in enumerate(seen):
        if call.name == "write" and "/manifest.json" in call.path:
            said = re.search(r'\\"state\\":\\"(\w+)', call.more)
            word = said[1] if said else "?"
        elif call.name == "rename" and call.path.endswith("/manifest.json"):
            found.append((at, word))
    return found


def _between(seen: list[Call], name: str, path: str, first: int, last: int) -> bool:
    return any((call.name, call.path) == (name, path) for call in seen[first + 1 : last])


# ---------------------------------------------------------------- on a host


@contextlib.contextmanager
def traced(host: Host, log: Path) -> Iterator[None]:
    """Everything that sshd on this host starts is watched; the log is complete afterwards."""
    with strace(host, "-y", "-s", "300", "-e", CALLS, "-o", str(log)):
        yield
        end = time.monotonic() + 60
        while host.processes("-ISB") and time.monotonic() < end:
            time.sleep(0.02)


@pytest.fixture(scope="module")
def trace(lab4: Lab, tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """Of an apply of all four targets: one file is there already, its folder too.

    Of two the folder is not.
    """
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    host, log = lab4.host("n3"), tmp_path_factory.mktemp("strace") / "log"
    host.write("/etc/nccl.conf", "NCCL_IB_TC=106\n")
    with traced(host, log):
        inventory = lab4.inventory(env_targets=list(TARGETS.values()))
        done = clusterprep(lab4, "apply", "--no-verify", "--only", "ssh.", inventory=inventory)
    assert (done.code, done.outcomes()) == (0, {"done"})
    return calls(log.read_text())


def test_apply_puts_everything_on_disk_in_order(trace: list[Call]) -> None:
    assert disorder(trace, TARGETS) == []


def test_every_sync_counts(trace: list[Call]) -> None:
    """The judge above is no rubber stamp: it sees the loss if a sync of any file is left out."""
    paths = [
        r"/runs/[^/]+/(\d+\.(before|after)|manifest\.json\.clusterprep-new)$",
        r"^/etc/.*\.clusterprep-[^/]*$",
    ]
    needed = [
        at
        for at, call in enumerate(trace)
        if call.name == "fsync" and re.search("|".join(paths), call.path)
    ]
    assert len(needed) == 5 + 3 + 4  # bytes kept, words of the journal, files
    for at in needed:
        assert disorder(trace[:at] + trace[at + 1 :], TARGETS) != [], trace[at]
    for folder in {str(Path(target).parent) for target in TARGETS}:
        assert disorder([call for call in trace if call != Call("fsync", folder)], TARGETS) != [], (
            folder
        )


def test_the_second_name_of_an_old_file_is_there_in_time_and_goes_in_time(
    trace: list[Call],
) -> None:
    """Of the four targets one was there before."""
    (made,) = (n for n, call in enumerate(trace) if call.name == "link")
    link, target = trace[made].path, trace[made].more
    assert (target, link.rpartition("/")[0]) == ("/etc/nccl.conf", "/etc")
    (gone,) = (n for n, call in enumerate(trace) if call == Call("unlink", link, link))
    for spoilt in (
        [*trace[:made], *trace[made + 1 :], trace[made]],
        [*trace[:gone], *trace[gone + 1 :]],
        [*trace[:gone], *trace[gone + 1 :], trace[gone]],
    ):
        assert disorder(spoilt, TARGETS) != []


def test_every_order_counts(trace: list[Call]) -> None:
    for target in TARGETS:
        (at,) = (n for n, call in enumerate(trace) if (call.name, call.path) == ("rename", target))
        synced = next(n for n, call in enumerate(trace) if call == Call("fsync", trace[at].more))
        early = [*trace[:synced], trace[at], *trace[synced:at], *trace[at + 1 :]]
        assert f"{target} has its name before its bytes are on disk" in disorder(early, TARGETS)
        late = [*trace[:at], *trace[at + 1 :], trace[at]]
        assert f"the folder of {target} is not on disk when the journal says committed" in disorder(
            late, TARGETS
        )
    done = [at for at, state in _states(trace) if state == "done"]
    assert disorder(trace[: done[0]], TARGETS) == ["the journal says ['staged', 'committed']"]


def test_rollback_does_the_same(trace: list[Call], lab4: Lab, tmp_path: Path) -> None:
    """It removes three files and gives one its old bytes back.

    The run that it undoes gets a new word too.
    """
    host, log = lab4.host("n3"), tmp_path / "log"
    with traced(host, log):
        done = clusterprep(lab4, "rollback")
    assert (done.code, done.outcomes()) == (0, {"undone"})
    seen = calls(log.read_text())
    run = done.report["run"]
    mine = [call for call in seen if "/runs/" not in call.path or f"/{run}" in call.path]
    assert disorder(mine, TARGETS) == []
    undone = [call for call in seen if call.path.endswith("/manifest.json") and call not in mine]
    assert len(undone) == 1, "the run that was undone says so"
    assert host.read("/etc/nccl.conf") == "NCCL_IB_TC=106\n"
