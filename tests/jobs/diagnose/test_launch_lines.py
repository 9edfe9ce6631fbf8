"""Command lines of launchers, one a node, that contradict each other."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import pytest

from clusterprep.jobs.diagnose.model import Diagnosis
from clusterprep.jobs.diagnose.prefixes import line_of
from clusterprep.jobs.diagnose.ranking import diagnose

RUN = "+ torchrun --nnodes=2 --nproc_per_node=8 --node_rank={rank} --master_addr=10.9.0.1 --master_port=29500 train.py"
FAILED = "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 8/16 clients joined."


def told(*files: str) -> Diagnosis:
    """Return the diagnosis of files node0.log, node1.log …, the failure at the end of the first."""
    lines = []
    for node, text in enumerate((f"{files[0]}\n{FAILED}", *files[1:])):
        for number, row in enumerate(text.split("\n"), 1):
            lines.append(line_of(f"node{node}.log", number, row, len(lines)))
    return diagnose(lines)


@pytest.mark.parametrize(
    ("files", "note", "culprit"),
    [
        pytest.param(
            (RUN.format(rank=0), RUN.format(rank=0)),
            "two nodes have the node rank 0: node0.log and node1.log",
            "files node0.log and node1.log",
            id="node-rank-twice",
        ),
        pytest.param(
            (RUN.format(rank=0), RUN.format(rank=1).replace("10.9.0.1", "10.9.0.9")),
            "the nodes have different --master_addr: 10.9.0.1 on node0.log, 10.9.0.9 on node1.log",
            "files node0.log and node1.log",
            id="master",
        ),
        pytest.param(
            tuple(
                RUN.format(rank=rank).replace("=29500", "=29501" if rank == 2 else "=29500")
                for rank in range(3)
            ),
            "the nodes have different --master_port: 29500 on node0.log and node1.log, 29501 on node2.log",
            "file node2.log",
            id="the-odd-one",
        ),
        pytest.param(
            (
                "torchrun --nnodes 2 --rdzv-id a --rdzv-backend c10d --rdzv-endpoint n1:29400 t.py",
                "torchrun --nnodes 2 --rdzv-id b --rdzv-backend c10d --rdzv-endpoint n1:29400 t.py",
            ),
            "the nodes have different --rdzv_id: a on node0.log, b on node1.log",
            "files node0.log and node1.log",
            id="id",
        ),
        pytest.param(
            (
                "accelerate launch --num_machines 2 --machine_rank 0 --main_process_ip n1 t.py",
                "accelerate launch --num_machines 2 --machine_rank 0 --main_process_ip n1 t.py",
            ),
            "two nodes have the node rank 0: node0.log and node1.log",
            "files node0.log and node1.log",
            id="accelerate",
        ),
    ],
)
def test_nodes_that_were_started_in_contradiction(
    files: tuple[str, ...], note: str, culprit: str
) -> None:
    found = told(*files).causes[0]
    assert found.cause.name == "rendezvous_misconfigured"
    assert note in found.message
    assert (found.culprit, found.confidence) == (culprit, 0.75)


@pytest.mark.parametrize(
    "files",
    [
        pytest.param((RUN.format(rank=0), RUN.format(rank=1)), id="as-it-should-be"),
        pytest.param((RUN.format(rank=0) + "\n" + RUN.format(rank=0), ""), id="started-again"),
        pytest.param((RUN.format(rank="$NODE"), RUN.format(rank="$NODE")), id="not-expanded"),
        pytest.param(
            tuple(
                f"torchrun --nnodes=2 --node_rank=0 --rdzv_endpoint=n1:29400 --rdzv_id=1 t{n}.py"
                for n in range(2)
            ),
            id="c10d-takes-no-node-rank",
        ),
        pytest.param(
            tuple(
                f"torchrun --nnodes=1 --node_rank=0 --master_port=2950{n} t.py" for n in range(2)
            ),
            id="jobs-of-one-node-each",
        ),
    ],
)
def test_nodes_that_were_started_well(files: tuple[str, ...]) -> None:
    assert "rendezvous_misconfigured" not in {found.cause.name for found in told(*files).causes}
