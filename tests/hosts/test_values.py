"""Awkward values on real hosts.

Every reader of every target gets exactly what the inventory says, and runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import readers, real_nccl
from tests.support.command import clusterprep
from tests.support.lab import Host, Lab
from tests.support.lab.faults.files import inside

pytestmark = pytest.mark.hosts

MADE = "/tmp/executed"
PROFILE, CONF = "/etc/profile.d/clusterprep-nccl.sh", "/etc/nccl.conf"
ENV_FILE, PROLOG = "/etc/clusterprep/nccl.env", "/etc/clusterprep/task_prolog.sh"

# NCCL takes every name that begins so, known or not; of the others nccl.conf gets none.
AWKWARD = {
    "NCCL_V_BLANKS": "a  b   c",
    "NCCL_V_LEADING": "   a",
    "NCCL_V_TRAILING": "a   ",
    "NCCL_V_BLANK": " ",
    "NCCL_V_SINGLE": "it's 'quoted'",
    "NCCL_V_QUOTED": "'a'",
    "NCCL_V_DOUBLE": '"say ""hi"""',
    "NCCL_V_DOLLAR": "$HOME ${PATH} $$ $1",
    "NCCL_V_RUN": f"$(touch {MADE})",
    "NCCL_V_TICKS": f"`touch {MADE}`",
    "NCCL_V_NEXT": f"x;touch {MADE};",
    "NCCL_V_AND": f"x && touch {MADE} || touch {MADE} & touch {MADE} | tee {MADE}",
    "NCCL_V_BREAK_OUT": f"'; touch {MADE}; '",
    "NCCL_V_BREAK_OUT_TOO": f"'\"'; touch {MADE}; \"'\"",
    "NCCL_V_BACKSLASH": r"C:\new\table \\ \0 \x41 \u0041",
    "NCCL_V_ENDS_SO": "a\\",
    "NCCL_V_PERCENT": "%s %d %% %n %1$s",
    "NCCL_V_HASH": "#a # b",
    "NCCL_V_EQUALS": "=a==b=",
    "NCCL_V_DASH": "-n",
    "NCCL_V_DASHES": "--version",
    "NCCL_V_HOME": "~/x:~root/y",
    "NCCL_V_GLOB": "/* [a-z]* ? {a,b} !x !! !(x)",
    "NCCL_V_ANGLES": f"<in >{MADE} 2>&1",
    "NCCL_V_WORDS": "größer — 机器 漢 😀 \u00a0",
    "NCCL_V_EXPORT": "export NCCL_V_OTHER=1",
    "NCCL_V_LONG": "x" * 1023,
    "NCCL_V_LONG_WORDS": "漢" * 341,
    "LAB_LONG": "ü " * 1350 + "'" * 20,
    "LAB_EMPTY": "",
}
BARE = {
    "NCCL_B_EXACT": "=eth0",
    "NCCL_B_LIST": "=mlx5_0:1,mlx5_1:1",
    "NCCL_B_NOT": "^lo,docker",
    "NCCL_B_PERCENT": "/var/log/nccl.%h.%p",
    "NCCL_B_HASH": "#a#b",
    "NCCL_B_EQUALS": "==b=",
    "NCCL_B_DASH": "-n",
    "NCCL_B_GLOB": "/*[a-z]*?{a,b}!x",
    "NCCL_B_HOME": "a~b",
    "NCCL_B_WORDS": "größer-机器-漢-😀",
    "NCCL_B_LONG": "x" * 2000,
}


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Iterator[Lab]:
    """Four hosts and two runs: awkward values for three targets, and those env-file can hold."""
    for targets, values in (
        (["profile.d", "nccl.conf", "slurm-task-prolog"], AWKWARD),
        (["env-file"], BARE),
    ):
        inventory = lab4.inventory(env=values, env_targets=targets)
        done = clusterprep(lab4, "apply", "--no-verify", "--only", "ssh.", inventory=inventory)
        assert done.code == 0, done.stderr
        assert done.outcomes() == {"done"}
    yield lab4
    for host in (*lab4.hosts, None):
        there = inside(host, MADE) if host is not None else Path(MADE)
        assert not there.exists(), f"a value was run on {host}"


def same(found: dict[str, str], wanted: dict[str, str]) -> None:
    assert {name: found.get(name) for name in wanted} == wanted


def of_nccl(values: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if name.startswith("NCCL_")}


def test_all_hosts_have_the_same_files(lab: Lab) -> None:
    for path in (PROFILE, CONF, ENV_FILE, PROLOG):
        assert len({inside(host, path).read_bytes() for host in lab.hosts}) == 1
    modes = {
        path: inside(lab.host("n1"), path).stat().st_mode & 0o777
        for path in (PROFILE, CONF, ENV_FILE, PROLOG)
    }
    assert modes == {PROFILE: 0o644, CONF: 0o644, ENV_FILE: 0o644, PROLOG: 0o755}


def test_login_shells_have_every_value(lab: Lab) -> None:
    for host in lab.hosts:
        same(readers.login_shell(host.run), AWKWARD)


@pytest.mark.parametrize("shell", ["bash", "dash", "sh", "zsh"])
def test_every_shell_reads_the_profile(lab: Lab, shell: str) -> None:
    for first in ("", "set -eu;", "setopt rcquotes;" if shell == "zsh" else "set -a;"):
        same(readers.sourced(needed(lab.host("n2"), shell), shell, PROFILE, first), AWKWARD)


def test_slurm_is_told_every_value(lab: Lab) -> None:
    same(readers.slurm(lab.host("n3").run, PROLOG), AWKWARD)


@pytest.mark.parametrize("release", real_nccl.RELEASES)
def test_nccl_has_every_value_from_its_own_file(lab: Lab, release: str) -> None:
    try:
        library = real_nccl.library(release)
    except LookupError as why:
        pytest.skip(str(why))
    found = readers.nccl(lab.host("n4").run, library, of_nccl(AWKWARD))
    same(found, of_nccl(AWKWARD))


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_a_shell_that_reads_the_env_file(lab: Lab, shell: str) -> None:
    for host in lab.hosts:
        same(readers.sourced(needed(host, shell), shell, ENV_FILE, "set -a;"), BARE)


def test_systemd_reads_the_env_file(lab: Lab) -> None:
    host = lab.host("n1")
    if host.run(["test", "-x", readers.GENERATOR], check=False).returncode:
        pytest.skip(f"needs {readers.GENERATOR} of systemd")
    same(readers.systemd(host.run, ENV_FILE, "/run/lab/xdg"), BARE)


def test_docker_reads_the_env_file(lab: Lab, tmp_path: Path) -> None:
    if not readers.HAS_DOCKER:
        pytest.skip("needs docker's client")
    same(readers.docker(inside(lab.host("n1"), ENV_FILE), tmp_path), BARE)


def needed(host: Host, tool: str) -> readers.Run:
    if host.run(["sh", "-c", f"command -v {tool}"], check=False).returncode:
        pytest.skip(f"needs {tool}")
    return host.run


@pytest.mark.parametrize("command", ["check", "plan", "apply"])
def test_what_a_target_cannot_hold_is_refused_before_any_host_is_asked(
    lab: Lab, command: str
) -> None:
    place = lab.folder / "refused.yaml"
    content = lab.inventory_content()
    lines = [f"{key}: {value!r}" for key, value in content.items()]
    lines += [
        "env_targets: [env-file, nccl.conf]",
        "env:",
        f"  NCCL_V_RUN: $(touch {MADE})",
        f"  NCCL_V: {'x' * 1024}",
    ]
    place.write_text("\n".join(lines) + "\n")
    refused = clusterprep(lab, command, inventory=place)
    assert refused.code == 2
    error = refused.report["error"]
    assert (error["file"], error["line"], error["key"]) == (
        str(place),
        len(lines) - 1,
        "env.NCCL_V_RUN",
    )
    assert "systemd, docker and shells do not all read $ (character 1)" in error["message"]
    assert "take env-file out of env_targets" in error["message"]
    assert f"{place}:{len(lines)}: env.NCCL_V: 1024 bytes" in refused.stderr
