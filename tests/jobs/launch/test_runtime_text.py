"""A launch in a runtime: what the agent is told, and printed lines that do the same when pasted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterprep.errors import InputError
from clusterprep.jobs.launch.command import program_of
from clusterprep.jobs.launch.plan import LaunchPlan, LaunchRequest, plan_launch
from clusterprep.jobs.launch.text import text_of
from clusterprep.model import Node, Runtime

ENV = {"NCCL_DEBUG": "it's $HOME", "NCCL_NET": "Socket"}


def plan(*runtimes: Runtime | None, direct: bool = True, **more: Any) -> LaunchPlan:
    nodes = [
        Node(f"n{number}", f"10.0.0.{number}", number - 1, python="python3", runtime=runtime)
        for number, runtime in enumerate(runtimes, 1)
    ]
    program = program_of(["python3", "-c", PROGRAM])
    request = LaunchRequest(program, direct=direct, **more)
    env = {node.name: ENV for node in nodes}
    return plan_launch(nodes, env, {}, ("10.0.0.1", 29500), request)


PROGRAM = "import os, sys; print(sys.prefix, os.environ['NCCL_DEBUG'], os.environ['NCCL_NET'])"


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    venv = tmp_path / "a venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    activate = tmp_path / "activate"
    activate.write_text("export NCCL_NET=IB\n")
    return Runtime(activate=str(activate), venv=str(venv))


def test_the_agent_is_told_of_the_runtime(runtime: Runtime) -> None:
    made = plan(runtime, None)
    first, second = (made.agent_request(share) for share in made.shares)
    assert first["runtime"] == {"activate": runtime.activate, "venv": runtime.venv}
    assert "runtime" not in second


def test_a_printed_line_enters_the_runtime(runtime: Runtime) -> None:
    text = text_of(plan(runtime), "torchrun", "c")
    out = subprocess.check_output(["bash", "-c", text], text=True)
    assert out == f"{runtime.venv} it's $HOME Socket\n"


def test_a_node_without_a_runtime_is_printed_as_before() -> None:
    assert "clusterprep" not in text_of(plan(None), "torchrun", "c")
    assert "SETUP" not in text_of(plan(None, direct=False), "sbatch", "c")


# What Slurm's commands would do on one node, and torchrun.
SLURM = """
scontrol() { echo n1; }
srun() { shift; "$@"; }
SLURM_JOB_NODELIST=n1; export SLURM_NODEID=0 SLURMD_NODENAME=n1
"""


def test_a_printed_script_for_slurm_enters_the_runtime(runtime: Runtime, tmp_path: Path) -> None:
    library = tmp_path / "library" / "torch" / "distributed"
    library.mkdir(parents=True)
    (library.parent / "__init__.py").touch()
    (library / "__init__.py").touch()
    (library / "run.py").write_text(f"{PROGRAM}; print(sys.argv[-2:], os.environ['NODE_RANK'])\n")
    text = text_of(plan(runtime, direct=False), "sbatch", "c")
    out = subprocess.check_output(
        ["bash", "-c", SLURM + text],
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "library")},
    )
    assert out.splitlines() == [f"{runtime.venv} it's $HOME Socket", f"{['-c', PROGRAM]} 0"]


def test_one_script_cannot_start_different_runtimes(runtime: Runtime) -> None:
    with pytest.raises(InputError, match="runtime: differs"):
        text_of(plan(runtime, None, direct=False), "sbatch", "c")
