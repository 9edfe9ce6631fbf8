"""Who starts which rank with which environment, and the same as text."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.errors import InputError
from clusterprep.jobs.launch.command import program_of
from clusterprep.jobs.launch.plan import LaunchPlan, LaunchRequest, parse_env_options, plan_launch
from clusterprep.jobs.launch.text import text_of
from clusterprep.model import Gpus, Node

WRITTEN = {
    "n1": {"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "mlx5_0"},
    "n2": {"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "mlx5_7"},
}
MEET = ("10.0.0.1", 29500)


def planned(
    *counts: int | None, words: str = "train.py --name it's", gpus: int = 0, **wanted: Any
) -> LaunchPlan:
    nodes = [
        Node(f"n{at}", f"10.0.0.{at}", at - 1, nproc_per_node=n) for at, n in enumerate(counts, 1)
    ]
    declared = [replace(node, gpus=Gpus(gpus)) for node in nodes] if gpus else nodes
    program = program_of(shlex.split(words.replace("'", "\\'")))
    seen = {node.name: gpus for node in nodes}
    return plan_launch(declared, WRITTEN, seen, MEET, LaunchRequest(program, **wanted))


def test_ranks_follow_the_inventory() -> None:
    plan = planned(2, 2)
    assert [(s.node.name, s.position, list(s.ranks)) for s in plan.shares] == [
        ("n1", 0, [0, 1]),
        ("n2", 1, [2, 3]),
    ]
    assert (plan.world_size, plan.nproc_per_node, plan.even, plan.rendezvous) == (
        4,
        2,
        True,
        "10.0.0.1:29500",
    )


def test_undeclared_nodes_start_one_rank_per_gpu_or_one() -> None:
    assert planned(None, None, gpus=8).world_size == 16
    assert planned(None, None).world_size == 2
    assert not planned(2, 4).even


def test_torchrun_is_static_and_told_everything() -> None:
    plan = planned(2, 2)
    (process,) = plan.agent_request(plan.shares[1])["processes"]
    words = process["argv"][3:9]
    assert words == [
        *("--rdzv-backend=static", "--nnodes=2", "--node-rank=1"),
        *("--nproc-per-node=2", "--master-addr=10.0.0.1", "--master-port=29500"),
    ]
    assert process["argv"][-3:] == ["train.py", "--name", "it's"]
    assert process["env"]["NODE_RANK"] == "1"  # torchrun sets GROUP_RANK alone
    assert "RANK" not in process["env"]


@pytest.mark.parametrize(
    ("words", "quiet", "expected"),
    [
        ("train.py", True, True),
        ("torchrun --max-restarts=1 train.py", True, True),
        ("torchrun --tee 3 train.py", True, False),
        ("torchrun --log_dir=/x train.py", True, False),
        ("train.py", False, False),  # a torch that would make a folder of that name
    ],
)
def test_torchrun_leaves_no_folder_where_it_can_do_without(
    words: str, quiet: bool, expected: bool
) -> None:
    node = Node("n1", "10.0.0.1", 0)
    plan = plan_launch(
        [node], {}, {}, MEET, LaunchRequest(program_of(words.split())), ["n1"] if quiet else []
    )
    (process,) = plan.agent_request(plan.shares[0])["processes"]
    assert ("--log-dir=/dev/null" in process["argv"]) is expected


def test_direct_ranks_are_given_what_torchrun_would_set() -> None:
    plan = planned(2, 2, direct=True)
    rank = plan.agent_request(plan.shares[1])["processes"][1]
    assert (rank["rank"], rank["argv"][1:]) == (3, ["-u", "train.py", "--name", "it's"])
    names = "RANK LOCAL_RANK NODE_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT".split()
    assert [rank["env"][name] for name in names] == ["3", "1", "1", "4", "2", "10.0.0.1", "29500"]


def test_what_is_given_by_hand_wins_over_what_apply_writes() -> None:
    env = planned(1, env={"NCCL_DEBUG": "INFO", "PYTHONFAULTHANDLER": ""}, seed=7).shares[0].env
    assert (env["NCCL_DEBUG"], env["NCCL_IB_HCA"], env["PYTHONFAULTHANDLER"]) == (
        "INFO",
        "mlx5_0",
        "",
    )
    assert (env["PYTHONHASHSEED"], env["CLUSTERPREP_SEED"]) == ("7", "7")
    assert "PYTHONHASHSEED" not in planned(1).shares[0].env


def test_words_of_env() -> None:
    assert parse_env_options(["A=1=2", "B", "C="], {"B": "mine"}) == {
        "A": "1=2",
        "B": "mine",
        "C": "",
    }


@pytest.mark.parametrize("word", ["RANK=1", "MASTER_ADDR=x", "1A=2", "NOT_HERE", "=x", "A=\0"])
def test_words_of_env_that_are_refused(word: str) -> None:
    with pytest.raises(InputError, match="--env"):
        parse_env_options([word], {})


# ---------------------------------------------------------------- as text


def test_the_line_of_a_node_can_be_pasted() -> None:
    first, second = (
        part.splitlines() for part in text_of(planned(2, 2), "torchrun", "demo").split("\n\n")
    )
    assert (first[0], second[0]) == ("# n1", "# n2")
    words = shlex.split(second[1])
    assert {"NCCL_IB_HCA=mlx5_7", "NODE_RANK=1", "--node-rank=1"} <= set(words)
    assert words[-3:] == ["train.py", "--name", "it's"]


def test_direct_lines_are_one_for_each_rank() -> None:
    lines = text_of(planned(2, 2, direct=True), "torchrun", "demo").splitlines()
    assert [line for line in lines if line.startswith("#")] == [
        "# n1 rank 0",
        "# n1 rank 1",
        "# n2 rank 2",
        "# n2 rank 3",
    ]
    assert "RANK=3" in shlex.split(lines[-1])


def test_the_script_for_slurm_gives_each_node_its_own(tmp_path: Any) -> None:
    """Run by a shell with stand-ins for Slurm's two commands."""
    script = text_of(planned(2, 2, gpus=8), "sbatch", "demo")
    assert "#SBATCH --gpus-per-node=8" in text_of(planned(8, 8, gpus=8), "sbatch", "demo")
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho n1\necho n2\n")
    (tmp_path / "srun").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (tmp_path / "python3").write_text(
        '#!/bin/sh\nprintf "%s\\n" "$NCCL_IB_HCA" "$NODE_RANK" "$MASTER_ADDR" "$@"\n'
    )
    for path in tmp_path.iterdir():
        path.chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_NODEID": "1",
        "SLURMD_NODENAME": "n2",
        "SLURM_JOB_NODELIST": "n[1-2]",
    }
    script = script.replace("/usr/bin/python3", str(tmp_path / "python3"))
    done = subprocess.run(
        ["bash"], input=script, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert said[:3] == ["mlx5_7", "1", "n1"]
    assert {"--node-rank=1", "--master-addr=n1", "--nnodes=2", "--nproc-per-node=2"} <= set(said)
    assert said[-3:] == ["train.py", "--name", "it's"]


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(("count", "expected"), [(1, None), (2, "1")])
def test_one_rank_per_node_has_all_threads_of_the_node(
    direct: bool, count: int, expected: str | None
) -> None:
    plan = planned(count, count, direct=direct)
    process = plan.agent_request(plan.shares[0])["processes"][0]
    assert process["env"].get("OMP_NUM_THREADS") == expected
