"""A target refuses what it cannot hold, and nothing else; readers get the exact value."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterprep.changes.resources.env import env_file
from clusterprep.model import EnvValue
from clusterprep.nccl.variables.dialects import (
    DOCKER_MOST,
    KERNEL_MOST,
    NCCL_MOST,
    PAM_MOST,
    PROLOG_MOST,
    SHELLS_OWN,
    refusal,
)
from clusterprep.nccl.variables.variables import registry
from tests.conftest import LUCK
from tests.support import readers

NAME = "NCCL_X"
TEXT = st.text(st.characters(blacklist_categories=["Cc", "Cs"]), max_size=12)


def long(target: str, size: int, name: str = NAME) -> str | None:
    return refusal(target, name, "x" * size)


# ---------------------------------------------------------------- too long


@pytest.mark.parametrize(
    ("target", "most", "name"),
    [
        pytest.param("nccl.conf", NCCL_MOST, NAME, id="nccl"),
        pytest.param("slurm-task-prolog", PROLOG_MOST - len(f"export {NAME}="), NAME, id="slurm"),
        pytest.param("env-file", DOCKER_MOST - len(f"{NAME}="), NAME, id="docker"),
        pytest.param("ssh", PAM_MOST - len(f"{NAME}="), NAME, id="pam"),
        pytest.param("systemd", KERNEL_MOST - len(f"{NAME}="), NAME, id="unit"),
        pytest.param("container", KERNEL_MOST - len(f"{NAME}="), NAME, id="container"),
        pytest.param("profile.d", KERNEL_MOST - len(f"{NAME}="), NAME, id="kernel"),
        pytest.param("profile.d", KERNEL_MOST - len("LABEL="), "LABEL", id="kernel-other-name"),
    ],
)
def test_one_byte_too_many_is_refused(target: str, most: int, name: str) -> None:
    assert long(target, most, name) is None
    why = long(target, most + 1, name)
    assert why is not None
    assert why.endswith(f"shorten it, or take {target} out of env_targets")
    assert refusal(target, name, "ü" * (most // 2) + "xx") is not None, (
        "bytes are counted, not letters"
    )


def test_a_value_that_is_not_written_to_nccl_conf_may_be_long() -> None:
    assert long("nccl.conf", NCCL_MOST + 1, "LABEL") is None
    assert long("nccl.conf", NCCL_MOST + 1, "TORCH_NCCL_TRACE_BUFFER_SIZE") is None
    assert refusal("nccl.conf", "NCCL_" + "X" * NCCL_MOST, "") is not None


def test_the_kernel_starts_no_program_with_more(tmp_path: Path) -> None:
    for size, starts in ((KERNEL_MOST, True), (KERNEL_MOST + 1, False)):
        try:
            subprocess.run(["/bin/true"], env={"X": "x" * (size - len("X="))}, check=True)
        except OSError:
            assert not starts
        else:
            assert starts


# ---------------------------------------------------------------- names


def test_no_name_that_nccl_or_torch_reads_is_one_of_the_shells() -> None:
    assert not SHELLS_OWN & set(registry())
    assert refusal("profile.d", "UID", "0") == (
        "shells keep 'UID' for themselves, and do not take it from profile.d; leave it out, "
        "or take profile.d out of env_targets"
    )
    assert refusal("nccl.conf", "UID", "0") is None
    assert refusal("slurm-task-prolog", "SLURM_PROLOG_CPU_MASK", "0x1") is not None


@pytest.mark.machine
@pytest.mark.parametrize(
    "name", sorted(name for name in SHELLS_OWN if not re.fullmatch("PS[0-4]", name))
)
def test_a_name_that_shells_keep_is_not_taken_from_a_file(name: str, tmp_path: Path) -> None:
    """By one of them at least.

    It ends, says that it may not be set, or gives another value to its children.
    """
    file = tmp_path / "file"
    file.write_text(f"export {name}='7 7'\n")
    shells = [shell for shell in ("bash", "dash", "zsh") if shutil.which(shell)]
    if "zsh" not in shells and not name.isupper():
        pytest.skip("needs zsh")
    assert any(
        readers.sourced(readers.here, shell, str(file)).get(name) != "7 7" for shell in shells
    )


def test_a_prompt_is_run(tmp_path: Path) -> None:
    file, made = tmp_path / "file", tmp_path / "made"
    file.write_text(f"export PS4='$(touch {made})'\n")
    readers.sourced(readers.here, "bash", str(file), "set -x;")
    assert made.exists()
    assert refusal("profile.d", "PS4", "+ ") is not None


# ---------------------------------------------------------------- env-file

HELD = [
    "",
    "eth0",
    "=eth0",
    "^lo,docker",
    "mlx5_0:1,mlx5_1:1",
    "%h.%p",
    "a#b",
    "#a",
    "a=b=c",
    "*",
    "[a-z]?",
    "{a,b}",
    "!x",
    "-n",
    "a~b",
    "größer",
    "机器",
    "ā",
    "\u00a0",
    "\u3000x",
    "/tmp/~x",
    "+1",
    "@x",
    "0x10",
]
REFUSED = [
    " ",
    "a b",
    " a",
    "a ",
    "'",
    '"a"',
    "it's",
    "\\",
    "a\\",
    "a\\nb",
    "$HOME",
    "$(id)",
    "`id`",
    ";id",
    "a;b",
    "a&b",
    "a|b",
    "a<b",
    "a>/dev/null",
    "(a)",
    "~",
    "~/x",
    "a:~/x",
    "\ufdd0",
    "\ufffe",
    "a\U0001ffffb",
]


def env_readers(folder: Path) -> dict[str, Callable[[Path], dict[str, str]]]:
    """Every reader of an env-file that this machine has."""
    shells = [shell for shell in ("bash", "dash") if shutil.which(shell)]
    found: dict[str, Callable[[Path], dict[str, str]]] = {
        shell: lambda path, shell=shell: readers.sourced(readers.here, shell, str(path), "set -a;")  # type: ignore[misc]
        for shell in shells
    }
    if Path(readers.GENERATOR).exists():
        found["systemd"] = lambda path: readers.systemd(
            readers.here, str(path), str(folder / "xdg")
        )
    if readers.HAS_DOCKER:
        found["docker"] = lambda path: readers.docker(path, folder)
    return found


def written(path: Path, values: dict[str, str]) -> Path:
    path.write_bytes(
        env_file({n: EnvValue(n, value, ("n1",), "why") for n, value in values.items()}, None)
    )
    return path


def misread(values: dict[str, str], folder: Path) -> dict[str, dict[str, str | None]]:
    """By reader the values that it got otherwise."""
    path = written(folder / "nccl.env", values)
    wrong: dict[str, dict[str, str | None]] = {}
    for reader, read in env_readers(folder).items():
        found = read(path)
        # environment.d refuses what is set to nothing, which EnvironmentFile= takes.
        wanted = {n: value for n, value in values.items() if value or reader != "systemd"}
        wrong[reader] = {n: found.get(n) for n, value in wanted.items() if found.get(n) != value}
    return {reader: values for reader, values in wrong.items() if values}


def test_what_is_held_all_readers_get(tmp_path: Path) -> None:
    assert [value for value in HELD if refusal("env-file", NAME, value)] == []
    assert misread({f"V{number}": value for number, value in enumerate(HELD)}, tmp_path) == {}


@settings(
    deadline=None,
    max_examples=15,
    suppress_health_check=[*LUCK, HealthCheck.function_scoped_fixture],
)
@given(st.lists(TEXT, min_size=20, max_size=60))
def test_what_is_not_refused_all_readers_get(tmp_path: Path, texts: list[str]) -> None:
    values = {
        f"V{number}": text
        for number, text in enumerate(texts)
        if refusal("env-file", "V", text) is None
    }
    assert misread(values, tmp_path) == {}


@pytest.mark.parametrize(
    ("value", "sign"),
    [("a b", "a blank"), ("'", "a quote"), ('"', "a quote"), ("a\\b", "a backslash"), ("a;b", ";")],
)
def test_the_sign_that_is_not_read_is_named(value: str, sign: str) -> None:
    assert f"do not all read {sign} (character " in str(refusal("env-file", NAME, value))


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        (0xFDCF, False),
        (0xFDD0, True),
        (0xFDEF, True),
        (0xFDF0, False),
        (0xFFFD, False),
        (0xFFFE, True),
        (0x1FFFF, True),
    ],
)
def test_each_code_point_that_is_no_character_is_refused(code: int, refused: bool) -> None:
    assert (
        f"U+{code:04X} (character 2)" in str(refusal("env-file", NAME, "a" + chr(code)))
    ) is refused


@pytest.mark.parametrize("value", REFUSED)
def test_what_is_refused_some_reader_would_get_otherwise(value: str, tmp_path: Path) -> None:
    why = refusal("env-file", NAME, value)
    assert why is not None
    assert why.endswith(", or take env-file out of env_targets")
    needed = "systemd" if "systemd takes" in why else "bash"
    if needed not in env_readers(tmp_path):
        pytest.skip(f"needs {needed}")
    assert misread({"BEFORE": "1", "V": value, "AFTER": "1"}, tmp_path) != {}


def test_docker_reads_the_longest_line_and_no_longer_one(tmp_path: Path) -> None:
    if not readers.HAS_DOCKER:
        pytest.skip("needs docker's client")
    value = "x" * (DOCKER_MOST - len("V="))
    assert misread({"V": value}, tmp_path) == {}
    assert "docker" in misread({"V": value + "xx"}, tmp_path)


@pytest.mark.parametrize("target", ["profile.d", "nccl.conf", "slurm-task-prolog"])
@pytest.mark.parametrize("value", REFUSED)
def test_other_targets_hold_all_that(target: str, value: str) -> None:
    assert refusal(target, NAME, value) is None


@pytest.mark.parametrize(
    "name",
    [
        *(
            "_",
            "BASHOPTS",
            "BASHPID",
            "BASH_VERSINFO",
            "DIRSTACK",
            "EGID",
            "EPOCHREALTIME",
            "EPOCHSECONDS",
            "EUID",
        ),
        *(
            "FUNCNAME",
            "GID",
            "GROUPS",
            "HISTCMD",
            "LINENO",
            "OPTIND",
            "PPID",
            "PS0",
            "PS1",
            "PS2",
            "PS3",
            "PS4",
        ),
        *(
            "RANDOM",
            "SECONDS",
            "SHELLOPTS",
            "SHLVL",
            "SRANDOM",
            "UID",
            "USERNAME",
            "argv",
            "path",
            "pipestatus",
        ),
        "status",
    ],
)
def test_a_name_that_a_shell_keeps_for_itself_is_refused(name: str) -> None:
    assert "shells keep" in str(refusal("profile.d", name, "1"))


# ---------------------------------------------------------------- ssh, systemd, container


@pytest.mark.parametrize("value", [value for value in HELD if "#" not in value])
def test_the_file_of_pam_holds_what_an_env_file_holds(value: str) -> None:
    assert refusal("ssh", NAME, value) is None


@pytest.mark.parametrize("value", [*REFUSED, "a#b"])
def test_the_file_of_pam_refuses_what_its_readers_take_otherwise(value: str) -> None:
    why = refusal("ssh", NAME, value)
    assert why is not None
    assert why.endswith("or take ssh out of env_targets")


@pytest.mark.parametrize(
    ("target", "name", "value", "words"),
    [
        ("ssh", NAME, "a b#", "PAM, systemd and shells do not all read a blank (character 2)"),
        ("ssh", NAME, "a#b c", "PAM, systemd and shells do not all read # (character 2)"),
        ("ssh", "USER", "x", "every login has a 'USER' of its own"),
        ("ssh", "UID", "0", "shells keep 'UID' for themselves"),
        ("systemd", NAME, "a\ufffe", "systemd takes U+FFFE (character 2) for broken UTF-8"),
        ("container", NAME, "a${HOME}", "enroot takes what begins with ${ (character 2)"),
        ("container", NAME, "'a'", "enroot drops the quotes"),
        ("container", NAME, "\"a' ", "enroot drops the quotes"),
        ("container", "ENROOT_X", "1", "enroot keeps 'ENROOT_X' for itself"),
    ],
)
def test_each_has_a_dialect_of_its_own(target: str, name: str, value: str, words: str) -> None:
    assert words in str(refusal(target, name, value))


@pytest.mark.parametrize(
    "value", ["a b", "50%", "$HOME", "\\", 'say "hi"', "it's", "a#b", ";&|<>", ""]
)
def test_units_and_containers_hold_what_can_be_escaped(value: str) -> None:
    assert refusal("systemd", NAME, value) is None
    assert refusal("container", NAME, value) is None
