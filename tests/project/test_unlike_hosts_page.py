"""The page about mixed fleets shows the hosts that the lab declares, and no others."""

from __future__ import annotations

from pathlib import Path

from tests.support.lab import unlike

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "mixed-fleets.md"


def test_the_page_has_the_hosts_of_the_lab() -> None:
    text = PAGE.read_text()
    assert unlike.table() in text, "copy the table from here into the page"
    assert unlike.systems_table() in text, "copy the table from here into the page"


def test_every_way_that_the_page_tells_of_is_declared() -> None:
    hosts = unlike.HOSTS
    assert len(set(hosts)) == len(hosts) == 12
    assert {host.become for host in hosts} == {"", "sudo", "sudo-rs", "doas"}
    assert {host.login_shell for host in hosts} == {"bash", "zsh", "fish", "tcsh", "sh"}


def test_systems_differ_in_what_may_differ() -> None:
    for what in ("glibc", "python", "openssh"):
        assert len({getattr(system, what) for system in unlike.SYSTEMS}) == 3, what
