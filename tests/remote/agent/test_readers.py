"""Commands are found and run, whatever PATH the session was given; files are read, all or none."""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote.agent import readers
from clusterprep.remote.agent.look import answer
from clusterprep.remote.agent.readers import FOLDERS, MAX_FILES, NoAnswer, run, search_path


@pytest.mark.parametrize("path", ["", "/nowhere", ":/nowhere:"])
def test_system_tools_are_found_without_the_session_knowing_where(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path)
    assert run(["sh", "-c", "echo found"]) == {"code": 0, "out": "found\n", "err": ""}


def test_what_the_session_puts_first_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sh").write_text("#!/bin/sh\necho own\n")
    (tmp_path / "sh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    ours = "own\n" if os.geteuid() != 0 else "system's\n"
    assert run(["sh", "-c", 'echo "system\'s"'])["out"] == ours


@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has users whose folders to distrust")
def test_root_runs_no_tool_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sudoers has no `secure_path`, PATH of root is the login user's."""
    of_root, of_user, of_all, of_group = (tmp_path / name for name in ("root", "user", "all", "gr"))
    linked, below = tmp_path / "linked", of_user / "below"
    for folder in (of_root, of_user, of_all, of_group, below):
        folder.mkdir()
        (folder / "nft").write_text(f"#!/bin/sh\necho nft of {folder.name}; id -u\n")
        (folder / "nft").chmod(0o755)
    of_all.chmod(0o1777)
    of_group.chmod(0o775)
    os.chown(of_group, 0, 4711)
    os.chown(of_user, 4711, 4711)
    linked.symlink_to(of_user)
    distrusted = [of_user, of_all, of_group, below, linked, linked / "below", Path("bin"), Path()]
    monkeypatch.chdir(of_user)
    monkeypatch.setenv("PATH", ":".join(map(str, distrusted)))
    assert search_path() == list(FOLDERS)
    with pytest.raises(NoAnswer, match="missing_tool"):
        run(["nft-of-nowhere"])
    monkeypatch.setenv("PATH", ":".join(map(str, [*distrusted, of_root])))
    assert search_path() == [*FOLDERS, str(of_root)]
    (of_root / "tool-of-root").write_text("#!/bin/sh\necho $PATH\n")
    (of_root / "tool-of-root").chmod(0o755)
    assert run(["tool-of-root"])["out"] == ":".join([*FOLDERS, str(of_root)]) + "\n"


def test_the_folder_we_are_in_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ":/nowhere")
    with pytest.raises(NoAnswer, match="missing_tool"):
        run(["tool"])


def test_a_tool_finds_the_tools_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nls /dev/null\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    assert run([str(script)])["out"] == "/dev/null\n"


@pytest.fixture(params=["spawned", "forked"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to start a tool; before Python 3.8 there is one."""
    if request.param == "forked":
        monkeypatch.setattr(readers, "SPAWN", None)
    elif readers.SPAWN is None:
        pytest.skip("this Python cannot spawn")


@pytest.mark.usefixtures("way")
def test_a_tool_has_its_streams_its_code_and_the_c_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    result = run(["sh", "-c", "cat; echo $LC_ALL $MORE; echo wrong >&2; exit 7"])
    assert result == {"code": 7, "out": "C\n", "err": "wrong\n"}
    assert run(["sh", "-c", "kill -9 $$"])["code"] == -9
    source, sink = os.pipe()
    os.write(sink, b"given ")
    os.close(sink)
    env = {"MORE": "more", "PATH": "/usr/bin:/bin"}
    assert run(["sh", "-c", "cat; echo $MORE"], env=env, stdin=source)["out"] == "given more\n"
    os.close(source)


@pytest.mark.usefixtures("way")
def test_a_tool_inherits_no_files(tmp_path: Path) -> None:
    path = tmp_path / "open"
    with path.open("w"):
        links = run(["sh", "-c", "ls -l /proc/$$/fd"])["out"]
    assert "/dev/null" in links
    assert str(path) not in links


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("#!/no/such/interpreter\n", "missing_tool", id="without-its-interpreter"),
        pytest.param("no program\n", "denied", id="of-no-format"),
    ],
)
def test_a_tool_that_cannot_be_started_says_why(tmp_path: Path, text: str, reason: str) -> None:
    tool = tmp_path / "tool"
    tool.write_text(text)
    tool.chmod(0o755)
    with pytest.raises(NoAnswer) as raised:
        run([str(tool)])
    assert raised.value.reason == reason


def test_more_files_than_a_pattern_may_match_are_no_answer(tmp_path: Path) -> None:
    for number in range(MAX_FILES):
        (tmp_path / f"{number:04}").touch()
    pattern = f"{tmp_path}/*"
    files = answer("files", [pattern])[1]
    assert len(files) == MAX_FILES
    (tmp_path / "one more").touch()
    refusal = ["no", "truncated", f"more than 4,096 files match {pattern}"]
    assert answer("files", [pattern]) == refusal
    assert answer("files", ["/proc/meminfo", pattern]) == refusal


# ---------------------------------------------------------------- the job's interpreter

NEWER_LIBRARY = """#!/bin/sh
echo "ERROR: ld.so: object '/nowhere.so' from LD_PRELOAD cannot be preloaded: ignored." >&2
echo "$0: /lib/libc.so.6: version \\`GLIBC_2.34' not found (required by $0)" >&2
echo "$0: /lib/libc.so.6: version \\`GLIBC_2.38' not found (required by $0)" >&2
exit 1
"""


def interpreter(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def refused(python: str, script: str = "print(1)") -> tuple[str, str]:
    with pytest.raises(NoAnswer) as caught:
        readers.read_job_python(python, None, script)
    return caught.value.reason, caught.value.why


def test_an_interpreter_for_a_newer_glibc_is_told_in_the_words_of_the_loader(
    tmp_path: Path,
) -> None:
    python = interpreter(tmp_path, NEWER_LIBRARY)
    words = f"{python}: /lib/libc.so.6: version `GLIBC_2.34' not found (required by {python})"
    assert refused(python) == ("no_start", words)


@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_interpreter_that_is_closed_to_the_user_of_the_job_does_not_start(
    tmp_path: Path,
) -> None:
    python = interpreter(tmp_path, "#!/bin/sh\n")
    tmp_path.chmod(0o700)
    with pytest.raises(NoAnswer) as caught:
        readers.read_job_python(python, "nobody", "print(1)")
    why = f"nobody runs the ranks, and {python}, or a folder on its way, is closed to nobody"
    assert (caught.value.reason, caught.value.why) == ("no_start", why)


def test_an_interpreter_without_its_own_modules_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    reason, why = refused(sys.executable)
    assert reason == "no_start"
    assert why.startswith("Fatal Python error: ")


def test_a_file_whose_loader_is_not_there_does_not_start(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "#!/nowhere/ld-musl-x86_64.so.1\n")
    assert refused(python) == ("no_start", f"the loader that {python} names is not on the node")


def test_an_interpreter_that_says_nothing_is_told_by_its_code(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "#!/bin/sh\nexit 7\n")
    assert refused(python) == ("no_start", "it ends with code 7")


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("raise KeyError('torch')", id="it-raises"),
        pytest.param("import os; os.kill(os.getpid(), 11)", id="a-library-crashes"),
    ],
)
def test_a_script_that_fails_is_no_interpreter_that_does_not_start(script: str) -> None:
    assert refused(sys.executable, script)[0] == "garbled"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param(0x80, {}, id="permanent"),
        pytest.param(0x40, {}, id="not-yet-looked-for-elsewhere"),
        pytest.param(0xC8, {"duplicate": True}, id="another-machine-has-it"),
    ],
)
def test_an_address_that_another_machine_has_is_marked(
    flags: int, expected: dict[str, bool]
) -> None:
    packed = socket.inet_pton(socket.AF_INET6, "fd00::7")
    message = struct.pack("=BBBBI", socket.AF_INET6, 64, flags, 0, 2)
    message += struct.pack("=HH", 20, readers.IFA_ADDRESS) + packed
    found: dict[int, Any] = {}
    readers._add_address(message, found)
    assert found == {2: [{"address": "fd00::7", "prefix": 64, "scope": 0, **expected}]}
