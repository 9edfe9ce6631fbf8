"""Secrets of commands that no person attends."""

from __future__ import annotations

import pytest

from clusterprep.cli.commands.unattended import Secrets, unattended
from clusterprep.errors import InputError
from clusterprep.model import Node, SshSettings

SECRETS = Secrets("open", "sesame", "become_password")


def test_the_passphrase_is_given_once_for_each_key() -> None:
    ask = unattended(SECRETS).passphrase
    assert [ask("a: "), ask("b: "), ask("a: ")] == ["sesame", "sesame", ""]


def test_all_nodes_have_one_password() -> None:
    node = Node("n1", "n1", 0)
    secret = unattended(SECRETS).password([node])(node)
    assert secret is not None
    assert secret.text == "open"
    assert unattended(Secrets("", "", "x")).password([node])(node) is None


def test_no_password_goes_through_slurm() -> None:
    node = Node("n1", "n1", 0, ssh=SshSettings(become=True), transport="slurm")
    with pytest.raises(InputError, match="become_password: no password for sudo goes to n1"):
        unattended(SECRETS).password([node])
