"""Real ranks on this machine.

Two nodes with two ranks each over loopback, well and with every fault of the list.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.jobs.verify.blame import findings, judge
from clusterprep.jobs.verify.collect import run_verify
from clusterprep.model import VerifyResult
from clusterprep.remote.transports.link import Link
from tests.jobs.verify.agents import agents, gone
from tests.jobs.verify.loopback import LARGE, nodes, plan

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
HOURS = 36_000.0  # seconds; a limit that no test lives to see
Frame = dict[str, Any]


class Meddler:
    """A link that does something to its node the moment a frame goes by."""

    def __init__(
        self, link: Link, when: Callable[[Frame], bool], do: Callable[[dict[int, int]], None]
    ) -> None:
        self.node, self._link, self._when, self._do = link.node, link, when, do
        self._pids: dict[int, int] = {}
        self.done: float | None = None
        self.leash = 6.0

    def request(self, op: str, timeout: float, **body: Any) -> Frame:
        return self._link.request(
            op, timeout, **body, **({"leash": self.leash} if op == "start" else {})
        )

    def poll(self, timeout: float) -> list[Frame]:
        frames = self._link.poll(timeout)
        for frame in frames:
            if frame.get("what") == "spawned":
                self._pids[frame["rank"]] = frame["pid"]
            if self.done is None and self._when(frame):
                self.done = time.monotonic()
                self._do(self._pids)
        return frames

    @property
    def received(self) -> int:
        return self._link.received

    def silent_for(self) -> float:
        return self._link.silent_for()


@contextlib.contextmanager
def ended(links: Sequence[Link], limit: float = 0.0) -> Iterator[None]:
    """Nothing of the trial may be left when the block ends, or `limit` seconds later."""
    yield
    assert gone(links, limit)


def entered_large(rank: int) -> Callable[[Frame], bool]:
    return lambda frame: (
        frame.get("rank") == rank and frame.get("what") == "entered" and frame["bytes"] == LARGE
    )


def blamed(result: VerifyResult) -> list[tuple[str, tuple[str, ...], int | None]]:
    return [(culprit.kind, culprit.nodes, culprit.rank) for culprit in result.culprits]


def verdicts(result: VerifyResult) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {finding.check: (finding.verdict, finding.nodes) for finding in findings(result)}


def test_a_sound_cluster_passes_with_exact_sums() -> None:
    with agents(nodes()) as links, ended(links):
        timeline = run_verify(links, plan(nodes(), sizes=(8, 1001, 4 << 20), min_busbw=0.001))
    result = judge(timeline)
    assert (result.verdict, result.culprits, result.message) == ("pass", (), "")
    assert (result.backend, result.world_size, result.nproc_per_node) == ("gloo", 4, 2)
    assert [stage.name for stage in result.stages] == [
        "start",
        "consistency",
        "rendezvous",
        "first collective",
        "bandwidth",
    ]
    assert all(stage.verdict == "pass" and stage.arrived == (0, 1, 2, 3) for stage in result.stages)
    assert [(row.op, row.bytes, row.wrong) for row in result.collectives] == [
        ("all_reduce", 8, 0),
        ("all_reduce", 1004, 0),  # whole elements
        ("all_reduce", 4 << 20, 0),
    ]
    for row in result.collectives:
        assert row.algbw_gbs == pytest.approx(row.bytes / row.seconds / 1e9)
        assert row.busbw_gbs == pytest.approx(row.algbw_gbs * 1.5)  # 2 (n - 1) / n with four ranks
    assert [(row.rank, row.local_rank, row.node, row.last_event) for row in result.ranks] == [
        (0, 0, "n1", "finished"),
        (1, 1, "n1", "finished"),
        (2, 0, "n2", "finished"),
        (3, 1, "n2", "finished"),
    ]
    assert {check: verdict for check, (verdict, _) in verdicts(result).items()} == {
        "nccl.hang": "pass",
        "nccl.correct": "pass",
        "nccl.init_time": "pass",
        "nccl.straggler": "pass",
        "rank.consistency": "pass",
        "nccl.busbw_multi": "pass",
    }
    assert {event.data["code"] for event in timeline.of("exit")} == {
        0
    }  # all left the group in order


# Stands in for the NCCL of GPUs that are not here: what it would print stands before a rank that
# works with gloo.
SPEAKING = """#!/bin/sh
i=0
while [ $i -lt 500 ]; do
  echo "n:1:2 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>"
  echo "n:1:2 [0] NCCL INFO NET/IB : No device found."
  echo "n:1:2 [0] NCCL INFO Using network Socket"
  echo "n:1:2 [0] NCCL INFO Channel $i/0 : $RANK[0] -> $(( (RANK + 2) % 4 ))[0] [send] via NET/Socket/0"
  i=$((i + 1))
done
exec {python} "$@"
"""  # noqa: E501 - a line as NCCL prints it


def test_what_ranks_print_of_their_connections_is_judged(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(SPEAKING.replace("{python}", sys.executable))
    python.chmod(0o755)
    both = nodes(str(python), str(python))
    with agents(both) as links, ended(links):
        timeline = run_verify(links, plan(both, sizes=(8,)))
    assert judge(timeline).verdict == "pass"
    written = {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "mlx5_0"}
    ranks = tuple(replace(rank, env={**rank.env, **written}) for rank in timeline.plan.ranks)
    over_nccl = replace(timeline, plan=replace(timeline.plan, backend="nccl", ranks=ranks))
    (found,) = (
        finding for finding in findings(judge(over_nccl)) if finding.check == "nccl.transport"
    )
    assert (found.verdict, found.nodes, found.seen) == (
        "fail",
        ("n1", "n2"),
        "NET/Socket between nodes",
    )
    assert "(rank 0 on n1 to rank 2 on n2)" in found.message
    assert [len(event.data["lines"]) for event in timeline.of("nccl")] == [4] * 4
    assert all("NCCL INFO" not in event.data["output"] for event in timeline.of("exit"))


def test_a_killed_rank_is_named_at_once() -> None:
    with agents(nodes()) as links, ended(links):
        meddler = Meddler(links[1], entered_large(2), lambda pids: os.kill(pids[2], signal.SIGKILL))
        result = judge(run_verify([links[0], meddler], plan(nodes(), timeout=HOURS)))
    assert blamed(result) == [("rank", ("n2",), 2)]
    assert result.culprits[0].cause == "the process was killed by SIGKILL"
    assert [row.bytes for row in result.collectives] == [8, 1004]  # what was complete stays
    assert verdicts(result)["nccl.hang"] == ("fail", ("n2",))


def test_a_stopped_rank_is_named_and_ended() -> None:
    with agents(nodes()) as links, ended(links):
        meddler = Meddler(links[0], entered_large(1), lambda pids: os.kill(pids[1], signal.SIGSTOP))
        result = judge(run_verify([meddler, links[1]], plan(nodes(), timeout=HOURS)))
    assert blamed(result) == [("rank", ("n1",), 1)]
    assert "state T" in result.culprits[0].cause
    assert result.stages[-1].verdict == "fail"
    assert verdicts(result)["nccl.correct"][0] == "unknown"


def test_a_python_without_torch_is_told_before_anything_hangs() -> None:
    bare = "/usr/bin/python3"
    if (
        subprocess.run([bare, "-c", "import torch"], capture_output=True, check=False).returncode
        == 0
    ):
        pytest.skip(f"{bare} has torch")
    both = nodes(sys.executable, bare)
    with agents(both) as links, ended(links):
        result = judge(
            run_verify(links, plan(both, timeout=60.0))
        )  # so long the imports of n1 are waited for
    assert blamed(result) == [("node", ("n2",), None)]
    assert result.stages[0].arrived == (0, 1)
    assert verdicts(result)["torch.version"] == ("fail", ("n2",))


def test_no_torch_anywhere_is_not_known_to_be_wrong() -> None:
    bare = nodes("/usr/bin/python3", "/usr/bin/python3")
    with agents(bare) as links, ended(links):
        result = judge(run_verify(links, plan(bare)))
    assert result.verdict == "unknown"
    torch_version = next(
        finding for finding in findings(result) if finding.check == "torch.version"
    )
    assert (torch_version.verdict, torch_version.reason) == ("unknown", "missing_tool")
    assert torch_version.nodes == ("n1", "n2")


def test_a_port_in_use_is_told_with_its_node() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with agents(nodes()) as links, ended(links):
            result = judge(run_verify(links, plan(nodes(), port)))
    assert blamed(result) == [("node", ("n1",), None)]
    assert f"port {port} is already in use" in result.culprits[0].cause
    assert verdicts(result)["net.ports"] == ("fail", ("n1",))


def test_a_node_that_falls_silent_is_named_and_ends_its_ranks_itself() -> None:
    """The agent lives and cannot be heard: what a stopped sshd looks like."""
    with agents(nodes(), relayed=True) as links, ended(links, 12):
        meddler = Meddler(links[1], entered_large(3), lambda pids: links[1].relay(signal.SIGSTOP))
        meddler.leash = 3.0
        result = judge(run_verify([links[0], meddler], plan(nodes(), timeout=HOURS)))
        assert gone(links, 4)  # long before the agent gives up its controller
        links[1].relay(signal.SIGCONT)
    assert blamed(result) == [("node", ("n2",), None)]
    assert result.culprits[0].cause == "the node fell silent"
    assert (
        result.collectives[0].bytes == 8
    )  # what the node said last may have been held up with the rest
    assert [row.node for row in result.ranks] == ["n1", "n1", "n2", "n2"]


def test_an_interruption_ends_every_rank() -> None:
    class Interrupting(Meddler):
        def silent_for(self) -> float:
            if self.done is not None:
                raise KeyboardInterrupt
            return super().silent_for()

    with agents(nodes()) as links, ended(links):
        first = Interrupting(
            links[0], lambda frame: frame.get("what") == "started", lambda pids: None
        )
        with pytest.raises(KeyboardInterrupt):
            run_verify([first, links[1]], plan(nodes()))
