"""Ansible's inventories load as Ansible lists them, and become nodes, groups and logins of ours."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterprep.errors import InputError
from clusterprep.inventory.ansible import expand
from clusterprep.inventory.ansible_ini import literal
from clusterprep.inventory.load import load_ansible, load_inventory
from tests.inventory.ansible.listed import listed, read, told

HERE = Path(__file__).parent / "inventories"
FILES = sorted([*HERE.glob("*.ini"), *HERE.glob("*.yaml")])
ROOT = Path(__file__).resolve().parents[3]


def test_there_are_five_kinds_of_inventories() -> None:
    assert len(FILES) >= 5


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_ansible_inventory_is_read_as_ansible_lists_it(path: Path) -> None:
    """The .json beside it was printed by `ansible-inventory -i FILE --list`."""
    assert listed(read(path)) == told(json.loads(path.with_name(f"{path.name}.json").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_ansible_still_lists_the_inventories_as_recorded(path: Path) -> None:
    make = subprocess.run(
        ["make", ".venv-bench/.installed"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if make.returncode and not os.environ.get("CI"):
        pytest.skip(f"no Ansible here: {make.stderr.strip().splitlines()[-1]}")
    env = {**os.environ, "ANSIBLE_INVENTORY_ENABLED": "ini,yaml", "HOME": str(ROOT / ".venv-bench")}
    argv = [str(ROOT / ".venv-bench/bin/ansible-inventory"), "-i", str(path), "--list"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert listed(read(path)) == told(json.loads(done.stdout))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_host_becomes_a_node(path: Path) -> None:
    inventory = load_inventory(path)
    assert inventory == load_ansible(path)
    answer = read(path)
    assert [node.name for node in inventory.nodes] == list(answer.hosts)
    for node in inventory.nodes:
        known = {key: var.value for key, var in answer.variables(node.name).items()}
        assert node.address == known.get("ansible_host", node.name)
        assert (node.ssh.user, node.ssh.port) == (
            known.get("ansible_user"),
            known.get("ansible_port"),
        )
        assert node.ssh.identity_file == known.get("ansible_ssh_private_key_file")
        assert node.ssh.become == (known.get("ansible_become") in (True, "yes"))
    groups = {
        name: tuple(answer.members(name))
        for name in answer.groups
        if name not in ("all", "ungrouped")
    }
    assert dict(inventory.groups) == {name: members for name, members in groups.items() if members}


def written(folder: Path, text: str, name: str = "hosts") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def problems(path: Path, **how: Any) -> list[str]:
    with pytest.raises(InputError) as raised:
        (load_ansible if how.get("surely") else load_inventory)(path)
    return [f"{problem.line}: {problem.message}" for problem in raised.value.problems]


def test_a_template_is_an_error_with_its_line_where_it_would_be_used(tmp_path: Path) -> None:
    text = (
        "[gpu]\na ansible_host=10.0.0.1 url='http://{{ x }}'\nb\n"
        "[gpu:vars]\nansible_user={{ me }}\n"
    )
    (found,) = problems(written(tmp_path, text))
    assert found.startswith("5: ansible_user: '{{ me }}' is a template")
    text = (
        "all:\n  hosts:\n    a:\n      ansible_host: '{% if x %}'\n      ansible_port: !vault abc\n"
    )
    assert [line[:2] for line in problems(written(tmp_path, text))] == ["4:", "5:"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gpu]\ngpu[01-16]\n", "2: '[01-16]' is not a range such as [01:16]"),
        ("[gpu]\ngpu[01:6]\n", "2: the ends of a zero-padded range have to be equally long"),
        ("[gpu]\ngpu[1:200000]\n", "2: '[1:200000]' stands for more than"),
        ("[gpu]\ngpu[5:1]\n", "2: the range '[5:1]' runs backwards"),
        ("[gpu]\na b\n", "2: expected key=value behind the host; seen 'b'"),
        ("[gpu]\na x='1\n", "2: No closing quotation"),
        ("[gpu]\na\n[gpu:vars]\nx\n", "4: expected key=value; seen 'x'"),
        ("[gpu]\na\n[cpu:vars]\nx=1\n", "3: there is no group 'cpu'"),
        ("[gpu]\na\n[top:children]\ncpu\n", "4: there is no group 'cpu'"),
        ("[gpu]\na\n[gpu:var]\nx=1\n", "3: '[gpu:var]': expected [group]"),
        ("[a:children]\nb\n[b:children]\na\n", "is below itself"),
        (
            "[gpu]\na ansible_connection=docker\n",
            "2: ansible_connection: 'docker' is no connection",
        ),
        (
            "[gpu]\na ansible_become=yes ansible_become_user=oracle\n",
            "2: ansible_become_user: 'oracle' cannot be done here",
        ),
        ("[gpu]\na ansible_port=ssh\n", "2: ansible_port: expected a number; seen 'ssh'"),
        ("[gpu nodes]\na\n", "1: '[gpu nodes]' is no section"),
        ("[gpu]\n[gpu:vars]\nx=1\n", "1: an inventory of Ansible's without a host"),
        (
            "[gpu]\na ansible_host=10.0.0.1\nb ansible_host=10.0.0.1 ansible_port=23\n",
            "duplicate address '10.0.0.1'",
        ),
        ("all:\n  hosts: [a, b]\n", "2: hosts: expected a mapping, seen a list"),
        ("all:\n  hosts:\n    a: 5\n", "3: variables: expected a mapping, seen a value"),
    ],
)
def test_mistakes_are_told_with_their_lines(tmp_path: Path, text: str, said: str) -> None:
    assert said in "\n".join(problems(written(tmp_path, text)))


def test_a_key_that_ansible_would_pass_over(tmp_path: Path) -> None:
    path = written(tmp_path, "all:\n  host:\n    a:\n  hosts: {b: }\n")
    (found,) = problems(path, surely=True)
    assert "(did you mean 'hosts'?)" in found


def test_a_file_with_hosts_alone_is_one_where_it_is_called_one(tmp_path: Path) -> None:
    path = written(tmp_path, "gpu[1:3] ansible_user=root\n")
    assert [node.name for node in load_ansible(path).nodes] == ["gpu1", "gpu2", "gpu3"]


def test_what_is_passed_over_is_said(tmp_path: Path) -> None:
    (tmp_path / "group_vars" / "all").mkdir(parents=True)
    (tmp_path / "group_vars" / "all" / "vault.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n3962\n")
    path = written(
        tmp_path,
        "[gpu]\na ansible_password=secret "
        "ansible_ssh_common_args='-o StrictHostKeyChecking=no -o PermitLocalCommand=yes'\n"
        "sw1 ansible_connection=ansible.netcommon.network_cli\n",
    )
    inventory = load_inventory(path)
    said = "\n".join(inventory.warnings)
    for word in (
        "vault.yml is encrypted and is not read",
        "ansible_password is not read",
        "StrictHostKeyChecking=no is left out: the host keys of nodes are always verified here",
        "ssh's option PermitLocalCommand is not read",
        "sw1 is left out: the ansible_connection network_cli is none to a Linux machine",
    ):
        assert word in said
    assert "secret" not in said
    assert [node.name for node in inventory.nodes] == ["a"]


def test_an_inventory_of_switches_alone_says_why_no_node_remains(tmp_path: Path) -> None:
    text = "[leaves]\nsw1\nsw2\n[leaves:vars]\nansible_connection=network_cli\n"
    said = "\n".join(problems(written(tmp_path, text)))
    assert "no node remains: sw[1-2] are left out: the ansible_connection network_cli" in said


def test_two_names_of_one_machine_are_one_node(tmp_path: Path) -> None:
    text = "[cpu]\na ansible_host=10.0.0.1\n[gpu]\nb ansible_host=10.0.0.1\nc\n"
    inventory = load_inventory(written(tmp_path, text))
    assert [node.name for node in inventory.nodes] == ["a", "c"]
    assert inventory.groups == {"cpu": ("a",), "gpu": ("a", "c")}
    assert inventory.warnings == ("b is left out: a has the same address and login",)


def test_an_interpreter_that_ansible_finds_by_itself_is_none(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "[gpu]\n"
        "a ansible_python_interpreter=auto_silent\n"
        "b ansible_python_interpreter=/opt/python\n",
    )
    assert [node.python for node in load_inventory(path).nodes] == [
        "/usr/bin/python3",
        "/opt/python",
    ]


@given(st.text(max_size=60))
def test_no_value_stops_the_reader(text: str) -> None:
    literal(text)


@given(st.text(st.sampled_from("ab[]:019,-"), max_size=12))
def test_a_pattern_gives_names_or_says_what_is_wrong(pattern: str) -> None:
    try:
        names, port = expand(pattern)
    except ValueError:
        return
    assert names
    assert port is None or port >= 0
