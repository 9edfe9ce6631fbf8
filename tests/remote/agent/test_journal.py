"""What a node remembers of runs, and its lock.

Root's alone to take, and seen by all while it is held.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote.agent import journal
from clusterprep.remote.agent.journal import read_journal
from tests.support.system_calls import noted

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:  # all users may enter it, other than pytest's own
        path = Path(name)
        path.chmod(0o755)
        yield path


def as_nobody(folder: Path) -> object:
    """What an ordinary user's agent reads there."""
    source, sink = os.pipe()
    if (child := os.fork()) == 0:
        os.setuid(NOBODY)
        os.write(sink, repr(read_journal(str(folder))["holder"]).encode())
        os._exit(0)
    os.close(sink)
    with os.fdopen(source) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
def test_an_ordinary_user_sees_that_a_run_is_under_way_and_cannot_hold_it_up(folder: Path) -> None:
    assert as_nobody(folder) == "None"
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        assert as_nobody(folder) == "None"
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert as_nobody(folder) == "'another run'"
    finally:
        os.close(fd)
    assert as_nobody(folder) == "None"


def remembered(folder: Path, name: str, state: str, **more: Any) -> Path:
    """The folder of a run in this state."""
    run = folder / "runs" / name
    run.mkdir(parents=True, exist_ok=True)
    manifest = {"run": name, "cluster": f"of {name}", "state": state, "files": [], **more}
    (run / "manifest.json").write_text(json.dumps(manifest))
    return run


def test_a_node_without_a_journal_remembers_nothing(tmp_path: Path) -> None:
    nothing = {"runs": [], "holder": None}
    assert read_journal(str(tmp_path / "none")) == nothing
    (tmp_path / "runs").mkdir()
    (tmp_path / "lock").touch()
    assert read_journal(str(tmp_path)) == nothing


def test_runs_are_told_oldest_first_and_one_without_a_manifest_had_not_begun(
    tmp_path: Path,
) -> None:
    for name, state in (("20", "done"), ("10", "undone"), ("30", "staged")):
        remembered(tmp_path, name, state)
    (tmp_path / "runs/25").mkdir()
    older = [0, "", ""]
    runs = [
        ["10", "of 10", "undone", *older],
        ["20", "of 20", "done", *older],
        ["30", "of 30", "staged", *older],
    ]
    assert read_journal(str(tmp_path)) == {"runs": runs, "holder": None}


def test_runs_are_ordered_by_their_number_and_not_by_the_clock_of_their_names(
    tmp_path: Path,
) -> None:
    for name, number in (("2026", 2), ("2027", 1), ("2025", 3)):
        remembered(tmp_path, name, "done", number=number, nodes="n[1-2]", node="n2")
    rows = read_journal(str(tmp_path))["runs"]
    assert [row[0] for row in rows] == ["2027", "2026", "2025"]
    assert rows[0] == ["2027", "of 2027", "done", 1, "n[1-2]", "n2"]


def test_more_runs_than_are_ever_kept_are_not_cut_without_a_word(tmp_path: Path) -> None:
    for number in range(journal.MOST + 1):
        remembered(tmp_path, f"{number:04}", "done")
    with pytest.raises(ValueError, match="more than 1000 runs"):
        read_journal(str(tmp_path))


def refusing(name: str, number: int, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, *words: Any) -> Any:
        if str(path).endswith(name):
            raise OSError(number, os.strerror(number), path)
        return real(path, *words)

    return call


@pytest.mark.parametrize("what", ["runs", "lock"])
def test_what_cannot_be_read_is_not_taken_for_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    remembered(tmp_path, "10", "done")
    call = "listdir" if what == "runs" else "open"
    monkeypatch.setattr(os, call, refusing(what, errno.EIO, getattr(os, call)))
    with pytest.raises(OSError, match="Input/output error"):
        read_journal(str(tmp_path))


def replaced(manifest: Path, text: str) -> None:
    manifest.write_text(text)


def made_a_folder(manifest: Path) -> None:
    manifest.unlink()
    manifest.mkdir()


def without_old_bytes(manifest: Path) -> None:
    files = [{"backup": "0.before", "after": None}]
    replaced(manifest, json.dumps({"run": "10", "cluster": "a", "state": "done", "files": files}))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda at: replaced(at, ""), "it is empty"),
    "blank": (lambda at: replaced(at, " \n"), "it is empty"),
    "cut": (lambda at: replaced(at, at.read_text()[:20]), ""),
    "another-shape": (lambda at: replaced(at, '["run"]'), "list indices"),
    "without-a-state": (
        lambda at: replaced(at, '{"run": "10", "cluster": "a"}'),
        "it has no 'state'",
    ),
    "without-files": (
        lambda at: replaced(at, '{"run": "10", "cluster": "a", "state": "done"}'),
        "it has no 'files'",
    ),
    "another-kind-of-number": (
        lambda at: replaced(at, at.read_text().replace("{", '{"number": "1", ', 1)),
        "'1' is no number of a run",
    ),
    "an-unknown-state": (
        lambda at: replaced(at, at.read_text().replace("done", "gone")),
        "'gone' is no state of a run",
    ),
    "of-another-run": (
        lambda at: replaced(at, at.read_text().replace('"10"', '"20"')),
        "it is of run 20",
    ),
    "too-large": (lambda at: replaced(at, " " * (300 << 10)), "is larger than 262144 bytes"),
    "a-folder": (made_a_folder, "others could have written it|Is a directory"),
    "of-others": (lambda at: at.chmod(0o666), "mode 0666: others could have written it"),
    "without-old-bytes": (without_old_bytes, "its file 0.before is missing"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_run_whose_record_is_damaged_is_told_with_its_file_beside_the_others(
    tmp_path: Path, name: str
) -> None:
    """It is no run that had not begun, and it hides none of the others."""
    spoil, words = DAMAGE[name]
    remembered(tmp_path, "20", "done")
    manifest = remembered(tmp_path, "10", "done") / "manifest.json"
    spoil(manifest)
    journal = read_journal(str(tmp_path))
    assert [row[0] for row in journal["runs"]] == ["20"]
    ((run, why),) = journal["damaged"]
    assert (run, why.startswith(f"{manifest} cannot be read: ")) == ("10", True)
    assert re.search(words, why), why


@pytest.mark.parametrize(
    ("text", "holder"),
    [("run 7 of cluster a\n", "run 7 of cluster a"), ("", "another run"), ("x" * 300, "x" * 200)],
)
def test_the_holder_of_the_lock_is_told_only_while_the_lock_is_held(
    tmp_path: Path, text: str, holder: str
) -> None:
    path = tmp_path / "lock"
    path.write_text(text)
    assert read_journal(str(tmp_path))["holder"] is None
    with path.open("rb+") as run, path.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        assert read_journal(str(tmp_path))["holder"] is None, "it is another that looks"
        fcntl.flock(reader, fcntl.LOCK_UN)
        fcntl.flock(run, fcntl.LOCK_EX)
        assert read_journal(str(tmp_path))["holder"] == holder
    assert read_journal(str(tmp_path))["holder"] is None


def test_a_user_who_may_not_open_the_lock_asks_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "lock", tmp_path / "other"
    path.touch()
    other.touch()
    with path.open("rb+") as run, other.open("rb+") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        fcntl.lockf(run, fcntl.LOCK_EX)
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refusing("lock", errno.EACCES, os.open))
            assert read_journal(str(tmp_path))["holder"] is None, (
                "a lock of another kind, and one on another file"
            )
            fcntl.flock(run, fcntl.LOCK_EX)
            assert read_journal(str(tmp_path))["holder"] == "another run"


def test_the_lock_is_opened_without_following_waiting_or_writing(tmp_path: Path) -> None:
    (tmp_path / "aim").touch()
    (tmp_path / "lock").symlink_to("aim")
    with noted() as calls, pytest.raises(OSError, match="symbolic links"):
        read_journal(str(tmp_path))
    wanted = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    assert [call.flags for call in calls.opened] == [wanted]
    assert calls.made == []


@pytest.mark.parametrize(
    ("states", "held", "looks"),
    [
        (("done", "undone"), False, 1),
        (("done", "staged"), False, 2),
        (("committed", "done"), False, 2),
        (("done", "staged"), True, 1),
        ((), False, 1),
    ],
)
def test_a_run_that_was_settled_while_it_was_looked_at_is_no_run_that_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: tuple[str, ...], held: bool, looks: int
) -> None:
    """The run ends and releases the lock after the manifests are read and before the lock is."""
    for number, state in enumerate(states):
        remembered(tmp_path, str(number), state)
    (tmp_path / "lock").touch()
    listed, listing, opening = [], os.listdir, os.open

    def settled(path: Any, *words: Any) -> int:
        if str(path).endswith("lock") and not held:
            for number, state in enumerate(states):
                remembered(tmp_path, str(number), "undone" if state == "undone" else "done")
        return opening(path, *words)

    monkeypatch.setattr(os, "open", settled)
    monkeypatch.setattr(os, "listdir", lambda path: (listed.append(path), listing(path))[1])
    with (tmp_path / "lock").open() as run:
        if held:
            fcntl.flock(run, fcntl.LOCK_EX)
        found = read_journal(str(tmp_path))
    assert [row[2] for row in found["runs"]] == [
        state if held or state == "undone" else "done" for state in states
    ]
    assert len(listed) == looks
