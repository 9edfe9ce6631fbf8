"""No file of the controller is written through a link, into a pipe or into a file of another user.

The functions themselves, and each writer that uses them.
"""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterprep.cli.exit import ending
from clusterprep.errors import Unreached
from clusterprep.history.database import NAME, Database, Unusable
from clusterprep.jobs.launch.logs import Logs
from clusterprep.remote.transports.host_key_policy import HostKeys
from clusterprep.reports import files as reports
from clusterprep.runtime import files
from tests.project.test_architecture import MODULES, calls, none, place
from tests.remote.transports.test_accept_new import SHOWN, TYPE, route

OTHER_USER = 4711
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


# ---------------------------------------------------------------- each writer
#
# Each writes to the file `path`, or says why not. It is given its folder only as far as it lets the
# name be chosen.


def launch_log(path: Path) -> str:
    logs = Logs(path.parent)
    logs.write(("n1", 0), ["a line"])
    logs.close()
    return logs.trouble


def report(path: Path) -> str:
    return reports.write(str(path), ["a report"])


def history(path: Path) -> str:
    try:
        Database(path.parent).write(("delete from run", ()))
    except Unusable as error:
        return str(error)
    return ""


def known_hosts(path: Path) -> str:
    try:
        HostKeys(str(path.parent / "system")).verify(route(path.parent), TYPE, SHOWN)
    except Unreached as error:
        return error.message
    return ""


def bug_log(path: Path) -> str:
    """Return "" also if it is refused: then stderr has the story."""

    def fault() -> int:
        raise ZeroDivisionError

    before = os.environ.get("XDG_STATE_HOME", "")
    os.environ["XDG_STATE_HOME"] = str(path.parent.parent)
    try:
        assert ending(fault, [], "check") == 70
    finally:
        os.environ["XDG_STATE_HOME"] = before
    return ""


WRITERS: dict[str, Callable[[Path], str]] = {
    "rank-0.log": launch_log,
    "report.json": report,
    NAME: history,
    "known_hosts": known_hosts,
    f"bug-{os.getpid()}.log": bug_log,
}


def named(name: str) -> str:
    """Return the id of a case, without the number of this process."""
    return "bug.log" if name.startswith("bug-") else name


# What people may link to another place, in folders of their own.
LINKED = ("report.json", NAME, "known_hosts")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that another user shares with us, such as /tmp."""
    shared = tmp_path / "clusterprep"
    shared.mkdir()
    shared.chmod(0o1777)
    return shared


@pytest.mark.machine
@only_root
@pytest.mark.parametrize("name", WRITERS, ids=named)
def test_no_writer_follows_a_link_of_another_user(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    precious = folder.parent / "precious"
    precious.write_text("mine\n")
    link = folder / name
    for target in (precious, folder.parent / "made-by-us"):
        link.symlink_to(target)
        os.lchown(link, OTHER_USER, OTHER_USER)
        said = WRITERS[name](link) + capsys.readouterr().err
        assert precious.read_text() == "mine\n"
        assert not (folder.parent / "made-by-us").exists()
        assert link.is_symlink(), "it is not put away either"
        assert "is a link" in said or "ZeroDivisionError" in said, said
        link.unlink()


# A user may name a pipe with --output; and known_hosts is read first, as ssh reads it.
@pytest.mark.parametrize("name", sorted({*WRITERS} - {"report.json", "known_hosts"}), ids=named)
def test_no_writer_waits_for_the_reader_of_a_pipe(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(folder / name)
    said = WRITERS[name](folder / name) + capsys.readouterr().err
    assert stat.S_ISFIFO((folder / name).stat().st_mode)
    assert said


@pytest.mark.parametrize("name", LINKED)
def test_a_link_of_ones_own_is_what_one_wants(name: str, folder: Path) -> None:
    kept = folder.parent / "kept"
    kept.mkdir()
    (folder / name).symlink_to(kept / "file")
    assert WRITERS[name](folder / name) == ""
    assert (kept / "file").stat().st_size
    assert (folder / name).is_symlink()


@pytest.mark.parametrize("name", WRITERS, ids=named)
def test_each_writer_writes_again(name: str, folder: Path) -> None:
    for _ in range(2):
        assert WRITERS[name](folder / name) == ""
        assert (folder / name).stat().st_size


# ---------------------------------------------------------------- the functions


@pytest.mark.machine
@only_root
def test_what_is_emptied_is_ours_alone(tmp_path: Path) -> None:
    foreign, twice = tmp_path / "foreign", tmp_path / "twice"
    for path in (foreign, twice):
        path.write_text("precious")
    os.chown(foreign, OTHER_USER, OTHER_USER)
    os.link(twice, tmp_path / "again")
    for path, why in ((foreign, "belongs to user 4711"), (twice, "has further names")):
        with pytest.raises(OSError, match=why):
            files.open_emptied(path)
        assert path.read_text() == "precious"
    mine = tmp_path / "mine"
    mine.write_text("old")
    os.close(files.open_emptied(mine))
    assert mine.read_text() == ""


def test_what_is_new_is_new(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files.write_new(path, ["one", "two"])
    assert path.read_text() == "onetwo"
    with pytest.raises(FileExistsError):
        files.write_new(path, ["three"])
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        files.write_new(tmp_path / "link", ["three"])
    assert sorted(found.name for found in tmp_path.iterdir()) == ["a", "link"]
    assert path.read_text() == "onetwo"


def test_a_draft_that_breaks_is_taken_away(tmp_path: Path) -> None:
    def parts() -> list[str]:
        raise ZeroDivisionError

    (tmp_path / "a").write_text("good")
    with pytest.raises(ZeroDivisionError):
        files.replace(tmp_path / "a", (part for part in [1] for _ in parts()))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "good")]


def test_names_of_drafts_cannot_be_guessed(tmp_path: Path) -> None:
    names = {files.draft_beside(tmp_path / "inventory.yaml").name for _ in range(50)}
    assert len(names) == 50


def test_a_circle_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match="is a link to itself"):
        files.destination(tmp_path / "a")


# ---------------------------------------------------------------- no other way to write

# Agents write on nodes (`places`, `disk`), and SQLite its own file, whose place was looked at.
ELSEWHERE = ("remote.agent", "guard", "runtime.files")
EXCUSED = {
    ("history.database", "sqlite3.connect"): "after files.open_regular",
    ("cli.output", "os.open"): "/dev/null in the place of a stdout that is gone",
    ("fabric.node_files", "sftp.open"): "a file of the node, by its own sshd",
    ("inventory.site.names", "os.open"): "to read, without waiting for a pipe",
    ("reports.bundle.archive", "tarfile.open"): "into a file that files.open_exclusively opened",
    ("survey.open_files", "os.open"): "/dev/null, to see whether a file can be opened",
}
WRITES = frozenset(
    "os.open os.mkfifo os.mknod os.truncate shutil.copy shutil.copy2 shutil.copyfile shutil.move "
    "tempfile.mkstemp tempfile.mkdtemp tempfile.NamedTemporaryFile tempfile.TemporaryFile "
    "sqlite3.connect gzip.open io.open codecs.open".split()
)
METHODS = frozenset({"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to"})


def opens_for_writing(name: str, call: ast.Call) -> bool:
    """Return whether this is open(PATH, "w") or PATH.open("w"), and not of a descriptor of ours."""
    last = name.rpartition(".")[2]
    if last not in ("open", "fdopen"):
        return False
    positional = call.args[1:] if name in ("open", "os.fdopen") else call.args
    modes = [argument for argument in positional if isinstance(argument, ast.Constant)]
    modes += [word.value for word in call.keywords if isinstance(word.value, ast.Constant)]
    writes = any(set("wax+") & set(str(mode.value)) for mode in modes[:1])
    if not writes:
        return False
    opened = call.args[0] if call.args else None
    if isinstance(opened, ast.Name) and opened.id == "descriptor":
        return False
    is_ours = isinstance(opened, ast.Call) and ast.unparse(opened.func).startswith("files.open_")
    return not is_ours


def test_no_module_opens_a_file_for_writing_by_itself() -> None:
    found = []
    for module in MODULES:
        if module.startswith(ELSEWHERE):
            continue
        for name, call in calls(module):
            if (module, name) in EXCUSED:
                continue
            last = name.rpartition(".")[2]
            if name in WRITES or last in METHODS or opens_for_writing(name, call):
                found.append(f"{place(module, call.lineno)}: {name}")
    none(found, "files are opened for writing by runtime/files.py:")
