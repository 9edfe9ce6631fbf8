"""Commands are found and run, whatever PATH the session was given; files are read, all or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.remote.agent.look import answer
from clusterprep.remote.agent.readers import MAX_FILES, NoAnswer, run


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
    assert run(["sh"])["out"] == "own\n"


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
