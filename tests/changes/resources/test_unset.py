"""Lines that only set one variable become comments; what does more is refused."""

from __future__ import annotations

import subprocess

import pytest

from clusterprep.changes.resources.unset import RESOURCE, without_setting

BASHRC = "/root/.bashrc"


def changed(text: str, path: str = BASHRC, name: str = "NCCL_DEBUG") -> str:
    return without_setting(path, text.encode(), name).decode()


@pytest.mark.parametrize(
    "line",
    [
        "export NCCL_DEBUG=INFO",
        "NCCL_DEBUG=INFO",
        "  export NCCL_DEBUG='INFO WARN'  # for Bob",
        'export NCCL_DEBUG="INFO"',
        "export NCCL_DEBUG=",
        "export NCCL_DEBUG=$OTHER",
    ],
)
def test_the_line_becomes_a_comment_and_no_other_changes(line: str) -> None:
    text = f"alias a=b\n{line}\nexport NCCL_DEBUG_FILE=x\n# NCCL_DEBUG=INFO"
    assert changed(text) == (
        f"alias a=b\n: # switched off by clusterprep: {line}\n"
        "export NCCL_DEBUG_FILE=x\n# NCCL_DEBUG=INFO"
    )
    assert changed(changed(text)) == changed(text)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("/etc/environment", 'NCCL_DEBUG="INFO"'),
        ("/etc/nccl.conf", "NCCL_DEBUG=INFO"),
        ("/etc/systemd/system/train.service.d/nccl.conf", "Environment=NCCL_DEBUG=INFO"),
        ("/etc/clusterprep/site.env", "NCCL_DEBUG=INFO"),
    ],
)
def test_files_that_no_shell_reads_get_a_plain_comment(path: str, line: str) -> None:
    assert changed(f"{line}\r\n", path) == f"# switched off by clusterprep: {line}\r\n"


@pytest.mark.parametrize(
    "line",
    [
        "export NCCL_DEBUG=INFO OTHER=1",
        "NCCL_DEBUG=INFO python train.py",
        "[ -n x ] && export NCCL_DEBUG=INFO",
        "export NCCL_DEBUG=$(cat /x); rm /y",
        "export \\\nNCCL_DEBUG=INFO",
        "Environment=A=1 NCCL_DEBUG=INFO",
    ],
)
def test_a_line_that_does_more_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="sets NCCL_DEBUG and does more"):
        changed(f"{line}\n")


@pytest.mark.parametrize(
    "line", ["export MY_NCCL_DEBUG=1", "echo ${NCCL_DEBUG}", "echo $NCCL_DEBUG", "A=NCCL_DEBUG"]
)
def test_other_lines_are_none(line: str) -> None:
    assert changed(f"{line}\n") == f"{line}\n"


def test_a_shell_still_reads_the_file() -> None:
    text = 'if true; then\n    export NCCL_DEBUG=INFO\nfi\necho "<$NCCL_DEBUG>"\n'
    done = subprocess.run(["sh", "-c", changed(text)], capture_output=True, text=True, check=True)
    assert done.stdout == "<>\n"


def test_wrong_parameters() -> None:
    wrong = dict(RESOURCE.wrong({"path": "/proc/cmdline", "name": "A B"}))
    assert set(wrong) == {"path", "name"}
