"""The time limits on the pages of explain: as `diagnose` names them when one fires."""

from __future__ import annotations

import re

import pytest

from clusterprep.cli.commands.explain import page
from clusterprep.cli.commands.time_limits import ALL, LIMITS, WIDTH
from clusterprep.jobs.diagnose import limits


@pytest.mark.parametrize("topic", LIMITS)
def test_the_page_of_a_topic_has_its_limits(topic: str) -> None:
    text = " ".join(page(topic).split())
    for limit in LIMITS[topic]:
        assert f"{limit.waits}: {limit.default}" in text
        assert f"set by {limit.where}" in text
    section = page(topic).split("Time limits that fire here\n")[1].split("\n\n")[0]
    assert max(map(len, section.splitlines())) <= WIDTH


def test_a_rendezvous_that_waits_names_the_three_limits_of_the_story() -> None:
    """Incident 3: the process group's, torchrun's join and Lightning's."""
    text = " ".join(page("rendezvous_incomplete").split())
    assert "torchrun waits for all nodes: 600 s" in text
    assert (
        "600 s for an NCCL group since torch 2.2; 1800 s before, for gloo and in Lightning" in text
    )
    assert "DDPStrategy(timeout=…)" in text


def test_other_pages_have_no_such_section() -> None:
    assert "Time limits" not in page("gpu.lost")
    assert "Time limits" not in page("memlock_limit")


@pytest.mark.parametrize(
    ("topic", "message", "torch", "number"),
    [
        (
            "rendezvous_incomplete",
            "WorkNCCL(Timeout(ms)=600000) ran for 600012 milliseconds",
            (2, 4),
            "600",
        ),
        (
            "rendezvous_incomplete",
            "WorkNCCL(Timeout(ms)=1800000) ran for 1800012 milliseconds",
            (2, 1),
            "1800",
        ),
        ("rendezvous_incomplete", "RendezvousTimeoutError", None, "600"),
        ("nccl.hang", "watchdog got stuck for 480 seconds", (2, 6), "480"),
        ("nccl.hang", "watchdog got stuck for 600 seconds", (2, 5), "600"),
        ("nccl.hang", "Timed out waiting 1800000ms for", None, "1800"),
        ("net.ports", "exceeded error retry count after 34", None, "34"),
    ],
)
def test_defaults_are_those_that_diagnose_knows(
    topic: str, message: str, torch: tuple[int, int] | None, number: str
) -> None:
    said = limits._sentence(message, torch)
    defaults = " ".join(limit.default for limit in LIMITS[topic])
    assert re.search(rf"\b{number}\b", said)
    assert re.search(rf"\b{number}\b", defaults)


def test_all_limits_are_on_one_page_with_their_sources() -> None:
    text = " ".join(page("time-limits").split())
    for limit in ALL:
        assert f"{limit.waits}: {limit.default} set by {limit.where} source: {limit.source}" in text
    for topic in LIMITS.values():
        assert set(topic) <= set(ALL)


@pytest.mark.parametrize(
    ("what", "figure", "where"),
    [
        ("torchrun waits for all nodes", "600 s", "join_timeout"),
        ("NCCL group", "600 s since torch 2.2, 1800 s before", "init_process_group"),
        ("gloo group", "1800 s", "init_process_group"),
        ("heartbeat", "480 s, up to torch 2.5 600 s", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
        ("Lightning gives", "1800 s", "DDPStrategy"),
        ("Transformers' Trainer", "1800 s", "ddp_timeout"),
        ("DeepSpeed", "30 minutes", "DEEPSPEED_TIMEOUT"),
        ("Ray Train", "1800 s", "TorchConfig"),
        ("MPI", "no limit", "mpirun --timeout"),
        ("RDMA card", "2^20", "NCCL_IB_TIMEOUT"),
    ],
)
def test_each_library_that_waits_has_its_limit(what: str, figure: str, where: str) -> None:
    (limit,) = [one for one in ALL if what in one.waits]
    assert figure in limit.default
    assert where in limit.where
