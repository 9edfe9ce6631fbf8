"""Slurm's files as the agent sends them: where they lie, what they include, and what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote.agent import slurm
from clusterprep.remote.agent.readers import NoAnswer


def written(root: Path, **texts: str) -> dict[str, Any]:
    """What is sent of these files of /etc/slurm; `_` in a name stands for the point."""
    folder = root / "etc/slurm"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)
    answer = slurm.read_slurm_files(str(root))
    assert answer is not None
    return answer


def test_a_machine_without_slurm(tmp_path: Path) -> None:
    assert slurm.read_slurm_files(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("a=1\r\n\n  b=2  \n", ["a=1", "b=2"], id="blank-lines"),
        pytest.param("# a=1\nb=2 # more\n", ["b=2"], id="comments"),
        pytest.param("a=\\#1 #2\n", ["a=\\#1"], id="no-comment"),
        pytest.param("a=1 \\\n b=2\\\n", ["a=1  b=2"], id="continued"),
        pytest.param("a=1 # \\\nb=2\n", ["a=1", "b=2"], id="a-comment-is-not-continued"),
    ],
)
def test_lines_as_slurm_reads_them(text: str, lines: list[str]) -> None:
    assert slurm.logical_lines(text) == lines


def test_files_are_included_and_other_settings_stay_on_the_node(tmp_path: Path) -> None:
    answer = written(
        tmp_path,
        slurm_conf="ClusterName=a\nInclude nodes.conf\nAccountingStoragePass=x\n",
        nodes_conf="nodename=n1 CPUs=2\n",
        gres_conf="Name=gpu File=/dev/nvidia0\n",
    )
    assert answer["files"]["slurm.conf"]["lines"] == ["ClusterName=a", "nodename=n1 CPUs=2"]
    assert answer["files"]["gres.conf"]["lines"] == ["Name=gpu File=/dev/nvidia0"]
    assert "cgroup.conf" not in answer["files"]


def test_the_sum_is_of_the_whole_file_without_its_comments(tmp_path: Path) -> None:
    texts = ("MaxJobCount=1\n", "# by me\nMaxJobCount=1\n", "MaxJobCount=2\n")
    sums = [written(tmp_path, slurm_conf=text)["files"]["slurm.conf"]["sum"] for text in texts]
    assert sums[0] == sums[1] != sums[2]


@pytest.mark.parametrize(
    ("text", "reason"), [("Include gone\n", "garbled"), ("Include slurm.conf\n", "truncated")]
)
def test_what_slurm_could_not_include_is_no_answer(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(NoAnswer) as no:
        written(tmp_path, slurm_conf=text)
    assert no.value.reason == reason


def test_scripts_are_looked_for_and_patterns_are_not(tmp_path: Path) -> None:
    (tmp_path / "prolog.sh").write_text("")
    (tmp_path / "prolog.sh").chmod(0o640)
    conf = "Prolog=/prolog.sh\nEpilog=/gone\nTaskProlog=mine.sh\nTaskEpilog=/etc/e.d/*\n"
    assert written(tmp_path, slurm_conf=conf)["scripts"] == {"/prolog.sh": 0o640, "/gone": None}


def test_files_that_slurmctld_sent_go_before_others(tmp_path: Path) -> None:
    sent = tmp_path / "run/slurm/conf"
    sent.mkdir(parents=True)
    (sent / "slurm.conf").write_text("ClusterName=sent\n")
    assert written(tmp_path, slurm_conf="ClusterName=old\n")["folder"] == str(sent)


@pytest.mark.parametrize(
    ("line", "adopts"),
    [("account required pam_slurm_adopt.so\n", True), ("# pam_slurm_adopt\n", False)],
)
def test_sshd_may_ask_slurm(tmp_path: Path, line: str, adopts: bool) -> None:
    (tmp_path / "etc/pam.d").mkdir(parents=True)
    (tmp_path / "etc/pam.d/sshd").write_text(line)
    assert written(tmp_path, slurm_conf="")["pam"] is adopts
