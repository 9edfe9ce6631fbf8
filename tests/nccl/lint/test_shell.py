"""Scripts as people have them.

Who gets a setting, whether it surely holds, and what goes wrong without a word.
"""

from __future__ import annotations

import subprocess

import pytest

from clusterprep.nccl.lint import Versions
from clusterprep.nccl.lint.read import read
from clusterprep.nccl.lint.rules import judge

NOTHING = Versions()


def entries(text: str) -> list[tuple[str, str, str]]:
    """Return name, value (? where only the shell knows it), and scope of each setting.

    «bare» is for the shell alone.
    """
    return [
        (e.name, e.value if e.known else "?", "bare" if e.bare else e.scope)
        for e in read(text, "shell").entries
    ]


def said(text: str, versions: Versions = NOTHING, dialect: str = "shell") -> list[str]:
    return [
        f"{r.line} {r.severity} {r.check.removeprefix('env.')}"
        for r in judge(read(text, dialect), versions)
    ]


def words(text: str, dialect: str = "shell") -> str:
    return " | ".join(
        f"{r.message} {r.wanted} {r.remedy}" for r in judge(read(text, dialect), NOTHING)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("declare A=1", [("A", "1", "bare")]),  # not handed on without -x
        ("declare -gx A=1", [("A", "1", "file")]),
        ("readonly A=1", [("A", "1", "bare")]),
        ("f() { local A=1; }", [("A", "1", "bare")]),
        # once exported, always exported
        ("export A=1\nA=2", [("A", "1", "file"), ("A", "2", "file")]),
        ("export A=1\nexport -n A", []),
        ("export A=1\nif x; then unset A; fi", [("A", "1", "file")]),  # perhaps not
        ("set -o pipefail\nA=1", [("A", "1", "bare")]),
        ("set -euo pipefail\nA=1", [("A", "1", "bare")]),
        ("set -o allexport\nA=1\nset +o allexport\nB=1", [("A", "1", "file"), ("B", "1", "bare")]),
        (": ${A:=1}\nexport A", [("A", "1", "file")]),
        (': "${A=1}"', [("A", "1", "bare")]),
        ("export A=${A:-^docker0}", [("A", "^docker0", "file")]),
        ("export A=${B:-1}", [("A", "?", "file")]),
        ("export A=1\nexport A+=,2", [("A", "1", "file"), ("A", "?", "file")]),
        ("A=1 torchrun x.py", [("A", "1", "command")]),
        ("env A=1 torchrun x.py", [("A", "1", "command")]),
        ("exec env A=1 torchrun x.py", [("A", "1", "command")]),
        ("sudo A=1 torchrun x.py", [("A", "1", "command")]),
        ("docker run -e A=1 image\nunset A", [("A", "1", "command")]),
        ("mpirun -np 2 -x A=1 -x B ./x", [("A", "1", "command")]),
        ("docker run -e A=1 --env B=2 image", [("A", "1", "command"), ("B", "2", "command")]),
        (
            "if x; then\n  export A=1\nelse\n  export A=2\nfi\nexport B=3",
            [("A", "1", "branch"), ("A", "2", "branch"), ("B", "3", "file")],
        ),
        ("[ -d /x ] && export A=1\nexport B=2", [("A", "1", "branch"), ("B", "2", "file")]),
        ("case $x in a) export A=1;; esac\nexport B=2", [("A", "1", "branch"), ("B", "2", "file")]),
        (
            "for i in 1 2; do export A=$i; done; export B=2",
            [("A", "?", "branch"), ("B", "2", "file")],
        ),
        ("function f {\n export A=1\n}\nexport B=2", [("A", "1", "branch"), ("B", "2", "file")]),
        ("cat > /etc/nccl.conf <<EOF\nA=1\nEOF\nexport B=2", [("B", "2", "file")]),
        (
            "cat <<-'END' >> ~/.bashrc\n\texport A=1\n\tC=1\n\tEND\nexport B=2",
            [("A", "1", "file"), ("B", "2", "file")],
        ),
        ("x <<< word\nexport B=2", [("B", "2", "file")]),
        ("set -gx A 1", [("A", "1", "file")]),  # fish
        ("set -Ux A a b", [("A", "a b", "file")]),
        ("set A 1", []),
        ("set -x\nexport A=1", [("A", "1", "file")]),
        ("setenv A 1\nunsetenv A", []),  # csh
    ],
)
def test_which_processes_get_a_setting(text: str, expected: list[tuple[str, str, str]]) -> None:
    assert entries(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "export A=1\nA=2\nexport -n A",
        "set -o pipefail\nA=1\nexport B=2",
        "set -a\nA=1\nset +a\nB=2",
        "declare A=1\ndeclare -x B=2\nreadonly C=3",
        ": ${A:=1}\nexport A\nexport B=${B:-x}",
        "f() { export A=1; }\nexport B='2 3'",
        "cat > /dev/null <<EOF\nA=1\nEOF\nexport B=2",
        "export A=1 B=2\nunset A",
        "A=1 true\nexport B=\\\n2",
    ],
)
def test_a_shell_agrees(text: str) -> None:
    """What bash hands to a program, among the names of these scripts.

    A function that is not called sets nothing.
    """
    done = subprocess.run(
        ["bash", "-c", text + "\nenv"],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    real = {line.partition("=")[0]: line.partition("=")[2] for line in done.stdout.splitlines()}
    ours = {name: value for name, value, scope in entries(text) if scope == "file"}
    assert ours == {name: value for name, value in real.items() if name in ("A", "B", "C")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("export NCCL_DEBUG=INFO\r\nexport NCCL_SOCKET_IFNAME=eth0\r\n", ["1 warning no_effect"]),
        ("# nothing\r\n", ["1 warning no_effect"]),
        ("\ufeffexport NCCL_DEBUG=INFO\n", ["1 warning no_effect"]),
        ("\ufeff# nothing\nexport NCCL_DEBUG=INFO\n", ["1 warning no_effect"]),
        ("export NCCL_DEBUG = INFO", ["1 warning no_effect"]),
        ("export NCCL_DEBUG= INFO", ["1 warning no_effect"]),
        ("NCCL_DEBUG =INFO", ["1 warning no_effect"]),
        ("export NCCL_DEBUG= # nothing", []),
        ("export NCCL_SOCKET_IFNAME=eth0, eth1", ["1 warning no_effect"]),
        ("export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-^docker0}", ["1 warning no_effect"]),
        (": ${NCCL_IB_DISABLE:=1}\nexport NCCL_IB_DISABLE", ["1 warning nccl_debug"]),
    ],
)
def test_what_a_shell_makes_of_it(text: str, expected: list[str]) -> None:
    assert said(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        # one of two branches holds
        "if x; then export NCCL_DEBUG=INFO; else export NCCL_DEBUG=WARN; fi",
        (
            "if x; then export NCCL_NET=IB; else export NCCL_IB_DISABLE=0 NCCL_NET=Socket; fi\n"
            "export NCCL_IB_TC=106"
        ),
        # the second adds to the first
        "export NCCL_IB_HCA=mlx5_0\nexport NCCL_IB_HCA=$NCCL_IB_HCA,mlx5_3",
        "export NCCL_IB_HCA=mlx5_0\nNCCL_IB_HCA+=,mlx5_3",
        # as the remedy says: for one job
        "NCCL_ALGO=Ring torchrun x.py",
        "NCCL_DEBUG=INFO torchrun x.py\nNCCL_DEBUG=WARN torchrun y.py",
        "mpirun -x NCCL_P2P_DISABLE=1 ./x",
        "export NCCL_HOSTID=$(hostname)",  # no constant
        "cat > /etc/nccl.conf <<EOF\nNCCL_DEBUG=INFO\nEOF",
    ],
)
def test_what_is_right_is_left_alone(text: str) -> None:
    assert said(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('NCCL_SOCKET_IFNAME="eth0"\nexport NCCL_DEBUG=INFO', []),
        ("NCCL_IB_TIMEOUT=22 # long", []),  # digits are read, and no more
        ("NCCL_SOCKET_IFNAME=eth0 # the front end", ["1 warning no_effect"]),
        ("NCCL_TOPO_FILE=${HOME}/topo.xml", []),  # environment.d puts it in
        ("NCCL_SOCKET_IFNAME=^docker0", ["1 warning no_effect"]),
        ("NCCL_DEBUG:INFO", ["1 warning no_effect"]),
        ("\ufeffNCCL_DEBUG=INFO", ["1 warning no_effect"]),
    ],
)
def test_the_environment_of_a_machine(text: str, expected: list[str]) -> None:
    assert said(text, dialect="environment") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NCCL_DEBUG:INFO", ["1 warning no_effect"]),
        ("NCCL_ALGO Ring", ["1 warning no_effect"]),
        ("NCCL_DEBUG", []),  # docker hands on its own
        ("ENV NCCL_DEBUG=INFO", ["1 warning no_effect"]),
        ('$env:NCCL_DEBUG="INFO"', ["1 warning no_effect"]),
        ("NCCL_SOCKET_IFNAME=eth0\r\n", []),  # docker and systemd take it off
        ("\ufeffNCCL_DEBUG=INFO", ["1 warning no_effect"]),  # docker alone does
    ],
)
def test_lines_of_an_environment_file_that_set_nothing(text: str, expected: list[str]) -> None:
    assert said(text, dialect="env-file") == expected


def test_the_remedy_of_a_dollar_is_no_dollar() -> None:
    assert "write NCCL_HOSTID=value" in words("NCCL_HOSTID=${HOSTNAME}", "nccl.conf")
