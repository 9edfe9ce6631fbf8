"""Who runs which rank.

Numbers in inventory order, the back end that the GPUs allow, torchrun's environment.
"""

from __future__ import annotations

import pytest

from clusterprep.jobs.verify.hardware_model import VALID_FROM
from clusterprep.jobs.verify.schedule import (
    NCCL_LOGGING,
    NCCL_MEETING,
    NCCL_SETTINGS,
    SUBSET_MEETING,
    ScheduledTest,
    TrialPlan,
    plan_subset,
    plan_trial,
    with_incident_sizes,
    with_link_speed,
    without_launcher_variables,
)
from clusterprep.model import EnvSetting, Node, VerifySettings

NODES = tuple(
    Node(name, f"10.0.0.{index + 1}", index) for index, name in enumerate(("b", "a", "c"))
)


def plan(
    nodes: tuple[Node, ...] = NODES, gpus: dict[str, int] | None = None, **settings: object
) -> TrialPlan:
    env = {node.name: {"NCCL_DEBUG": "WARN"} for node in nodes}
    return plan_trial(nodes, env, ("10.0.0.1", 29500), VerifySettings(**settings), gpus or {})  # type: ignore[arg-type]


def test_ranks_follow_the_inventory_and_not_the_alphabet() -> None:
    ranks = plan(gpus={"b": 2, "a": 1, "c": 2}).ranks
    assert [(r.rank, r.local_rank, r.node) for r in ranks] == [
        (0, 0, "b"),
        (1, 1, "b"),
        (2, 0, "a"),
        (3, 0, "c"),
        (4, 1, "c"),
    ]


def test_every_rank_has_what_torchrun_would_set() -> None:
    rank = plan(gpus={"b": 2, "a": 2, "c": 2}).ranks[3]
    assert rank.env == {
        **NCCL_LOGGING,  # over the declared NCCL_DEBUG
        **NCCL_SETTINGS,
        "OMP_NUM_THREADS": "1",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
    }


def test_nccl_is_made_to_say_how_it_connects_and_gloo_has_nothing_to_say() -> None:
    gpus = {"b": 2, "a": 2, "c": 2}
    for rank in plan(gpus=gpus).ranks:
        assert (rank.env["NCCL_DEBUG"], rank.env["NCCL_DEBUG_FILE"]) == ("INFO", "")
        assert {"INIT", "ENV", "NET"} <= set(rank.env["NCCL_DEBUG_SUBSYS"].split(","))
    for rank in plan(gpus=gpus, backend="gloo").ranks:
        assert rank.env["NCCL_DEBUG"] == "WARN"
        assert not {"NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"} & set(rank.env)


def test_a_declared_environment_keeps_its_threads_but_not_a_foreign_rank() -> None:
    made = plan_trial(
        NODES[:1], {"b": {"OMP_NUM_THREADS": "8", "RANK": "9"}}, ("h", 1), VerifySettings(), {}
    )
    assert (made.ranks[0].env["OMP_NUM_THREADS"], made.ranks[0].env["RANK"]) == ("8", "0")


@pytest.mark.parametrize(
    ("gpus", "nproc", "wanted", "backend"),
    [
        ({"a": 8, "b": 8, "c": 8}, None, "auto", "nccl"),
        ({"a": 8, "b": 8}, None, "auto", "gloo"),  # one node would have no GPU for its rank
        ({"a": 2, "b": 2, "c": 2}, 4, "auto", "gloo"),  # NCCL refuses two ranks on one GPU
        ({}, None, "auto", "gloo"),
        ({"a": 8, "b": 8, "c": 8}, None, "gloo", "gloo"),
        ({}, None, "nccl", "nccl"),
    ],
)
def test_nccl_is_for_ranks_that_all_have_a_gpu(
    gpus: dict[str, int], nproc: int | None, wanted: str, backend: str
) -> None:
    nodes = tuple(Node(n.name, n.address, n.index, nproc_per_node=nproc) for n in NODES)
    assert plan(nodes, gpus, backend=wanted).backend == backend


def test_one_rank_on_nodes_without_gpus() -> None:
    assert [rank.node for rank in plan().ranks] == ["b", "a", "c"]
    assert plan().nproc_per_node == 1


def test_the_request_holds_the_ranks_of_its_node_only() -> None:
    made = plan(gpus={"b": 2, "a": 1, "c": 2}, sizes=(8, 1024), timeout=7.0)
    body = made.request(NODES[2], "source")
    assert [rank["rank"] for rank in body["ranks"]] == [3, 4]
    assert body["python"] == NODES[2].python
    assert body["config"] == {
        "backend": "nccl",
        "gpus": 2,
        "same_files": [],
    }
    assert made.steps == (ScheduledTest("all_reduce", 8), ScheduledTest("all_reduce", 1024))


def test_the_tasks_say_who_each_rank_is_and_where_all_meet() -> None:
    made = plan(gpus={"b": 2, "a": 1, "c": 2}, sizes=(8, 1024), timeout=7.0)
    rows = [
        {
            "op": "all_reduce",
            "bytes": n,
            "dtype": "float32",
            "repetitions": None,
            "fit": False,
            "among": 1,
            "longest": None,
        }
        for n in (8, 1024)
    ]
    alike = {"world": 5, "address": made.address, "port": made.port, "steps": rows}
    alike.update(timeout=7.0, meeting=NCCL_MEETING)
    assert made.tasks(NODES[2]) == [{"rank": 3, **alike}, {"rank": 4, **alike}]


def test_a_trial_of_some_numbers_its_ranks_anew_in_the_order_asked_for() -> None:
    made = plan(gpus={"b": 2, "a": 1, "c": 2})
    few = plan_subset(
        made,
        ["c", "b"],
        ("10.0.0.9", 29501),
        [ScheduledTest("broadcast", 64)],
        3.0,
        NCCL_IB_HCA="=mlx5_1",
    )
    assert [node.name for node in few.nodes] == ["c", "b"]
    assert [(r.rank, r.local_rank, r.node) for r in few.ranks] == [
        (0, 0, "c"),
        (1, 1, "c"),
        (2, 0, "b"),
        (3, 1, "b"),
    ]
    assert (few.rendezvous, few.timeout, few.steps) == (
        "10.0.0.9:29501",
        3.0,
        (ScheduledTest("broadcast", 64),),
    )
    env = few.ranks[3].env
    assert [env[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK")] == [
        "3",
        "1",
        "4",
        "1",
    ]
    assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["NCCL_IB_HCA"]) == (
        "10.0.0.9",
        "29501",
        "=mlx5_1",
    )
    assert without_launcher_variables(env) == {
        **without_launcher_variables(made.ranks[1].env),
        "NCCL_IB_HCA": "=mlx5_1",
    }


# ---------------------------------------------------------------- several nodes on one GPU


def one_gpu(*names: str, **env: str) -> TrialPlan:
    """Nodes of this machine, each with its only GPU."""
    made = [
        Node(
            name,
            "127.0.0.1",
            number,
            transport="local",
            env={"NCCL_HOSTID": EnvSetting(name, f"node {name}")},
        )
        for number, name in enumerate(names)
    ]
    given = {name: {"NCCL_HOSTID": name, "NCCL_SOCKET_IFNAME": "eth0", **env} for name in names}
    return plan_trial(made, given, ("10.0.0.1", 29500), VerifySettings(), dict.fromkeys(names, 1))


@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_ranks_of_nodes_that_share_a_gpu_are_ranks_of_hosts_of_their_own(names: str) -> None:
    made = one_gpu(*names)
    assert (made.backend, made.world_size, made.nproc_per_node, made.most_sharing) == (
        "nccl",
        len(names),
        1,
        len(names),
    )
    for number, (rank, name) in enumerate(zip(made.ranks, names, strict=True)):
        assert rank.env == {
            **NCCL_LOGGING,
            **NCCL_SETTINGS,
            "NCCL_HOSTID": name,
            "NCCL_SOCKET_IFNAME": "eth0",
            "NCCL_MAX_CTAS": "1",
            "OMP_NUM_THREADS": "1",
            "RANK": str(number),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(len(names)),
            "LOCAL_WORLD_SIZE": "1",
            "NODE_RANK": str(number),
            "GROUP_RANK": str(number),
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "29500",
        }


def test_what_is_declared_of_channels_holds_on_a_shared_gpu_too() -> None:
    assert {rank.env["NCCL_MAX_CTAS"] for rank in one_gpu("a", "b", NCCL_MAX_CTAS="2").ranks} == {
        "2"
    }


def test_ranks_with_a_gpu_each_may_use_all_of_it() -> None:
    assert not any(
        "NCCL_MAX_CTAS" in rank.env for rank in plan(gpus={"b": 1, "a": 1, "c": 1}).ranks
    )


def test_nccl_connects_in_order_unless_the_inventory_says_otherwise() -> None:
    """With device_id torch 2.7.0 lets NCCL 2.26 connect without blocking, which may hang."""
    name = "TORCH_NCCL_USE_COMM_NONBLOCKING"
    three = {"b": 1, "a": 1, "c": 1}
    assert {rank.env[name] for rank in plan(gpus=three).ranks} == {"0"}
    assert not any(name in rank.env for rank in plan().ranks)
    env = {node.name: {name: "1"} for node in NODES}
    declared = plan_trial(NODES, env, ("h", 1), VerifySettings(), three)
    assert {rank.env[name] for rank in declared.ranks} == {"1"}


def test_nccl_may_take_minutes_to_connect_and_gloo_may_not() -> None:
    three = {"b": 1, "a": 1, "c": 1}
    assert plan(timeout=7.0).meeting == 7.0
    over_nccl = plan(gpus=three, timeout=7.0)
    assert over_nccl.meeting == NCCL_MEETING
    assert plan(gpus=three, timeout=500.0).meeting == 500.0
    few = plan_subset(over_nccl, ["b", "a"], ("h", 1), (), 5.0)
    assert (few.timeout, few.meeting) == (5.0, SUBSET_MEETING)
    of_gloo = plan_subset(plan(timeout=7.0), ["b", "a"], ("h", 1), (), 5.0)
    assert of_gloo.meeting == 7.0


def sweep(made: TrialPlan) -> list[tuple[int, bool]]:
    return [(step.bytes, step.fit) for step in made.steps if step.repetitions is None]


SMALLER = [(8, False), (1 << 10, False), (1 << 20, False), (64 << 20, False)]


def test_over_nccl_the_sizes_reach_what_the_hardware_model_needs() -> None:
    three = {"b": 1, "a": 1, "c": 1}
    assert sweep(plan(gpus=three)) == [*SMALLER, (VALID_FROM, True)]
    assert sweep(plan()) == SMALLER
    assert sweep(plan(gpus=three, sizes=(8, 1 << 20))) == [(8, False), (1 << 20, False)]
    assert sweep(one_gpu("a", "b")) == SMALLER


def test_a_size_may_take_twenty_times_what_the_links_need_and_five_seconds_at_least() -> None:
    made = plan(sizes=(8, 64 << 20, 10 << 30))
    assert {step.longest for step in made.steps} == {None}
    limited = with_link_speed(made, 1.25e9)
    carried = (10 << 30) * 2 * 2 / 3
    assert [step.longest for step in limited.steps] == [5.0, 5.0, 20 * carried / 1.25e9]
    assert with_link_speed(made, 0.0) == made


def test_other_collectives_are_not_cut_short() -> None:
    further = plan_trial(
        NODES, {}, ("h", 1), VerifySettings(), {}, [ScheduledTest("all_reduce", 8, repetitions=1)]
    )
    assert with_link_speed(further, 1e9).steps[-1].longest is None


def test_incident_sizes_leave_memory_to_those_who_share_it() -> None:
    assert {step.among for step in with_incident_sizes(one_gpu("a", "b")).steps if step.fit} == {2}
    assert {
        step.among
        for step in with_incident_sizes(plan(gpus={"b": 1, "a": 1, "c": 1})).steps
        if step.fit
    } == {1}
    on_processors = plan_trial(one_gpu("a", "b", "c").nodes, {}, ("h", 1), VerifySettings(), {})
    assert {step.among for step in with_incident_sizes(on_processors).steps if step.fit} == {3}


def test_the_rendezvous_is_written_so_that_its_port_can_be_told() -> None:
    made = plan_trial(NODES, {}, ("fd00::1", 29500), VerifySettings(), {})
    assert (plan().rendezvous, made.rendezvous) == ("10.0.0.1:29500", "[fd00::1]:29500")
