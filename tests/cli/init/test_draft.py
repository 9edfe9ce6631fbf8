"""The inventory drafted from recorded machines is valid, and every check passes with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterprep.cli.init.draft import FACTS, draft
from clusterprep.cli.init.sources import LoginOptions, Source, from_hosts, slurm_source
from clusterprep.cli.init.yaml_text import document
from clusterprep.errors import InputError
from clusterprep.facts.torch import Torch
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Absent, Fleet, Inventory, Node, NodeSnapshot, SshSettings
from clusterprep.remote.transports.replay import ReplayTransport
from clusterprep.reports.progress import Progress
from clusterprep.survey import registry
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.queries import plan_queries
from tests.machines import play
from tests.support.operations import operations

BY = "Written by a test."


def seen(kind: str) -> Fleet:
    """What init sees of a kind of machine, of which it knows how to log in and nothing else."""
    world = play.world(kind)
    own = ("name", "address", "index", "ssh", "python", "job_user")
    nodes = tuple(
        Node(**{key: getattr(node, key) for key in own}) for node in world.inventory.nodes
    )
    plan = plan_queries((), registry.facts(), [registry.facts()[name] for name in FACTS])
    transports = {"ssh": ReplayTransport(world.recording)}
    with Fanout(
        Inventory("", nodes), transports, len(nodes), lambda node: None, Progress()
    ) as fanout:
        return fanout.survey(plan)


def written(fleet: Fleet, folder: Path, source: Source | None = None) -> tuple[Inventory, str]:
    made = draft(source or Source(fleet.inventory.nodes), fleet, "test", BY)
    path = folder / "inventory.yaml"
    path.write_text(document(made.parts))
    return load_inventory(path), path.read_text()


@pytest.mark.machine
@play.needs_chroot
@pytest.mark.parametrize(
    ("kind", "gpus", "groups"),
    [
        ("hgx-h100-ib", {8}, set()),
        ("hgx-h100-roce", {8}, set()),
        ("l20-mixed-box", {10}, set()),
        ("mixed-cluster", {0, 4}, {"l40s-x4", "cpu"}),
        ("cpu-only", {0}, set()),
    ],
)
def test_checks_pass_with_what_was_drafted(
    kind: str, gpus: set[int], groups: set[str], tmp_path: Path
) -> None:
    fleet = seen(kind)
    inventory, text = written(fleet, tmp_path)
    assert {node.gpus.count for node in inventory.nodes if node.gpus} == gpus
    assert set(inventory.groups) == groups
    assert "torch.version" in inventory.nodes[0].require
    findings = play.looked(inventory, play.world(kind).recording)[1]
    before = {f.check for f in play.world(kind).findings if f.verdict == "fail"}
    # Which GPUs and which nodes a job takes is for the user to say.
    allowed = {"l20-mixed-box": {"gpu.model_mix"}, "mixed-cluster": {"launch.nproc"}}.get(
        kind, set()
    )
    differing = "Processes that a launcher starts differ: 4 on n[1-3]; 1 on n[4-5]." in text
    assert differing == (kind == "mixed-cluster")
    assert {
        f"{f.check} {f.message} {f.seen} {f.nodes}"
        for f in findings
        if f.verdict == "fail" and f.check not in before | allowed
    } == set(), text


@pytest.mark.machine
@play.needs_chroot
def test_how_an_inventory_looks(tmp_path: Path) -> None:
    _, text = written(seen("hgx-h100-ib"), tmp_path)
    for line in (
        "gpus: {count: 8, model: NVIDIA H100 80GB HBM3}",
        '  - {name: "n[1-4]", address: "10.0.0.[1-4]"}',
        '  torch: "2.',
        "  rdma: [mlx5_",
    ):
        assert line in text


def bare(*names: str, **facts: object) -> Fleet:
    nodes = tuple(
        Node(name, f"10.0.{index // 250}.{index % 250 + 1}", index)
        for index, name in enumerate(names)
    )
    known = {"gpu.nvml": None, "gpu.pci": (), **facts}
    return Fleet(
        Inventory("", nodes),
        {n.name: NodeSnapshot(n.name, n.address, True, facts=known) for n in nodes},
    )


def test_what_is_not_known_is_a_comment_and_no_setting(tmp_path: Path) -> None:
    fleet = bare(
        "a1", "a2", **{"gpu.nvml": Absent("hung", "no answer"), "kernel.release": "6.1.0-18-amd64"}
    )
    inventory, text = written(fleet, tmp_path)
    assert inventory.nodes[0].gpus is None
    assert dict(inventory.nodes[0].require) == {"kernel.version": ">=6.1.0"}
    assert "# a[1-2]: gpus are not known: hung no answer" in text


def test_versions_that_differ_are_told_and_not_required(tmp_path: Path) -> None:
    fleet = bare("a1", "a2", "a3", **{"kernel.release": "6.1.0"})
    other = replace(
        fleet.snapshots["a3"], facts={**fleet.snapshots["a3"].facts, "kernel.release": "6.8.0-1"}
    )
    inventory, text = written(replace(fleet, snapshots={**fleet.snapshots, "a3": other}), tmp_path)
    assert not inventory.nodes[0].require
    assert "# kernel: 6.1.0 on a[1-2]; 6.8.0 on a3" in text


def with_own(fleet: Fleet, **facts: Mapping[str, object]) -> Fleet:
    """The fleet in which nodes have facts of their own."""
    snapshots = dict(fleet.snapshots)
    for name, own in facts.items():
        known = {**snapshots[name].facts, **own}
        snapshots[name] = replace(snapshots[name], facts=known)
    return replace(fleet, snapshots=snapshots)


def test_distributions_become_groups_that_require_them(tmp_path: Path) -> None:
    old = {"os.release": "debian 11", "kernel.release": "5.10.0-30-amd64"}
    fleet = bare(
        "a1", "a2", "a3", "a4", **{"os.release": "ubuntu 24.04", "kernel.release": "6.8.0"}
    )
    inventory, _ = written(with_own(fleet, a2=old, a4=old), tmp_path)
    assert dict(inventory.groups) == {"ubuntu-24.04": ("a1", "a3"), "debian-11": ("a2", "a4")}
    assert [dict(node.require) for node in inventory.nodes[:2]] == [
        {"os.release": "ubuntu 24.04", "kernel.version": ">=6.8.0"},
        {"os.release": "debian 11", "kernel.version": ">=5.10.0"},
    ]


def test_one_distribution_is_no_group(tmp_path: Path) -> None:
    fleet = bare("a1", "a2", **{"os.release": "debian 12"})
    inventory, _ = written(with_own(fleet, a2={"os.release": Absent("denied")}), tmp_path)
    assert dict(inventory.groups) == {}


def test_a_distribution_cannot_take_the_name_of_a_group_or_node(tmp_path: Path) -> None:
    fleet = bare("debian-12", "a2", **{"os.release": "debian 12", "gpu.pci": ("a GPU",)})
    fleet = with_own(fleet, a2={"os.release": "cpu", "gpu.pci": ()})
    inventory, _ = written(fleet, tmp_path)
    assert set(inventory.groups) == {"cpu", "unknown", "debian-12-2", "cpu-2"}


def test_a_distribution_may_call_itself_anything(tmp_path: Path) -> None:
    fleet = bare("a1", "a2", **{"os.release": '\u202eDebian: "x"\n# 12'})
    inventory, _ = written(with_own(fleet, a2={"os.release": "»«"}), tmp_path)
    assert dict(inventory.groups) == {"debian-x-12": ("a1",), "distribution": ("a2",)}


def test_an_interpreter_that_does_not_start_is_told_once(tmp_path: Path) -> None:
    fleet = bare("a1", "a2", **{"torch.build": Torch("2.13.0", None, None, "/t")})
    missing = Absent("no_start", "version `GLIBC_2.34' not found")
    _, text = written(with_own(fleet, a2={"torch.build": missing}), tmp_path)
    told = "python3 does not start on a2, which need another one: version `GLIBC_2.34' not found"
    assert told in text
    assert "no_start" not in text


def test_logins_that_differ_stand_with_their_nodes(tmp_path: Path) -> None:
    fleet = bare("a1", "a2", "b1")
    nodes = list(fleet.inventory.nodes)
    nodes[2] = replace(
        nodes[2], ssh=replace(nodes[2].ssh, user="ubuntu", become=True), job_user="train"
    )
    source = LoginOptions(port=2222, python="/opt/job/bin/python").over(Source(tuple(nodes)))
    fleet = replace(fleet, inventory=replace(fleet.inventory, nodes=source.nodes))
    inventory, text = written(fleet, tmp_path, source)
    got = [(n.ssh.user, n.ssh.port, n.ssh.become, n.job_user, n.python) for n in inventory.nodes]
    assert got == [(None, 2222, False, None, "/opt/job/bin/python")] * 2 + [
        ("ubuntu", 2222, True, "train", "/opt/job/bin/python")
    ]
    assert text.count("2222") == 1


def test_words_of_a_host_cannot_become_settings(tmp_path: Path) -> None:
    evil = 'x\nroot: /evil\n# "'
    fleet = bare("a1", **{"gpu.nvml": Absent(evil), "kernel.release": evil})
    inventory, _ = written(fleet, tmp_path)
    assert inventory.nodes[0].root == "/"


def test_names_of_one_machine_are_told(tmp_path: Path) -> None:
    _, text = written(bare("a1", "a2", **{"host.machine_id": "f" * 32}), tmp_path)
    assert "# a[1-2] are one machine by /etc/machine-id: keep one of them" in text


def test_the_user_option_sets_an_undeclared_job_user_too() -> None:
    node = Node("a", "a", 0, ssh=SshSettings(user="ops"), job_user="ops")
    assert LoginOptions(user="root").over(Source((node,))).nodes[0].job_user == "root"
    assert (
        LoginOptions(user="root").over(Source((replace(node, job_user="train"),))).nodes[0].job_user
        == "train"
    )


A_HOST = 1_500  # operations at most; 770 when this was written


def test_a_thousand_hosts_are_a_short_text(tmp_path: Path) -> None:
    inventory, text = written(bare(*(f"gpu{n:04}" for n in range(1, 1001))), tmp_path)
    assert len(inventory.nodes) == 1000
    assert len(text.splitlines()) < 60


def test_the_work_of_a_draft_grows_with_its_hosts(tmp_path: Path) -> None:
    def work(hosts: int) -> int:
        seen = bare(*(f"gpu{n:04}" for n in range(1, hosts + 1)))
        return operations(lambda: written(seen, tmp_path))

    work(1)  # what is loaded and computed once
    few = work(200)
    assert few < A_HOST * 200
    assert work(400) < 2.2 * few


# ---------------------------------------------------------------- where hosts come from


def test_hosts_as_words() -> None:
    found = from_hosts(["gpu[1-2]=10.0.0.[7,5]", "login"])
    assert [(node.name, node.address) for node in found.nodes] == [
        ("gpu1", "10.0.0.7"),
        ("gpu2", "10.0.0.5"),
        ("login", "login"),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "a"], "twice"),
        (["a[1-2]=b"], "2 names and 1 addresses"),
        (["root@a"], "--user"),
        (["a["], "bracket"),
    ],
)
def test_hosts_that_cannot_be_used(words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        from_hosts(words)


def test_slurm_as_its_own_command_tells_it() -> None:
    """Recorded of Debian's Slurm 22.05.8, on a controller with nodes that were never started."""
    source = slurm_source(Path(__file__).with_name("scontrol-22.05.8.txt").read_text())
    assert [(node.name, node.address) for node in source.nodes[:2]] == [
        ("gpu01", "10.0.0.1"),
        ("gpu02", "10.0.0.2"),
    ]
    assert set(source.groups) == {"train", "debug", "all"}
    assert source.groups["train"] == tuple(f"gpu{n:02}" for n in range(1, 9))
    assert dict(source.passed_over) == {
        "old1": "Slurm says DOWN: bad PSU, Partitions=none ticket 12"
    }
