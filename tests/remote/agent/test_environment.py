"""The look at launch paths, with real shells.

Who is asked, what travels home, and start-up files that misbehave.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterprep.remote.agent import environment, launched, shells

BASH = "/bin/bash"
Look = Callable[..., dict[str, Any]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def look(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Look]:
    """What the child of the read finds in a home of our own, as if this user lived there."""

    def ask(shell: str = BASH, given: dict[str, str] | None = None) -> dict[str, Any]:
        entry = SimpleNamespace(pw_name="alice", pw_dir=str(home), pw_shell=shell)
        found: dict[str, Any] = environment.look(entry, given, environment.Outside(entry))
        return found

    # Only shells that hang take all of both; others need so long where many processes wait for a
    # processor.
    monkeypatch.setattr(shells, "SHELL_LIMIT", 3.0)
    monkeypatch.setattr(shells, "TRACE_LIMIT", 3.0)
    return ask


def value(found: dict[str, Any], path: str = "login shell") -> Any:
    word, told = found["sessions"][path][:2]
    return told if word == "ok" else (word, *found["sessions"][path][1:])


def test_profile_and_bashrc_reach_different_paths(look: Look, home: Path) -> None:
    (home / ".profile").write_text("export NCCL_ALGO=Ring\n")
    (home / ".bashrc").write_text("export NCCL_DEBUG=INFO\n")
    found = look()
    assert value(found)["NCCL_ALGO"] == "Ring"
    assert value(found, "ssh command")["NCCL_DEBUG"] == "INFO"
    assert "NCCL_ALGO" not in value(found, "ssh command")
    assert [str(home / ".bashrc"), [[1, "export NCCL_DEBUG=INFO"]]] in found["files"]


def test_lines_behind_the_end_for_scripts_are_seen_as_a_terminal_sees_them(
    look: Look, home: Path
) -> None:
    (home / ".profile").write_text(". ~/.bashrc\n")
    (home / ".bashrc").write_text("case $- in *i*) ;; *) return;; esac\nexport NCCL_IB_DISABLE=1\n")
    found = look()
    assert value(found)["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_IB_DISABLE" not in value(found, "ssh command")


def test_only_what_matters_travels_home(look: Look, home: Path) -> None:
    lines = "export NCCL_DEBUG=INFO MY_TOKEN=hidden NCCL_API_KEY=hidden2 FOO=secretive\n"
    lines += "export OTHER=hidden3\n"
    (home / ".profile").write_text(lines)
    text = str(look())
    assert "NCCL_DEBUG" in text
    assert "hidden" not in text


@pytest.mark.parametrize(
    "junk",
    [
        "echo Welcome; echo NCCL_DEBUG=FAKE",
        "printf '\\0NCCL_DEBUG=FAKE\\0'",
        "head -c 300000 /dev/zero",
    ],
)
def test_junk_is_survived(look: Look, home: Path, junk: str) -> None:
    (home / ".profile").write_text(
        f"{junk}\nexport NCCL_ALGO=Ring\ntrap 'echo NCCL_DEBUG=FAKE' EXIT\n"
    )
    assert value(look())["NCCL_ALGO"] == "Ring"
    assert "NCCL_DEBUG" not in value(look())


@pytest.mark.parametrize(
    ("line", "word"), [("exit 3", "ends"), ("exec true", "ends"), ("sleep 777", "hangs")]
)
def test_what_ends_or_hangs_is_named_with_its_line(
    look: Look, home: Path, line: str, word: str
) -> None:
    profile = home / ".profile"
    profile.write_text(f"export NCCL_ALGO=Ring\n\n{line}\n")
    found = look()
    _, reason, why = value(found)
    assert reason == ("hung" if word == "hangs" else "garbled")
    assert word in why
    assert why.endswith(f": {profile} line 3")
    assert value(found, "ssh command") is not None


def test_a_terminals_shell_that_ends_is_asked_again_without(look: Look, home: Path) -> None:
    (home / ".profile").write_text(". ~/.bashrc\n")
    (home / ".bashrc").write_text("case $- in *i*) exec true;; esac\nexport NCCL_DEBUG=INFO\n")
    assert value(look())["NCCL_DEBUG"] == "INFO"


def test_our_own_session_is_not_started_again(look: Look, home: Path) -> None:
    (home / ".bashrc").write_text("sleep 77\n")
    found = look(given={"NCCL_DEBUG": "INFO", "EDITOR": "vi"})
    assert value(found, "ssh command") == {"NCCL_DEBUG": "INFO"}


def test_what_a_start_up_file_sets_is_not_what_the_session_brought(look: Look, home: Path) -> None:
    (home / ".bash_profile").write_text("")
    (home / ".bashrc").write_text("case $- in *i*) return;; esac\nexport NCCL_DEBUG=INFO\n")
    found = look(given={"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"})
    assert value(found).get("NCCL_ALGO") == "Ring"
    assert "NCCL_DEBUG" not in value(found)


def test_a_file_that_is_taken_in_is_told_too(look: Look, home: Path) -> None:
    (home / ".profile").write_text('[ -f ~/nccl.sh ] && . "$HOME/nccl.sh"\n')
    (home / "nccl.sh").write_text("export NCCL_DEBUG=INFO\n")
    assert [str(home / "nccl.sh"), [[1, "export NCCL_DEBUG=INFO"]]] in look()["files"]


def test_no_shell_no_session(look: Look) -> None:
    assert look("/usr/sbin/nologin")["sessions"] == {}
    assert value(look("/bin/not-there"))[1] in ("missing_tool", "garbled")


def test_ncclconf_of_the_user_and_the_named_one(look: Look, home: Path) -> None:
    (home / ".nccl.conf").write_text("NCCL_DEBUG=INFO\r\nnonsense\n NCCL_ALGO=Ring\n")
    other = home / "other.conf"
    other.write_text("NCCL_PROTO=LL\n")
    (home / ".profile").write_text(f"export NCCL_CONF_FILE={other}\n")
    found = look()["conf"]
    assert found[str(home / ".nccl.conf")] == [[1, "NCCL_DEBUG=INFO\r"], [3, " NCCL_ALGO=Ring"]]
    assert found[str(other)] == [[1, "NCCL_PROTO=LL"]]


def test_folders_of_ld_library_path(look: Look, home: Path) -> None:
    (home / "libnccl.so.2").write_text("")
    (home / "libfoo.so").write_text("")
    (home / ".profile").write_text(f"export LD_LIBRARY_PATH={home}:/nowhere\n")
    assert look()["libraries"] == {str(home): ["libnccl.so.2"], "/nowhere": []}


# ---------------------------------------------------------------- the user


@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_the_profile_runs_as_the_user_and_never_as_root() -> None:
    found = environment.read_environment("nobody", True)
    assert found["user"] == "nobody"
    assert found["sessions"] == {}  # that user has no shell


def test_a_user_that_is_not_there_is_said() -> None:
    with pytest.raises(shells.NoAnswer) as raised:
        environment.read_environment("no-such-user", True)
    assert raised.value.reason == "missing"


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("NCCL_DEBUG", True),
        ("CUDA_VISIBLE_DEVICES", True),
        ("RANK", True),
        ("LD_PRELOAD", True),
        ("NSIGHT_CUDA_DEBUGGER", True),
        ("HOME", False),
        ("NCCL_SECRET_X", False),
        ("NVIDIA_API_KEY", False),
        ("MASTER_PASSWORD", False),
    ],
)
def test_names_that_matter(name: str, good: bool) -> None:
    assert launched.wanted(name) is good


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("export NCCL_DEBUG=WARN HF_TOKEN=canary", "export NCCL_DEBUG=WARN"),
        ('export HF_TOKEN="canary canary" NCCL_DEBUG=WARN', "export NCCL_DEBUG=WARN"),
        ('export NCCL_DEBUG=WARN HF_TOKEN="canary a=canary canary"', "export NCCL_DEBUG=WARN"),
        ("NCCL_DEBUG=WARN;HF_TOKEN=canary;NCCL_ALGO=Ring", ""),
        ("setenv HF_TOKEN canary ; setenv NCCL_DEBUG WARN", "setenv setenv NCCL_DEBUG WARN"),
        ("export NCCL_DEBUG=WARN FOO=bar", "export NCCL_DEBUG=WARN FOO=bar"),
        ("export HF_TOKEN=canary", None),
    ],
)
def test_a_line_is_told_without_what_may_be_secret(line: str, told: str | None) -> None:
    assert launched.line_without_secrets(line) == told


def test_a_unit_and_its_drop_in_are_read_with_their_lines(tmp_path: Path) -> None:
    env_file = tmp_path / "nccl.env"
    env_file.write_text("# x\nNCCL_ALGO=Ring\n")
    unit = tmp_path / "a.conf"
    unit.write_text(
        f"[Service]\nEnvironment=NCCL_DEBUG=INFO \\\n  FOO_TOKEN=x\nEnvironmentFile=-{env_file}\n"
    )
    rows = launched._unit_lines([str(unit)])
    # systemd.exec(5): what the files say wins over what stands in the unit, wherever they are
    # named.
    assert rows == [
        [str(unit), [[2, "Environment=NCCL_DEBUG=INFO"]]],
        [str(env_file), [[2, "NCCL_ALGO=Ring"]]],
    ]


def test_a_session_is_older_than_what_was_written_since(tmp_path: Path) -> None:
    path = tmp_path / "environment"
    assert not shells.changed_since(str(path), 0.0), "no file gave it anything"
    path.write_text("NCCL_DEBUG=WARN\n")
    written = path.stat().st_mtime
    assert shells.changed_since(str(path), written - 1)
    assert not shells.changed_since(str(path), written)
