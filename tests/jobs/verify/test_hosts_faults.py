"""Verify of four real hosts with two ranks each.

Every fault of the list at its moment, and two of them at once.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.verify.moments import (
    LATE,
    LONG,
    TIMEOUT,
    Told,
    begun,
    connected,
    ranks,
    verify_during,
    wait_for,
)
from tests.support.command import Answer, clusterprep, finished, started
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault
from tests.support.patience import eventually

pytestmark = [pytest.mark.hosts, pytest.mark.torch]
slow = pytest.mark.slow
START = 60  # seconds; the limit of the start
SILENCE = 30  # seconds without a word from the command after which an agent gives up
Plant = Callable[[Lab], Fault | None]


@pytest.fixture
def lab(lab4: Lab) -> Iterator[Lab]:
    """Four hosts on which no rank is left.

    A host whose link was down hears nothing of the end, so its agent ends them after its silence.
    """
    yield lab4
    for host in lab4.hosts:
        assert eventually(lambda host=host: ranks(host) == [], SILENCE + 10)


def tell(name: str, signum: signal.Signals) -> Plant:
    """A signal to the first rank of a host."""

    def plant(lab: Lab) -> None:
        host = lab.host(name)
        host.run(["kill", f"-{signum.name[3:]}", str(ranks(host)[0])])

    return plant


def on(name: str, fault: Callable[..., Fault], *words: Any, **more: Any) -> Plant:
    return lambda lab: fault(lab.host(name), *words, **more)


def between(one: str, other: str) -> Plant:
    return lambda lab: faults.drop_pair(lab.host(one), lab.host(other))


def meeting(host: Host) -> bool:
    """A rank of n3 has reached the store, and just now begins to look for the others."""
    return host.name != "n3" or ":29500" in host.run(["ss", "-tnH", "state", "established"]).stdout


@contextlib.contextmanager
def trial(
    lab: Lab,
    *during: Plant,
    before: tuple[Plant, ...] = (),
    when: Callable[[Host], bool] = begun,
    sizes: Sequence[str] = LONG,
) -> Iterator[Told]:
    """A verify with these faults, which are taken back at the end."""
    undo = contextlib.ExitStack()

    def plant() -> None:
        for one in during:
            if (fault := one(lab)) is not None:
                undo.enter_context(fault)

    with undo:
        for one in before:
            if (fault := one(lab)) is not None:
                undo.enter_context(fault)
        yield verify_during(lab, plant, when, ("8", "1M") if when is begun else sizes)


def node(name: str) -> tuple[str, list[str], int | None]:
    return ("node", [name], None)


def link(one: str, other: str) -> tuple[str, list[str], int | None]:
    return ("link", [one, other], None)


def first_rank(name: str) -> tuple[str, list[str], int | None]:
    return ("rank", [name], 2 * (int(name[1:]) - 1))


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
NEW_CONNECTIONS = (1024, 65535)

AT_THE_START = [
    pytest.param(
        [on("n2", faults.drop_ports, *NEW_CONNECTIONS)], node("n2"), id="new-connections-dropped"
    ),
    pytest.param([between("n2", "n4")], link("n2", "n4"), id="pair-dropped", marks=slow),
    pytest.param([between("n1", "n4")], link("n1", "n4"), id="store-dropped", marks=slow),
    pytest.param([tell("n3", KILL)], first_rank("n3"), id="rank-killed", marks=slow),
    pytest.param([tell("n3", STOP)], first_rank("n3"), id="rank-stopped", marks=slow),
]


@pytest.mark.parametrize(("plants", "wanted"), AT_THE_START)
def test_after_the_checks_and_before_the_rendezvous(
    lab: Lab, plants: list[Plant], wanted: Any
) -> None:
    with trial(lab, *plants) as told:
        assert (told.answer.code, told.culprits) == (1, [wanted])
        start = next(
            s["seconds"] for s in told.answer.report["verify"]["stages"] if s["name"] == "start"
        )
        assert told.seconds < start + TIMEOUT + LATE


@pytest.mark.timeout(300)
def test_a_slow_node_of_four_is_named_within_thirty_seconds(lab: Lab) -> None:
    """With the sizes that are the default, of which the largest would take a minute and a half."""
    with faults.slow(lab.host("n3"), "20mbit"):
        process = started(lab, "verify", inventory=lab.inventory())
        try:
            wait_for(lambda: all(has_joined(host) for host in lab.hosts), 90)
            begin = time.monotonic()
            answer = finished(process, timeout=200)
            seconds = time.monotonic() - begin
        finally:
            process.kill()
    verify = answer.report["verify"]
    assert [(one["kind"], one["nodes"]) for one in verify["culprits"]] == [("node", ["n3"])]
    assert (answer.code, answer.blamed("net.tcp_bw")) == (1, ["n3"])
    (speed,) = answer.findings("nccl.busbw_multi", "fail")
    assert (speed["severity"], speed["nodes"]) == ("error", ["n3"])
    assert "all_reduce 64 MiB was scaled down to" in verify["message"]
    assert seconds < 30


def has_joined(host: Host) -> bool:
    """Whether the rank of a host has reached the others, which its first collective follows."""
    return bool(ranks(host)) and connected(host, least=4)


@slow
def test_one_direction_of_a_pair_is_told(lab: Lab) -> None:
    with trial(lab, lambda lab: faults.drop_direction(lab.host("n2"), lab.host("n4"))) as told:
        assert told.culprits == [link("n2", "n4")]
        (culprit,) = told.answer.report["verify"]["culprits"]
        assert (culprit["from"], culprit["to"]) == ("n2", "n4")


@slow
def test_a_rank_that_is_killed_in_the_rendezvous(lab: Lab) -> None:
    with trial(lab, tell("n3", KILL), when=meeting) as told:
        assert told.culprits == [first_rank("n3")]


IN_MID_RUN = [
    pytest.param(tell("n2", KILL), first_rank("n2"), id="rank-killed"),
    pytest.param(tell("n2", STOP), first_rank("n2"), id="rank-stopped"),
    pytest.param(on("n4", faults.link_down), node("n4"), id="link-down"),
]


@slow
@pytest.mark.parametrize(("plant", "wanted"), IN_MID_RUN)
def test_in_mid_run(lab: Lab, plant: Plant, wanted: Any) -> None:
    with trial(lab, plant, when=connected) as told:
        assert (told.answer.code, told.culprits) == (1, [wanted])
        assert told.seconds < TIMEOUT + LATE


@slow
def test_a_pair_that_is_dropped_in_mid_run(lab: Lab) -> None:
    """Where ranks use the pair they hang, where they do not all pass.

    Either way it is this link.
    """
    with trial(lab, between("n2", "n4"), when=connected, sizes=["8", *["1M"] * 60]) as told:
        assert (told.answer.code, told.culprits) == (1, [link("n2", "n4")])


TWO = [
    pytest.param(
        [on("n4", faults.slow, "20mbit")],
        [tell("n2", KILL)],
        begun,
        [node("n4"), first_rank("n2")],
        id="slow-and-killed",
    ),
    pytest.param(
        [],
        [tell("n3", STOP), between("n2", "n4")],
        connected,
        [first_rank("n3"), link("n2", "n4")],
        id="stopped-and-pair",
    ),
    pytest.param(
        [on("n4", faults.loss, 0.02, spare_ssh=True)],
        [tell("n2", KILL)],
        begun,
        [node("n4"), first_rank("n2")],
        id="loss-and-killed",
    ),
    pytest.param(
        [],
        [tell("n2", KILL), on("n4", faults.link_down)],
        connected,
        [first_rank("n2"), node("n4")],
        id="killed-and-link-down",
    ),
    pytest.param(
        [],
        [on("n2", faults.drop_ports, *NEW_CONNECTIONS), tell("n3", STOP)],
        begun,
        [node("n2"), first_rank("n3")],
        id="connections-and-stopped",
    ),
    pytest.param(
        [],
        [between("n1", "n2"), between("n3", "n4")],
        begun,
        [link("n1", "n2"), link("n3", "n4")],
        id="two-pairs",
    ),
]


@slow
@pytest.mark.parametrize(("before", "during", "when", "wanted"), TWO)
def test_two_at_once(
    lab: Lab, before: list[Plant], during: list[Plant], when: Any, wanted: list[Any]
) -> None:
    with trial(lab, *during, before=tuple(before), when=when) as told:
        assert sorted(told.culprits, key=str) == sorted(wanted, key=str)
        assert told.answer.code == 1
        assert told.seconds < START + TIMEOUT + LATE


@slow
def test_a_pair_that_is_dropped_before_the_start_is_found_first_and_no_rank_starts(
    lab: Lab,
) -> None:
    with faults.drop_pair(lab.host("n2"), lab.host("n4")):
        found = clusterprep(lab, "verify", "--nproc-per-node", "2")
    assert found.code == 1
    assert [stage["name"] for stage in found.report["verify"]["stages"]] == ["reach"]
    assert {tuple(one["nodes"]) for one in found.report["verify"]["culprits"]} == {("n2", "n4")}
    assert "net.ports" in found.failed()


@slow
def test_a_node_with_another_torch_is_named(lab: Lab) -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    version = Path(spec.origin).with_name("version.py")
    other = version.read_text().replace("2.13.0", "2.12.1")
    with faults.file_over(lab.host("n3"), str(version), other):
        found = clusterprep(lab, "verify", "--nproc-per-node", "2")
    assert (found.code, found.blamed("torch.version")) == (1, ["n3"])
    assert found.report["verify"]["culprits"][0]["nodes"] == ["n3"]


@slow
def test_a_smaller_mtu_of_a_host_is_named_and_spoils_no_sum(lab: Lab) -> None:
    checked, tried = _with_mtu(lab, faults.mtu)
    assert "n3" in checked.blamed("eth.mtu")
    assert (tried.code, tried.report["verify"]["verdict"]) == (0, "pass")
    assert tried.blamed("nccl.correct", "pass") == [host.name for host in lab.hosts]


@slow
def test_a_smaller_mtu_of_a_switch_port_is_named_and_so_is_what_hangs_on_it(lab: Lab) -> None:
    """Packets that are too large vanish there.

    Some collectives get through, and some wait for ever.
    """
    checked, tried = _with_mtu(lab, faults.switch_mtu)
    assert "n3" in checked.blamed("eth.path_mtu")
    named = [culprit["nodes"] for culprit in tried.report["verify"]["culprits"]]
    assert all("n3" in nodes for nodes in named)
    assert (tried.code == 0) == (named == [])


def _with_mtu(lab: Lab, fault: Callable[..., Fault]) -> tuple[Answer, Answer]:
    """A check and a verify while the MTU of n3 or of its port is 1400."""
    with fault(lab.host("n3"), 1400):
        checked = clusterprep(lab, "check", "--only", "eth.")
        inventory = lab.inventory(verify={"sizes": ["8", "1M"], "timeout": 20})
        return checked, clusterprep(lab, "verify", "--nproc-per-node", "2", inventory=inventory)


def healthy(found: Answer) -> bool:
    return found.code == 0 and found.report["verify"]["culprits"] == []


@slow
@pytest.mark.timeout(1800)
def test_fifty_times_nobody_is_blamed_beside_a_busy_processor(lab: Lab) -> None:
    burners = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(2)]
    for burner in burners:
        burner.start()
    try:
        inventory = lab.inventory(verify={"sizes": ["8", "1M"], "timeout": 60})
        bad = [
            found.report["verify"]
            for found in (
                clusterprep(lab, "verify", "--nproc-per-node", "2", inventory=inventory)
                for _ in range(50)
            )
            if not healthy(found)
        ]
    finally:
        for burner in burners:
            burner.kill()
            burner.join()
    assert bad == []


def _burn() -> None:
    """Busy for half of the time, in pieces that a scheduler notices."""
    while True:
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            pass
        time.sleep(0.05)
