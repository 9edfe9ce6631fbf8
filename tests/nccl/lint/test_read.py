"""The same settings in every dialect, and text that is none."""

from __future__ import annotations

import random

import pytest

from clusterprep.nccl.lint import DIALECTS, Versions
from clusterprep.nccl.lint.read import dialect_of, read
from clusterprep.nccl.lint.rules import judge


def settings(text: str, dialect: str) -> list[tuple[str, str, int]]:
    return [(entry.name, entry.value, entry.line) for entry in read(text, dialect).entries]


@pytest.mark.parametrize(
    ("name", "text", "dialect"),
    [
        ("/etc/nccl.conf", "A=1\n", "nccl.conf"),
        ("/home/u/.nccl.conf", "export A=1\n", "nccl.conf"),
        ("job.conf", "A=1\n", "nccl.conf"),
        ("/etc/systemd/system/x.service.d/nccl.conf", "[Service]\nEnvironment=A=1\n", "unit"),
        ("/etc/profile.d/nccl.sh", "A=1\n", "shell"),
        ("/root/.bashrc", "A=1\n", "shell"),
        ("/root/.profile", "A=1\n", "shell"),
        ("nccl.env", "A=1\n", "env-file"),
        ("/etc/environment", "A=1\n", "environment"),
        ("/etc/environment", "export A=1\nB=2\n", "environment"),
        ("/etc/environment.d/60-nccl.conf", "A=1\n", "environment"),
        ("nccl.fish", "A=1\n", "shell"),
        ("<stdin>", "set -gx A 1\n", "shell"),
        ("<stdin>", "export A=1\n", "shell"),
        ("<stdin>", "A=1\n", "env-file"),
        ("run", "#!/bin/bash\nA=1\n", "shell"),
    ],
)
def test_the_dialect_is_known_by_name_and_content(name: str, text: str, dialect: str) -> None:
    assert dialect_of(name, text) == dialect


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("export NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO", 1)]),
        (
            "export NCCL_DEBUG='INFO' NCCL_IB_HCA=\"mlx5_0\"",
            [("NCCL_DEBUG", "INFO", 1), ("NCCL_IB_HCA", "mlx5_0", 1)],
        ),
        ("NCCL_DEBUG=INFO torchrun x.py NCCL_P2P=1", [("NCCL_DEBUG", "INFO", 1)]),
        ("export NCCL_DEBUG=INFO # don't", [("NCCL_DEBUG", "INFO", 1)]),
        ("# export NCCL_DEBUG=INFO", []),
        ("export A=x#y", [("A", "x#y", 1)]),
        ("if true; then export A=1; fi", [("A", "1", 1)]),
        ('[ -n "${SLURM_JOB_ID+set}" ] || export A=0,1', [("A", "0,1", 1)]),
        ("declare -x A=1", [("A", "1", 1)]),
        ("setenv NCCL_DEBUG INFO", [("NCCL_DEBUG", "INFO", 1)]),
        ("export NCCL_IB_HCA=^lo\\\n,mlx5_0", [("NCCL_IB_HCA", "^lo,mlx5_0", 1)]),
        ("export A=1\nunset A\nexport B=2", [("B", "2", 3)]),
        ("printf '%s\\n' 'export NCCL_DEBUG=WARN'", [("NCCL_DEBUG", "WARN", 1)]),
        ("echo export NCCL_DEBUG=WARN", [("NCCL_DEBUG", "WARN", 1)]),
        ("env NCCL_DEBUG=WARN python x.py", [("NCCL_DEBUG", "WARN", 1)]),
        ("echo NCCL_DEBUG=WARN", []),
        ("export A='unclosed", []),
    ],
)
def test_a_shell_script_is_read_as_a_shell_does(
    line: str, expected: list[tuple[str, str, int]]
) -> None:
    assert settings(line, "shell") == expected


@pytest.mark.parametrize("value", ["$X", "${X:-1}", "$(hostname)", "`hostname`", '"$X"'])
def test_what_only_the_shell_knows_is_not_guessed(value: str) -> None:
    assert [
        entry.known for entry in read(f"export NCCL_IB_DISABLE={value}\n", "shell").entries
    ] == [False]


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("A=1", [True]),
        ("export A=1", [False]),
        ("A=1\nexport A", [False]),
        ("set -a\nA=1", [False]),
        ("A=1 command", [False]),
        ("A=1 B=2", [True, True]),
    ],
)
def test_what_is_not_exported_is_known_as_such(text: str, bare: list[bool]) -> None:
    assert [entry.bare for entry in read(text, "shell").entries] == bare


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1\n#B=2\n\nC=x=y\n", [("A", "1", 1), ("C", "x=y", 4)]),
        ("A=1", [("A", "1", 1)]),
        (" A = 1", [("A", "1", 1)]),
        ("export A='1' # why", [("A", "1", 1)]),
        ("A 1\n; B=2\n// C=3", []),
        ("\ufeffA=1\r\nB=2\r\n", [("A", "1", 1), ("B", "2", 2)]),
        ("NCCL_SOCKET_IFNAME==eth0", [("NCCL_SOCKET_IFNAME", "=eth0", 1)]),
    ],
)
def test_nccl_conf_is_read_as_it_was_meant(text: str, expected: list[tuple[str, str, int]]) -> None:
    assert settings(text, "nccl.conf") == expected


def test_a_setting_whose_name_is_spoilt_is_lost() -> None:
    text = read("\ufeffA=1\n B=2\nexport C=3\nD =4\nE= 5\n", "nccl.conf")
    assert [entry.lost for entry in text.entries] == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1\n# B=2\n", [("A", "1", 1)]),
        ('A="1 2"\n', [("A", "1 2", 1)]),
        ("A=1\r\n", [("A", "1", 1)]),
        ("A\n", []),  # docker takes it from its own environment
        ("A=1   # why\n", [("A", "1", 1)]),
    ],
)
def test_an_environment_file(text: str, expected: list[tuple[str, str, int]]) -> None:
    assert settings(text, "env-file") == expected


def test_a_unit() -> None:
    text = (
        "[Service]\n"
        "ExecStart=/bin/x A=1\n"
        'Environment="NCCL_DEBUG=INFO" NCCL_DEBUG_FILE=/tmp/%%h\n'
        "#Environment=B=2\n"
    )
    assert settings(text, "unit") == [("NCCL_DEBUG", "INFO", 3), ("NCCL_DEBUG_FILE", "/tmp/%h", 3)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Environment=A=1\nEnvironment=\nEnvironment=B=2\n",
            [("B", "2", 4)],
        ),  # an empty one takes all back
        ("Environment=A=1 \\\n  B=2\n", [("A", "1", 2), ("B", "2", 2)]),
        ("[Manager]\nDefaultEnvironment=A=1\n", [("A", "1", 3)]),
        ("Environment=A=$HOME\n", [("A", "$HOME", 2)]),  # nothing is put in
    ],
)
def test_lines_of_a_unit(text: str, expected: list[tuple[str, str, int]]) -> None:
    assert settings("[Service]\n" + text, "unit") == expected


def test_what_systemd_puts_in_is_not_guessed() -> None:
    text = read("[Service]\nEnvironment=A=%h/x B=100%%\n", "unit")
    assert [entry.known for entry in text.entries] == [False, True]


def noise(chosen: random.Random) -> str:
    words = [
        "NCCL_DEBUG",
        "NCCL_SOCKET_IFNAME",
        "TORCH_NCCL_BLOCKING_WAIT",
        "export ",
        "=",
        "^",
        "lo",
        "\n",
        "\r\n",
        '"',
        "'",
        "#",
        "\\",
        "$(",
        ")",
        "`",
        ";",
        "[Service]\nEnvironment=",
        "4M",
        "true",
        "\ufeff",
        "\0",
        " ",
        "\u2028",
        "%",
        "|",
        "&&",
        "unset ",
        "setenv ",
        ",",
        ":",
        "printf ",
        "\t",
        "NCCL_IB_HCA=mlx5_",
    ]
    return "".join(chosen.choices(words, k=chosen.randint(0, 40)))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_text_is_refused_and_every_remark_points_into_it(dialect: str) -> None:
    chosen = random.Random(7)
    for _ in range(1500):
        text = read(noise(chosen), dialect)
        for remark in judge(text, Versions((2, 21, 5), (2, 6, 0))):
            assert 1 <= remark.line <= len(text.lines)
            assert remark.message
            assert remark.seen
