"""Two nodes of four A10G each wait half an hour for each other: a port, a clock, a name or a version was different."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.command import Answer, clusterprep
from tests.lab import Host, Lab, faults

pytestmark = [pytest.mark.lab, pytest.mark.torch]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    from tests.lab.fixtures import require_lab

    require_lab()
    with Lab(2) as two:
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
    lines = [line if line.split()[1:] != [name] else f"10.77.0.99 {name}" for line in before.splitlines()]
    host.write("/etc/hosts", "\n".join([*lines, ""]))
    return faults.Fault(lambda: host.write("/etc/hosts", before))


def test_every_cause_is_named_before_the_start(lab: Lab) -> None:
    """What a person would find one after the other, each after half an hour, is one list after a second."""
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


def test_without_them_the_job_starts(lab: Lab) -> None:
    answer = clusterprep(lab, "verify")
    assert (answer.code, answer.report["verify"]["verdict"]) == (0, "pass")
