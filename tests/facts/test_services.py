"""Answers of systemctl, and of nodes without systemd."""

from __future__ import annotations

import pytest

from clusterprep.facts.services import parse_states, parse_units
from clusterprep.model import Absent, Inventory, Node
from clusterprep.survey import registry

SHOWN = """\
Id=ssh.service
LoadState=loaded
ActiveState=active

Id=chrony.service
LoadState=loaded
ActiveState=failed

Id=slurmd.service
LoadState=not-found
ActiveState=inactive

Id=dcgm.service
LoadState=masked
ActiveState=inactive
"""
NO_SYSTEMD = "System has not been booted with systemd as init system (PID 1). Can't operate.\n"
NO_BUS = "Failed to connect to bus: No such file or directory\n"


def answer(out: str = "", err: str = "", code: int = 0) -> dict[str, object]:
    return {"code": code, "out": out, "err": err}


def test_each_unit_has_its_state() -> None:
    assert parse_states(answer(SHOWN)) == (
        ("ssh.service", "active"),
        ("chrony.service", "failed"),
        ("slurmd.service", "not-found"),
        ("dcgm.service", "masked"),
    )


def test_a_unit_that_was_masked_while_it_ran_runs() -> None:
    assert parse_states(answer("Id=a.service\nLoadState=masked\nActiveState=active\n")) == (
        ("a.service", "active"),
    )


@pytest.mark.parametrize("err", [NO_SYSTEMD, NO_BUS])
def test_without_systemd_nothing_is_known(err: str) -> None:
    assert parse_states(answer(err=err, code=1)) == Absent("systemd is not running", err.strip())


@pytest.mark.parametrize(
    "given",
    [
        answer(SHOWN, code=1),
        answer(""),
        answer(SHOWN[:-3]),
        answer("Id=ssh.service\nLoadState=loaded\n"),
        answer("Id=ssh.service\nLoadState=loaded\nActiveState=\n"),
        answer("nonsense\n"),
    ],
)
def test_what_is_cut_or_strange_is_not_understood(given: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError)):
        parse_states(given)


def test_where_nothing_is_required_nothing_is_asked() -> None:
    node = Node("n1", "n1", 0)
    fact = registry.facts()["svc.states"]
    assert fact.reads(node, Inventory("test", (node,))) == ()
    assert fact.parse() == Absent("not_applicable", "no services are required here")


def test_all_units_are_asked_in_one_call() -> None:
    node = Node("n1", "n1", 0, require={"svc.required": "sshd, chronyd,docker.socket"})
    (read,) = registry.facts()["svc.states"].reads(node, Inventory("test", (node,)))
    assert read.args[-3:] == ("sshd.service", "chronyd.service", "docker.socket")


@pytest.mark.parametrize("text", ["", "--now", "a b", "sshd,", "$(reboot)", "a;b", "../x", "\x07"])
def test_what_is_no_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected names of systemd units"):
        parse_units(text)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("getty@tty1", ("getty@tty1.service",)),
        ("raid.mount,sshd,sshd", ("raid.mount", "sshd.service")),
        ("nvidia-fabricmanager", ("nvidia-fabricmanager.service",)),
    ],
)
def test_a_name_without_a_type_is_a_service(text: str, units: tuple[str, ...]) -> None:
    assert parse_units(text) == units
