"""Two nodes of four A10G each wait half an hour for each other.

The cause is a port, a clock, a name or a version that differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.incidents.families import FAMILIES
from tests.jobs.launch import TABLE, tables
from tests.support.command import Answer, clusterprep
from tests.support.lab import Host, Lab, faults

pytestmark = [pytest.mark.hosts, pytest.mark.torch]


@pytest.fixture(scope="module", params=FAMILIES)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    from tests.support.lab.fixtures import require_lab

    require_lab()
    with Lab(2, ipv6=request.param) as two:
        yield two


def severities(answer: Answer, check: str) -> set[tuple[str, tuple[str, ...]]]:
    return {(f["severity"], tuple(f["nodes"])) for f in answer.findings(check)}


def other_torch(host: Host) -> faults.Fault:
    """An environment that was made a year ago, on this host alone."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).with_name("version.py")
    lines = [
        "__version__ = '2.4.0+cpu'" if line.startswith("__version__") else line
        for line in path.read_text().splitlines()
    ]
    return faults.file_over(host, str(path), "\n".join([*lines, ""]))


def wrong_name(host: Host, name: str) -> faults.Fault:
    """An old address of another host in this one's /etc/hosts."""
    before = host.read("/etc/hosts")
    lines = [
        line if line.split()[1:] != [name] else f"10.77.0.99 {name}" for line in before.splitlines()
    ]
    host.write("/etc/hosts", "\n".join([*lines, ""]))
    return faults.Fault(lambda: host.write("/etc/hosts", before))


def test_every_cause_is_named_before_the_start(lab: Lab) -> None:
    """Faults that take a person half an hour each, one by one, are one list in a second."""
    first, second = lab.hosts
    with (
        faults.drop_port(first, 29500),
        faults.clock(second, 5.0),
        wrong_name(second, first.name),
        other_torch(second),
    ):
        answer = clusterprep(lab, "check")
    assert answer.code == 1
    assert answer.blamed("time.offset") == [second.name]
    assert severities(answer, "torch.version") == {("error", (first.name, second.name))}
    assert set(answer.blamed("name.resolve")) <= {first.name, second.name}
    assert answer.blamed("name.resolve")
    (port,) = answer.findings("net.ports")
    assert set(port["nodes"]) == {first.name, second.name}
    assert "29500" in port["seen"]


SET_BY_HAND = """\
export NCCL_VERSION=2.11.4-1
export NCCL_SOCKET_IFNAME=eth0
export NCCL_DEBUG=INFO
export NCCL_NSOCKS_PERTHREAD=4
export NCCL_SOCKET_NTHREADS=4
"""


def test_of_what_people_set_the_line_without_effect_is_named(lab: Lab) -> None:
    """Four sockets on each of four threads are within the limit: nothing is said of them."""
    planted = [faults.written(host, "/root/.bashrc", SET_BY_HAND) for host in lab.hosts]
    try:
        answer = clusterprep(lab, "check", "--only", "env.no_effect")
    finally:
        for fault in planted:
            fault.undo()
    (found,) = answer.findings("env.no_effect")
    assert (found["severity"], found["nodes"]) == ("warning", [host.name for host in lab.hosts])
    assert found["seen"].startswith("NCCL_VERSION=2.11.4-1 from /root/.bashrc line 1 ")
    assert "NCCL does not read it" in found["message"]


def test_without_leftover_variables_the_job_starts(lab: Lab) -> None:
    answer = clusterprep(lab, "verify")
    assert (answer.code, answer.report["verify"]["verdict"]) == (0, "pass")


LEFT = "export NODE_RANK=1 WORLD_SIZE=4 MASTER_ADDR=old-master\n"


def test_ranks_that_an_earlier_job_left_behind_are_named_and_launch_takes_none_of_them(
    lab: Lab,
) -> None:
    """«Invalid rank requested .

    7/4»: a node asked for ranks of a world that another number of nodes would have.
    """
    with faults.written(lab.hosts[0], "/root/.bashrc", LEFT):
        before = clusterprep(
            lab, "check", "--only", "launch.ranks", inventory=lab.inventory(nproc_per_node=4)
        )
        found = clusterprep(lab, "launch", "--", TABLE, inventory=lab.inventory(nproc_per_node=4))
    assert (before.code, before.blamed("launch.ranks")) == (1, ["n1"] * 3)
    assert {f["seen"].partition(" from ")[0] for f in before.findings("launch.ranks")} == {
        "NODE_RANK=1",
        "WORLD_SIZE=4",
        "MASTER_ADDR=old-master",
    }
    assert found.code == 0
    rows = tables(found)
    assert [(row["node"], row["NODE_RANK"], row["LOCAL_RANK"], row["RANK"]) for row in rows] == [
        (f"n{node + 1}", str(node), str(local), str(4 * node + local))
        for node in (0, 1)
        for local in range(4)
    ]
    assert {(row["WORLD_SIZE"], row["MASTER_ADDR"], row["MASTER_PORT"]) for row in rows} == {
        ("8", lab.hosts[0].address, "29500")
    }
