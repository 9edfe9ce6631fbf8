"""slurm.conf, gres.conf and scontrol's answers, and the same files as slurmd itself reads them."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clusterprep.facts.slurm import (
    Gres,
    NodeLine,
    SlurmFiles,
    SlurmState,
    core_of_numa,
    parse_files,
    parse_state,
)
from clusterprep.model import Absent
from clusterprep.remote.agent import slurm
from tests.support.fleet import learned


def parsed(root: Path, conf: str, gres: str = "", cgroup: str = "") -> SlurmFiles:
    """What the agent reads of these files, parsed."""
    folder = root / "etc/slurm"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("slurm", conf), ("gres", gres), ("cgroup", cgroup)):
        (folder / f"{name}.conf").write_text(text)
    files = parse_files(slurm.read_slurm_files(str(root)))
    assert isinstance(files, SlurmFiles)
    return files


def line_of(root: Path, conf: str, host: str = "n1") -> NodeLine:
    found = parsed(root, conf).node(host)
    assert found is not None
    return found[1]


# ---------------------------------------------------------------- slurm.conf


def test_defaults_hold_for_the_lines_behind_them(tmp_path: Path) -> None:
    conf = """\
        NodeName=n0 CPUs=1
        NodeName=DEFAULT Sockets=2 CoresPerSocket=8 ThreadsPerCore=2 RealMemory=1000
        NodeName=n[1-2]
        NodeName=DEFAULT RealMemory=2K Gres=gpu:a:2
        NodeName=n3 Sockets=1
    """
    assert line_of(tmp_path, conf, "n0").memory is None
    assert line_of(tmp_path, conf, "n2") == NodeLine("n[1-2]", "n[1-2]", None, 2, 8, 2, 1000)
    n3 = line_of(tmp_path, conf, "n3")
    assert (n3.sockets, n3.memory, n3.gres) == (1, 2048, (Gres("gpu", "a", 2),))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("CPUs=4 Boards=2 SocketsPerBoard=2", (4, 4), id="boards"),
        pytest.param("procs=4 sockets=1", (4, 1), id="old-name-small-letters"),
        pytest.param("CPUs = 4  Sockets = 1", (4, 1), id="blanks"),
        pytest.param('Feature="a CPUs=9" CPUs=4 Sockets=1', (4, 1), id="quotes"),
    ],
)
def test_a_line_of_a_node(tmp_path: Path, text: str, expected: tuple[int, int]) -> None:
    line = line_of(tmp_path, f"NodeName=n1 {text}\n")
    assert (line.cpus, line.sockets) == expected


@pytest.mark.parametrize(
    ("text", "gres"),
    [
        ("gpu", (Gres("gpu", "", 1),)),
        ("gpu:8", (Gres("gpu", "", 8),)),
        ("gpu:h100:8(S:0-1)", (Gres("gpu", "h100", 8),)),
        ("gpu:1g.5gb:7,gpu:a100:1", (Gres("gpu", "1g.5gb", 7), Gres("gpu", "a100", 1))),
        ("bandwidth:no_consume:4G", (Gres("bandwidth", "", 4 << 30),)),
        ("(null)", ()),
    ],
)
def test_generic_resources(tmp_path: Path, text: str, gres: tuple[Gres, ...]) -> None:
    assert line_of(tmp_path, f"NodeName=n1 Gres={text}\n").gres == gres


def test_a_host_is_found_by_its_own_name(tmp_path: Path) -> None:
    conf = "NodeName=a[01-02] NodeHostName=host[1-2] CPUs=3\nNodeName=b CPUs=4\n"
    files = parsed(tmp_path, conf)
    assert [
        files.node(host) and files.node(host)[0] for host in ("host2", "b.site.org", "a01")
    ] == [  # type: ignore[index]
        "a02",
        "b",
        None,
    ]


@pytest.mark.parametrize(
    ("conf", "shared"),
    [
        ("PartitionName=p Nodes=ALL\n", True),
        ("PartitionName=p Nodes=ALL OverSubscribe=EXCLUSIVE\n", False),
        ("PartitionName=DEFAULT OverSubscribe=EXCLUSIVE\nPartitionName=p Nodes=ALL\n", False),
        ("PartitionName=p OverSubscribe=EXCLUSIVE\nPartitionName=q OverSubscribe=NO\n", True),
        ("SelectType=select/linear\nPartitionName=p\n", False),
    ],
)
def test_whether_jobs_share_a_node(tmp_path: Path, conf: str, shared: bool) -> None:
    assert parsed(tmp_path, conf).shared is shared


@pytest.mark.parametrize(
    ("conf", "gres"),
    [
        ("NodeName=n[1- CPUs=2\n", ""),
        ("NodeName=n1 CPUs=two\n", ""),
        ("NodeName=a[1-60000]\nNodeName=b[1-60000]\n", ""),
        ("", "File=/dev/nvidia0\n"),
        ("", "Name=gpu Cores=a-b\n"),
        ("", "Name=gpu Cores=0-99999\n"),
        ("", f"Name=gpu Cores={'0-65000,' * 9}1\n"),
        ("", "Name=gpu File=/dev/nvidia[0-99999]\n" * 11),
    ],
)
def test_what_cannot_be_read_is_garbled(tmp_path: Path, conf: str, gres: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has another message
        parsed(tmp_path, conf, gres)


def test_no_files_are_no_slurm() -> None:
    assert learned("slurm.files", ["ok", None]).reason == "not_applicable"


# ---------------------------------------------------------------- gres.conf as slurmd reads it

_GRES = re.compile(r"Gres Name=(\S+) Type=(\S+) Count=(\d+) .*?File=(\S+)")


@pytest.mark.machine
@pytest.mark.skipif(shutil.which("slurmd", path="/usr/sbin:/sbin") is None, reason="no slurmd")
@pytest.mark.parametrize(
    "text",
    [
        "Name=gpu File=/dev/tty[1-2]\n",
        "name = gpu  file = /dev/tty1,/dev/tty2 count=2\n",
        'Name="gpu" \\\n  File="/dev/tty[1-2]" # two\n',
        "NodeName=HOST,x[1-2] Name=gpu File=/dev/tty1\nNodeName=HOST Name=gpu File=/dev/tty2\n",
        "NodeName=x1 Name=gpu File=/dev/tty9\nName=gpu File=/dev/tty[1-2] Cores=0\n",
        "Include more.conf\n",
    ],
    ids=["range", "list", "continued", "own-nodes", "other-nodes", "included"],
)
def test_devices_as_slurmd_reads_them(tmp_path: Path, text: str) -> None:
    """`slurmd -G` prints what it made of gres.conf."""
    host = platform.node().partition(".")[0]
    conf = (
        f"ClusterName=a\nSlurmctldHost={host}\nGresTypes=gpu\n"
        f"NodeName={host} Gres=gpu:2\nPartitionName=p Nodes=ALL\n"
    )
    folder = tmp_path / "etc/slurm"
    folder.mkdir(parents=True)
    (folder / "more.conf").write_text("Name=gpu File=/dev/tty[1-2]\n")
    files = parsed(tmp_path, conf, text.replace("HOST", host))
    said = subprocess.run(
        ["slurmd", "-f", folder / "slurm.conf", "-G"],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = _GRES.findall(said.stdout + said.stderr)
    assert rows, said
    read = [(line.name, len(line.files)) for line in files.gres_of(host)]
    assert read == [(name, int(count)) for name, _, count, _ in rows]


def test_lines_that_only_detect(tmp_path: Path) -> None:
    gres = "AutoDetect=off\nNodeName=n1 AutoDetect=nvml Name=gpu Type=a100\n"
    found = [(line.detect, line.name, line.type) for line in parsed(tmp_path, "", gres).gres]
    assert found == [("off", "", ""), ("nvml", "gpu", "a100")]


# ---------------------------------------------------------------- cores


@pytest.mark.parametrize(
    ("lists", "cores", "cpus", "expected"),
    [
        pytest.param(
            {0: "0-55,112-167", 1: "56-111,168-223"},
            112,
            224,
            {0: range(56), 1: range(56, 112)},
            id="two-sockets",
        ),
        pytest.param(
            {0: "0,2,4,6", 1: "1,3,5,7"}, 8, 8, {0: range(4), 1: range(4, 8)}, id="interleaved"
        ),
        pytest.param(
            {0: "4-7", 1: "0-3", 2: ""}, 8, 8, {0: range(4, 8), 1: range(4)}, id="in-other-order"
        ),
        pytest.param({0: "0-2"}, 2, 3, None, id="not-all-have-two-threads"),
        pytest.param({0: "0-3"}, 8, 8, None, id="not-all-nodes"),
    ],
)
def test_cores_as_slurm_numbers_them(
    lists: dict[int, str], cores: int, cpus: int, expected: dict[int, range] | None
) -> None:
    assert core_of_numa(lists, cores, cpus) == expected


# ---------------------------------------------------------------- state


def answer(out: str = "", err: str = "", code: int = 0) -> dict[str, Any]:
    return {"code": code, "out": out, "err": err}


# github.com/awslabs/awsome-distributed-ai/issues/195, a comment, as one line.
DRAINED = (
    "NodeName=yigou-dev-102-68 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUEfctv=8 CPUTot=8 "
    "CPULoad=0.99 AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:nvidia-rtx-3090:1 "
    "NodeAddr=yigou-dev-102-68 NodeHostName=yigou-dev-102-68 Version=24.05.0-0rc1 "
    "OS=Linux 5.10.0-153.12.0.92.oe2203sp2.x86_64 #1 SMP Wed Jun 28 23:04:48 CST 2023 "
    "RealMemory=1 AllocMem=0 FreeMem=340 Sockets=8 Boards=1 State=IDLE+DRAIN ThreadsPerCore=1 "
    "TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=compute100 "
    "Reason=gres/gpu count reported lower than configured (0 < 1) [slurm@2024-12-19T11:03:34]\n"
)


def test_state_and_reason() -> None:
    assert parse_state(answer(DRAINED)) == SlurmState(
        "yigou-dev-102-68",
        "IDLE+DRAIN",
        "gres/gpu count reported lower than configured (0 < 1)",
    )


def test_flags_are_no_states() -> None:
    assert SlurmState("n1", "DOWN*+CLOUD").states == {"DOWN", "CLOUD"}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (None, "not_applicable"),
        (answer("Node vm not found\n", code=1), "not_applicable"),
        (
            answer(err="slurm_load_node error: Unable to contact slurm controller\n", code=1),
            "slurmctld gives no answer",
        ),
    ],
)
def test_a_state_that_is_not_told(said: Any, reason: str) -> None:
    absent = parse_state(said)
    assert isinstance(absent, Absent)
    assert absent.reason == reason


@pytest.mark.parametrize("said", [answer(), answer("NodeName=n1\n"), answer("x", code=1)])
def test_another_answer_is_garbled(said: Any) -> None:
    assert learned("slurm.node_state", ["ok", said]).reason == "garbled"
