"""What a rank does around a collective.

What a backend refuses is left out, what fails on the way is not.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterprep.remote.agent.collectives import COLLECTIVES, RankContext, measure, refused
from clusterprep.remote.agent.trial import Cpu

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
STEP = {"bytes": 4000, "dtype": "float32", "repetitions": 1, "fit": False}


class Told:
    """A channel that keeps what is told."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def tell(self, what: str, **data: Any) -> None:
        self.said.append({"what": what, **data})


@pytest.fixture(scope="module")
def job() -> Any:
    """A rank that is a world of its own."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield RankContext(torch, Cpu(torch, 0), 0, 1)
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("op", COLLECTIVES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_every_collective_is_entered_warmed_and_left(job: RankContext, op: str, dtype: str) -> None:
    told = Told()
    measure(job, told, {**STEP, "op": op, "dtype": dtype}, 10.0)
    assert [row["what"] for row in told.said] == ["entered", "warmed", "left"]
    assert told.said[-1]["wrong"] == 0
    assert told.said[-1]["bytes"] == (0 if op == "barrier" else 4000)


def test_a_rank_names_a_few_others_at_most(job: RankContext) -> None:
    trial = COLLECTIVES["all_gather"](job, "float32")
    trial.blame = [(source, "wrong") for source in range(5000)]
    assert len(json.dumps(trial.result())) < 1000
    assert trial.result()["blame"][-1] == (15, "wrong")


class Lacking(RankContext):
    """A rank whose torch lacks something."""

    def __init__(self, of: RankContext, error: Exception) -> None:
        super().__init__(of.torch, of.device, of.rank, of.world)
        self._error = error

    def call(self, *names: str) -> Any:
        def fails(*tensors: Any, **words: Any) -> None:
            raise self._error

        return fails


@pytest.mark.parametrize(
    "words", ["ProcessGroupGloo does not support alltoall", "Invalid scalar type"]
)
def test_what_the_backend_refuses_is_left_out(job: RankContext, words: str) -> None:
    told = Told()
    measure(Lacking(job, RuntimeError(words)), told, {**STEP, "op": "all_to_all"}, 10.0)
    assert [row["what"] for row in told.said] == ["entered", "left"]
    assert told.said[-1]["refused"] == words


def test_what_fails_on_the_way_is_raised(job: RankContext) -> None:
    with pytest.raises(RuntimeError, match="Connection closed"):
        measure(
            Lacking(job, RuntimeError("Connection closed by peer")),
            Told(),
            {**STEP, "op": "all_to_all"},
            10.0,
        )


def test_a_failure_of_the_network_is_no_refusal_whatever_it_says() -> None:
    assert refused(
        NotImplementedError("this torch has no all_to_all_single, which is not supported")
    )
    assert not refused(torch.distributed.DistNetworkError("not supported"))
    assert not refused(torch.OutOfMemoryError("not supported"))
