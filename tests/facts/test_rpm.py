"""Packages as rpm lists them."""

from __future__ import annotations

from clusterprep.facts.rpm import parse_states, shown_version, without_epoch


def test_of_several_versions_the_last_counts_and_locked_packages_are_held() -> None:
    text = "kernel x86_64 5.14.0-1\nkernel x86_64 5.14.0-2\nbind x86_64 32:9.16-1\nodd line\n"
    found = parse_states(text, ("bind",))
    assert found["kernel"].version == "5.14.0-2"
    assert not found["kernel"].held
    assert found["bind.x86_64"].version == "32:9.16-1"
    assert found["bind"].held
    assert "odd" not in found


def test_an_epoch_of_zero_is_none() -> None:
    assert shown_version("0:2.0-1") == "2.0-1"
    assert shown_version("1:2.0-1") == "1:2.0-1"
    assert without_epoch("1:2.0-1") == "2.0-1"
