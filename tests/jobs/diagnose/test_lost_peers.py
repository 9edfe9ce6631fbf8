"""Connections that a peer closed: who went away, and that any cause beside them comes first."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import pytest

from clusterprep.jobs.diagnose.model import Diagnosis
from clusterprep.jobs.diagnose.prefixes import line_of
from clusterprep.jobs.diagnose.ranking import diagnose


def told(*texts: str) -> Diagnosis:
    lines = [line_of("job.log", number, text, number) for number, text in enumerate(texts, 1)]
    return diagnose(lines, {"job.log": len(texts)})


def warned(host: str, text: str) -> str:
    return f"{host}:11:90 [0] misc/socket.cc:49 NCCL WARN {text}"


def closed(host: str, peer: str) -> str:
    return warned(host, f"socketProgress: Connection closed by remote peer {peer}<43211>")


TAIL = (
    "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2044, remote process exited or there was a network error, NCCL version 2.21.5",
    "[rank0]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "[rank0]: Last error:",
    "[rank0]: socketProgress: Connection closed by remote peer gpu2<43211>",
)


@pytest.mark.parametrize(
    ("line", "culprit"),
    [
        pytest.param(closed("gpu1", "gpu2"), "peer gpu2 as seen from gpu1", id="closed"),
        pytest.param(closed("gpu1", "gpu2.lab.corp"), "peer gpu2.lab.corp as seen from gpu1", id="closed-by-a-name-with-domain"),
        pytest.param(closed("gpu1", "gpu1.lab.corp"), None, id="closed-on-the-same-host"),
        pytest.param(warned("gpu1", "Call to recv from 10.9.0.2<43211> failed : Connection timed out"), "peer 10.9.0.2 as seen from gpu1", id="recv"),
        pytest.param(warned("gpu1", "socketProgressOpt: Call to send to 10.9.0.2<43211> failed : Broken pipe"), "peer 10.9.0.2 as seen from gpu1", id="send"),
        pytest.param(warned("gpu1", "Call to connect to 10.9.0.2<43211> failed : Connection reset by peer"), "peer 10.9.0.2 as seen from gpu1", id="connect"),
        pytest.param("RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.9.0.2]:4000", "peer 10.9.0.2", id="gloo"),
        pytest.param("RuntimeError: [../gloo/transport/tcp/pair.cc:598] Read error [10.9.0.2]:4000: Connection reset by peer", "peer 10.9.0.2", id="gloo-reads"),
        pytest.param("RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:4000", None, id="loopback"),
        pytest.param(TAIL[1], None, id="peer-not-named"),
    ],
)  # fmt: skip
def test_a_peer_that_went_away_is_named(line: str, culprit: str | None) -> None:
    found = told(line)
    (cause,) = found.causes
    assert (cause.cause.name, cause.confidence, cause.culprit) == ("peer_lost", 0.45, culprit)
    assert not found.unexplained
    assert found.code == 1


def test_the_lines_that_name_the_peer_are_shown_before_those_that_say_nothing() -> None:
    first = closed("gpu1", "gpu2")
    found = told(first, *TAIL)
    (cause,) = found.causes
    assert cause.culprit == "peer gpu2 as seen from gpu1"
    assert cause.lines[0].text == first
    assert not found.unexplained


def test_who_lost_a_peer_itself_ended_later() -> None:
    found = told(closed("gpu3", "gpu1"), closed("gpu1", "gpu2"), closed("gpu4", "gpu3"))
    assert [cause.culprit for cause in found.causes] == ["peer gpu2 as seen from gpu1"]


def test_of_several_peers_none_is_blamed() -> None:
    found = told(closed("gpu1", "gpu2"), closed("gpu1", "gpu3"))
    assert [cause.culprit for cause in found.causes] == [None]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        pytest.param("[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "rank_gpu_oom", id="plain"),
        pytest.param("srun: error: gpu2: task 3: Killed", "host_oom_kill", id="symptom"),
    ],
)  # fmt: skip
def test_any_cause_comes_instead(line: str, cause: str) -> None:
    found = told(closed("gpu1", "gpu2"), *TAIL, line)
    assert [found.cause.name for found in found.causes] == [cause]


def test_an_internal_error_that_says_no_more_follows_from_it() -> None:
    """NCCL 2.14: github.com/NVIDIA/nccl/issues/795 and 1514."""
    internal = "ncclInternalError: Internal check failed."
    last = "Net : Connection closed by remote peer gpu2<43236>"
    found = told(internal, "Last error:", last).causes
    assert [cause.cause.name for cause in found] == ["peer_lost", "nccl_bug_or_version"]
    assert (found[0].culprit, found[0].confidence) == ("peer gpu2", 0.45)
    assert [cause.cause.name for cause in told(internal).causes] == ["nccl_bug_or_version"]


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param((closed("gpu1", "gpu2"), "Training finished."), id="job-that-ended-well"),
        pytest.param(("gpu1:11:90 [0] NCCL INFO socketProgress: Connection closed by remote peer gpu2<43211>",), id="information"),
        pytest.param(("ConnectionResetError: [Errno 104] Connection reset by peer",), id="of-another-program"),
    ],
)  # fmt: skip
def test_it_is_no_failure(texts: tuple[str, ...]) -> None:
    assert not told(*texts).causes


def test_no_route_to_a_peer_names_it() -> None:
    line = warned("gpu1", "Call to recv from 10.9.0.2<43211> failed : No route to host")
    cause = told(line).causes[0]
    assert (cause.cause.name, cause.culprit) == (
        "firewall_blocked_port",
        "peer 10.9.0.2 as seen from gpu1",
    )


def test_what_nccl_warns_of_is_listed_in_whatever_words() -> None:
    line = warned("gpu1", "The moon is not where it should be")
    assert [row.text for row in told(line).unexplained] == [line]
    informing = line.replace("NCCL WARN", "NCCL INFO")
    assert not told(informing).unexplained


def test_what_nccl_warns_of_and_is_known_as_harmless_is_not_listed() -> None:
    line = warned("gpu1", "minCTAs 9 is larger than maxCTAs 4, set both to 9")
    assert not told(line).unexplained
