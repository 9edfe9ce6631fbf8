"""Inventories that a program makes: listed by ansible-inventory, or refused with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.errors import InputError
from clusterprep.inventory.load import load_inventory

# The shape of `ansible-inventory --list` of ansible-core 2.19; composed.
LISTING = (
    '{"_meta": {"hostvars": {"i-1": {"ansible_host": "10.0.0.1", "ansible_user": "ec2-user",'
    ' "x": {"__ansible_vault": "$ANSIBLE_VAULT;1.1"}}, "i-2": {"ansible_port": 2222}},'
    ' "profile": "inventory_legacy"}, "all": {"children": ["ungrouped", "gpu"]},'
    ' "gpu": {"hosts": ["i-1", "i-2"]}}'
)


def program(folder: Path, text: str) -> None:
    """Put a program called ansible-inventory into a folder."""
    path = folder / "bin" / "ansible-inventory"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that names a plug-in; no ansible-inventory is on the path."""
    tmp_path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    path = tmp_path / "aws_ec2.yml"
    path.write_text("plugin: amazon.aws.aws_ec2\nregions: [us-east-1]\n")
    return path


def test_a_plugin_is_listed(tmp_path: Path, plugin: Path) -> None:
    program(tmp_path, f"[ \"$*\" = '-i {plugin} --list' ] && echo '{LISTING}'")
    inventory = load_inventory(plugin)
    first, second = inventory.nodes
    assert (first.name, first.address, first.ssh.user) == ("i-1", "10.0.0.1", "ec2-user")
    assert (second.name, second.ssh.port) == ("i-2", 2222)
    assert inventory.groups == {"gpu": ("i-1", "i-2")}


def test_a_script_is_listed_and_not_run_by_us(tmp_path: Path, plugin: Path) -> None:
    plugin.write_text("#!/usr/bin/env false\n")
    plugin.chmod(0o755)
    program(tmp_path, f"echo '{LISTING}'")
    assert len(load_inventory(plugin).nodes) == 2


def test_a_folder_with_a_plugin_is_listed_as_a_whole(tmp_path: Path, plugin: Path) -> None:
    folder = tmp_path / "inventory"
    folder.mkdir(mode=0o755)
    plugin.rename(folder / "aws_ec2.yml")
    (folder / "static").write_text("[cpu]\nc1\n")
    program(tmp_path, f"[ \"$2\" = '{folder}' ] && echo '{LISTING}'")
    assert len(load_inventory(folder).nodes) == 2


def test_a_saved_listing_is_an_inventory(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    path.write_text(LISTING)
    assert [node.name for node in load_inventory(path).nodes] == ["i-1", "i-2"]


def test_without_ansible_it_is_said_what_to_do(plugin: Path) -> None:
    with pytest.raises(InputError) as raised:
        load_inventory(plugin)
    assert "made by a program, which ansible-inventory runs; it is not installed" in str(
        raised.value
    )
    assert f"ansible-inventory -i {plugin} --list > FILE" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo no such region >&2; exit 4", "ansible-inventory --list failed: no such region"),
        ("echo []", "this is not what ansible-inventory --list prints"),
        ('echo \'{"_meta": {"hostvars": 5}}\'', "this is not what"),
        ('echo \'{"_meta": {"hostvars": {}}}\'', "without a host"),
    ],
)
def test_what_goes_wrong_is_said(tmp_path: Path, plugin: Path, text: str, said: str) -> None:
    program(tmp_path, text)
    with pytest.raises(InputError, match=said):
        load_inventory(plugin)


def test_a_vault_in_the_listing_is_refused_where_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    path.write_text(LISTING.replace('"x":', '"ansible_port":'))
    with pytest.raises(InputError, match="ansible_port: only Ansible can read !vault"):
        load_inventory(path)


def test_no_program_is_run_from_a_place_that_everybody_may_write_to(
    tmp_path: Path, plugin: Path
) -> None:
    program(tmp_path, f"echo '{LISTING}'")
    plugin.chmod(0o777)
    with pytest.raises(InputError, match="every user may write to"):
        load_inventory(plugin)


def test_mistakes_name_the_file_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("[gpu]\na\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "gpu.yml").write_text(
        "x: 1\nansible_user: '{{ vault_user }}'\nansible_port: 99999\n"
    )
    with pytest.raises(InputError) as raised:
        load_inventory("hosts")
    assert [f"{problem.file}:{problem.line}" for problem in raised.value.problems] == [
        "group_vars/gpu.yml:2",
        "group_vars/gpu.yml:3",
    ]
