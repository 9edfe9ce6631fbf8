"""What a bundle asks nodes: configuration is read below the root of each node."""

from __future__ import annotations

from pathlib import Path

from clusterprep.cli.commands.evidence import ask_nodes
from clusterprep.cli.commands.session import Invocation
from clusterprep.history.applied import AppliedEnvironments
from clusterprep.history.runs import Runs
from clusterprep.model import Inventory, Node
from clusterprep.reports.bundle.node_answers import text_of
from clusterprep.reports.bundle.sources import sources_for
from clusterprep.runtime.deadline import Deadline
from clusterprep.survey.settings import RunSettings
from tests.support.commands import Quiet


def asking(inventory: Inventory, folder: Path) -> Invocation:
    return Invocation(
        settings=RunSettings("bundle"),
        inventory=inventory,
        steps=(),
        transports={},
        password=lambda node: None,
        watch=Quiet(),
        deadline=Deadline(),
        confirm=lambda rows: True,
        applied=AppliedEnvironments(folder),
        runs=Runs(folder),
        run="20261121-090000-0000",
    )


def test_configuration_is_read_below_the_root_of_each_node(tmp_path: Path) -> None:
    for name in ("n1", "n2"):
        (tmp_path / name / "etc").mkdir(parents=True)
        (tmp_path / name / "etc/nccl.conf").write_text(f"NCCL_DEBUG={name}\n")
    (tmp_path / "n1/etc/os-release").write_text("ID=other\n")
    nodes = (
        Node("n1", "127.0.0.1", 0, transport="local", root=str(tmp_path / "n1")),
        Node("n2", "127.0.0.1", 1, transport="local", root=f"{tmp_path / 'n2'}/"),
        Node("n3", "127.0.0.1", 2, transport="local"),
    )
    inventory = Inventory("rooted", nodes)
    sources = sources_for(inventory, names=False)
    asked = tuple(source for source in sources if source.is_configuration)
    evidence, _, timed_out = ask_nodes(asking(inventory, tmp_path), ("n1", "n2", "n3"), asked)
    assert not timed_out
    seen = {}
    titles = {}
    for node in evidence:
        for answer in node.answers:
            seen[node.node, answer.source.name] = (answer.state, text_of(answer)[0])
            titles[node.node, answer.source.name] = answer.source.title
    assert seen["n1", "file-etc-nccl.conf"] == ("present", "NCCL_DEBUG=n1\n")
    assert seen["n2", "file-etc-nccl.conf"] == ("present", "NCCL_DEBUG=n2\n")
    assert seen["n1", "os-release"] == ("present", "ID=other\n")
    assert seen["n2", "os-release"][0] == "absent"
    assert seen["n3", "os-release"] == ("present", Path("/etc/os-release").read_text())
    below = f"settings in /etc/nccl.conf, below the root {tmp_path / 'n1'}"
    assert titles["n1", "file-etc-nccl.conf"] == below
    assert titles["n3", "file-etc-nccl.conf"] == "settings in /etc/nccl.conf"
