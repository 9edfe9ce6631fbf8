"""An inventory: it is refused with every mistake and its place, or every node of it can be trusted.

May happen: InputError. Never: another exception, a message that steers the terminal, a name, an
address or a value with control characters, two nodes of one name.
"""

from __future__ import annotations

from collections.abc import Iterator

from clusterprep.errors import InputError
from clusterprep.inventory.load import load_ansible, load_inventory
from clusterprep.model import Inventory
from tests.fuzz.files import texts_of, well_said, written

MOST = 100_000  # nodes


def one(data: bytes) -> None:
    """The first byte says whether the rest is ours, or said to be Ansible's."""
    path = written("inventory.yaml", data[1:])
    load = load_ansible if data[:1] == b"A" else load_inventory
    try:
        inventory = load(path)
    except InputError as error:
        well_said(error, path)
    else:
        trusted(inventory)


def trusted(inventory: Inventory) -> None:
    names = [node.name for node in inventory.nodes]
    assert 0 < len(names) <= MOST
    assert len(set(names)) == len(names)
    assert inventory.cluster.isprintable()
    for node in inventory.nodes:
        for text in (
            node.name,
            node.address,
            node.python,
            node.root,
            node.job_user or "",
            node.ssh.user or "",
        ):
            assert text.isprintable()
        assert not set(node.name) & set("/ \\\"'$`;&|<>")
        assert all(f"{name}{setting.value}".isprintable() for name, setting in node.env.items())
        if len(names) > 1000:
            break  # they are made alike


DICTIONARY = (
    *(
        word.encode()
        for word in (
            "nodes:",
            "name:",
            "address:",
            "groups:",
            "env:",
            "require:",
            "silence:",
            "ssh:",
        )
    ),
    *(
        word.encode()
        for word in (
            "gpus:",
            "[1-16]",
            "[001-999999999]",
            "{",
            "}",
            "- ",
            "\n  ",
            "<<: *a",
            "&a ",
            "*a",
        )
    ),
    *(
        word.encode()
        for word in (
            "!!python/object:",
            "!!binary ",
            "0x7fffffffffffffff",
            ".inf",
            ".nan",
            "~",
            "\x85",
        )
    ),
    *(
        word.encode()
        for word in (
            "all:",
            "hosts:",
            "children:",
            "vars:",
            "ansible_host: ",
            "10.0.0.[1-9]",
            "\u2028",
        )
    ),
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\x1b[31m",
)


def seeds() -> Iterator[bytes]:
    for text in texts_of("inventory/inventories/good/*.yaml", "inventory/inventories/bad/*.yaml"):
        if len(text) < 2048:
            yield b"O" + text
    for text in texts_of("inventory/ansible/inventories/*"):
        yield b"A" + text
