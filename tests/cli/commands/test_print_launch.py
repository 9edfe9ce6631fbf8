"""`launch --print` and `--spares` where nodes are down: who is in the text, and what is said."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import asked

Launch = Callable[..., tuple[int, str, str]]
HERE = {"transport": "local"}


@pytest.fixture(scope="module")
def down() -> Iterator[dict[str, Any]]:
    """A node that refuses connections."""
    with socket.socket() as never_listens:
        never_listens.bind(("127.0.0.1", 0))
        port = never_listens.getsockname()[1]
        yield {"address": "127.0.0.1", "ssh": {"user": "root", "port": port}}


@pytest.fixture
def launch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Launch:
    """Run `launch` about these nodes; return the exit code, stdout and stderr."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)

    def run(nodes: dict[str, Any], *words: str) -> tuple[int, str, str]:
        rows = [{"name": name, "address": name, **node} for name, node in nodes.items()]
        everyone = {"env": {"A": "1"}}
        Path("inventory.yaml").write_text(json.dumps({"nodes": rows, **everyone}))
        # What this machine lacks is not looked at: torch, a network.
        return asked(capsys, "launch", "inventory.yaml", "--no-preflight", *words)

    return run


def test_a_node_that_is_down_keeps_its_ranks_and_is_named(
    launch: Launch, down: dict[str, Any]
) -> None:
    nodes = {"n1": HERE, "n2": {**down, "env": {"B": "2"}}}
    code, out, err = launch(nodes, "--print", "torchrun", "--", "train.py")
    assert code == 3
    remark = "not reached: n2 (refused), planned with the values that are the same on all others"
    assert out.startswith(f"# {remark}\n# n1\n")
    assert f"clusterprep: {remark}\n" in err
    second = out.partition("# n2\n")[2].split()
    assert {"A=1", "B=2", "NODE_RANK=1", "--nnodes=2"} <= set(second)


def test_where_the_first_node_is_down_ranks_meet_at_its_address_of_the_inventory(
    launch: Launch, down: dict[str, Any]
) -> None:
    code, out, _ = launch({"n1": down, "n2": HERE}, "--print", "torchrun", "--", "train.py")
    assert code == 3
    assert "# ranks meet at 127.0.0.1, which is n1 in the inventory\n" in out
    assert out.count("--master-addr=127.0.0.1") == 2


def test_a_pod_without_an_image_is_refused_before_a_node_is_asked(
    launch: Launch, down: dict[str, Any]
) -> None:
    code, out, err = launch({"n1": down}, "--print", "k8s", "--", "train.py")
    assert (code, out) == (2, "")
    assert "a pod needs the image of the job (--image REGISTRY/IMAGE:TAG)" in err


def test_without_any_node_nothing_is_printed(launch: Launch, down: dict[str, Any]) -> None:
    code, out, err = launch({"n1": down}, "--print", "hostfile", "--", "train.py")
    assert (code, out, "nothing is printed" in err) == (3, "", True)


# ---------------------------------------------------------------- --spares


def test_a_spare_takes_the_place_of_a_node_that_is_down(
    launch: Launch, down: dict[str, Any]
) -> None:
    nodes = {"n1": down, "n2": HERE}
    code, out, err = launch(nodes, "--spares", "1", "--print", "hostfile", "--", "train.py")
    assert code == 0, err
    assert out.splitlines() == [
        "# the job runs on n2",
        "# left out: n1: ssh.reach unknown on n1",
        "n2 slots=1",
    ]
    assert "clusterprep: left out: n1: ssh.reach unknown on n1\n" in err


def test_the_job_is_started_on_the_nodes_that_are_left(
    launch: Launch, down: dict[str, Any]
) -> None:
    words = ("--spares", "1", "--direct", "--format", "json", "--", "true")
    code, out, _ = launch({"n1": down, "n2": HERE}, *words)
    report = json.loads(out)
    assert (code, report["verdict"]) == (0, "pass")
    assert [row["node"] for row in report["launch"]["ranks"]] == ["n2"]
    assert [row["name"] for row in report["nodes"]] == ["n1", "n2"]
    assert {"the job runs on n2", "left out: n1: ssh.reach unknown on n1"} <= set(report["notices"])


def test_a_spare_that_is_not_needed_is_named(launch: Launch) -> None:
    words = ("--spares", "1", "--direct", "--format", "json", "--", "true")
    code, out, _ = launch({"n1": HERE, "n2": HERE}, *words)
    report = json.loads(out)
    assert (code, [row["node"] for row in report["launch"]["ranks"]]) == (0, ["n1"])
    assert {"the job runs on n1", "not needed: n2"} <= set(report["notices"])


@pytest.mark.parametrize("form", [("--direct",), ("--print", "hostfile")])
def test_with_too_few_nodes_nothing_is_started(
    launch: Launch, down: dict[str, Any], form: tuple[str, ...]
) -> None:
    nodes = {"n1": down, "n2": HERE, "n3": {**down, "address": "127.0.0.2"}}
    code, out, err = launch(nodes, "--spares", "1", *form, "--", "true")
    assert code == 3
    assert "the job needs 2 and 1 node can be used" in " ".join((out + err).split())
    assert "slots" not in out


def test_spares_leave_at_least_one_node(launch: Launch) -> None:
    code, _, err = launch({"n1": HERE}, "--spares", "1", "--", "true")
    assert (code, "--spares: of 1 node none is left for the job" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("--direct", "--print", "mpirun"), "--print"),
        (("--print", "k8s"), "--print"),
        (("--image", "i"), "--image"),
        (("--image", "i", "--print", "torchrun"), "--image"),
    ],
)
def test_options_that_contradict_each_other_are_wrong(
    launch: Launch, words: tuple[str, ...], key: str
) -> None:
    code, out, err = launch({"n1": HERE}, *words, "--", "train.py")
    assert (code, out, key in err) == (2, "", True)
