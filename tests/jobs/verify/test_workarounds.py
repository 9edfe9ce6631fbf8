"""Which settings are tried, in which order, and what is concluded from the tries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusterprep.jobs.verify.schedule import TrialPlan, plan_trial
from clusterprep.jobs.verify.workarounds import (
    Attempt,
    Setting,
    Settings,
    available_settings,
    conclusion,
    judge_attempt,
    next_settings,
    with_settings,
    workaround_rows,
)
from clusterprep.model import CollectiveResult, Node, VerifyResult, VerifySettings

NETWORKS = ({"n1": "eth0", "n2": "eth0"}, {"n1": "eth1", "n2": "ens5"})


def plan(backend: Any = "nccl", **env: str) -> TrialPlan:
    nodes = [Node(f"n{i}", f"10.0.0.{i}", i - 1) for i in (1, 2)]
    given = {
        node.name: {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0", **env}
        for node in nodes
    }
    return plan_trial(
        nodes, given, ("10.0.0.1", 29500), VerifySettings(backend=backend), {"n1": 1, "n2": 1}
    )


def words(chosen: Settings) -> list[str]:
    return [setting.assignment for setting in chosen]


def result(verdict: Any = "pass", busbw: float | None = 1.0, message: str = "") -> VerifyResult:
    rows = (CollectiveResult("all_reduce", 8, 0.1, 0.0, 0.0, 0),)
    rows += (
        () if busbw is None else (CollectiveResult("all_reduce", 1 << 20, 0.1, busbw, busbw, 0),)
    )
    return VerifyResult(verdict, "nccl", 2, 1, "", collectives=rows, message=message)


def search(known: Settings, works: Callable[[set[str]], bool]) -> list[Attempt]:
    """Everything that is tried where a combination works according to `works`."""
    tried: list[Attempt] = []
    while (chosen := next_settings(known, tried)) is not None:
        assert chosen not in [one.settings for one in tried]
        tried.append(
            Attempt(
                chosen, works({setting.variable for setting in chosen}), result().collectives[-1]
            )
        )
    return tried


def working(tried: list[Attempt]) -> list[set[str]]:
    return [{setting.variable for setting in one.settings} for one in tried if one.works]


def test_nccl_has_its_switches_and_the_other_networks() -> None:
    assert words(available_settings(plan(), NETWORKS)) == [
        "NCCL_P2P_DISABLE=1",
        "NCCL_IB_DISABLE=1",
        "NCCL_SHM_DISABLE=1",
        "NCCL_NVLS_ENABLE=0",
        "NCCL_ALGO=Ring",
        "NCCL_SOCKET_IFNAME=eth1 on n1, NCCL_SOCKET_IFNAME=ens5 on n2",
    ]


def test_gloo_has_the_other_networks_alone() -> None:
    assert words(available_settings(plan("gloo"), NETWORKS)) == [
        "GLOO_SOCKET_IFNAME=eth1 on n1, GLOO_SOCKET_IFNAME=ens5 on n2"
    ]


def test_gloo_gets_names_without_the_mark_of_nccl() -> None:
    networks = ({"n1": "=eth1", "n2": "=eth1"},)
    assert words(available_settings(plan("gloo"), networks)) == ["GLOO_SOCKET_IFNAME=eth1"]
    assert words(available_settings(plan(), networks))[-1] == "NCCL_SOCKET_IFNAME==eth1"


def test_what_is_set_already_is_no_setting() -> None:
    found = words(
        available_settings(plan(NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME="=eth0"), NETWORKS[:1])
    )
    assert "NCCL_IB_DISABLE=1" not in found
    assert not any("IFNAME" in one for one in found)


def test_settings_are_over_the_environment_of_every_rank_and_change_nothing_else() -> None:
    before = plan()
    chosen = (available_settings(before, NETWORKS)[0], available_settings(before, NETWORKS)[-1])
    after = with_settings(before, chosen)
    assert [rank.env["NCCL_SOCKET_IFNAME"] for rank in after.ranks] == ["eth1", "ens5"]
    assert {rank.env["NCCL_P2P_DISABLE"] for rank in after.ranks} == {"1"}
    assert (after.steps, after.timeout, after.rendezvous) == (
        before.steps,
        before.timeout,
        before.rendezvous,
    )
    assert "NCCL_P2P_DISABLE" not in before.ranks[0].env


def test_the_same_trial_comes_first_and_ends_it_where_it_passes() -> None:
    tried = search(available_settings(plan(), NETWORKS), lambda chosen: True)
    assert [one.settings for one in tried] == [()]
    assert "comes and goes" in conclusion(available_settings(plan(), NETWORKS), tried)


def test_all_are_tried_alone_also_when_one_helps_and_then_no_more() -> None:
    known = available_settings(plan(), NETWORKS)
    tried = search(known, lambda chosen: "NCCL_IB_DISABLE" in chosen)
    assert [one.settings for one in tried] == [(), *((setting,) for setting in known)]
    assert (
        conclusion(known, tried)
        == "it works with NCCL_IB_DISABLE=1 at 1 GB/s for 1 MiB; nothing was written"
    )


@pytest.mark.parametrize(
    "needed",
    [
        {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"},
        {"NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME"},
        {"NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME"},
    ],
)
def test_of_a_combination_nothing_can_be_left_out(needed: set[str]) -> None:
    known = available_settings(plan(), NETWORKS)
    tried = search(known, lambda chosen: needed <= chosen)
    assert min(working(tried), key=len) == needed
    assert len(tried) <= 1 + len(known) + 1 + len(known) ** 2 // 2


def test_all_that_fails_is_said() -> None:
    known = available_settings(plan(), NETWORKS)
    tried = search(known, lambda chosen: False)
    assert len(tried) == 1 + len(known) + 1
    assert conclusion(known, tried) == "none of 6 settings makes it work, alone or together"
    assert {row.share for row in workaround_rows(tried)} == {None}


def test_of_two_networks_one_is_set_at_a_time() -> None:
    networks = (*NETWORKS, {"n1": "ib0", "n2": "ib0"})
    tried = search(available_settings(plan(), networks), lambda chosen: False)
    assert all(sum("IFNAME" in setting.variable for setting in one.settings) <= 1 for one in tried)
    assert sum(len(one.settings) == 6 for one in tried) == 2


def test_without_another_network_gloo_has_nothing_to_try() -> None:
    known = available_settings(plan("gloo"), NETWORKS[:1])
    assert (known, "no other network" in conclusion(known, [])) == ((), True)


@pytest.mark.parametrize(
    ("now", "before", "works"),
    [
        pytest.param(result(), result("fail", None), True, id="hung-and-passes"),
        pytest.param(result("fail", None), result("fail", None), False, id="hangs-again"),
        pytest.param(result(busbw=1.5), result("fail", 1.0), False, id="hardly-faster"),
        pytest.param(result(busbw=3.0), result("fail", 1.0), True, id="slow-and-faster"),
        pytest.param(
            result("fail", 3.0), result("fail", 1.0), False, id="faster-and-still-too-slow"
        ),
    ],
)
def test_what_counts_as_working(now: VerifyResult, before: VerifyResult, works: bool) -> None:
    assert judge_attempt((), now, before).works is works


def test_what_each_costs_is_told_against_the_fastest() -> None:
    one, other = (Setting(name, (("n1", "1"),)) for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"))
    before = result("fail", None, "it hung")
    tried = [
        judge_attempt((), result("fail", None, "it hung"), before),
        judge_attempt((one,), result(busbw=8.0), before),
        judge_attempt((other,), result(busbw=2.0), before),
    ]
    rows = workaround_rows(tried)
    assert [(row.settings, row.works, row.share, row.why) for row in rows] == [
        ((), False, None, "it hung"),
        (("NCCL_P2P_DISABLE=1",), True, 1.0, ""),
        (("NCCL_IB_DISABLE=1",), True, 0.25, ""),
    ]
    assert "NCCL_P2P_DISABLE=1 at 8 GB/s" in conclusion((one, other), tried)
