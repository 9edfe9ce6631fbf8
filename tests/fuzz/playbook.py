"""A playbook is refused with every mistake and its place, or gives what its resources take.

May happen: InputError. Never: another exception, or a message that steers the terminal. A step that
was read can be asked for the files that it is about, for its names, and for a text of itself.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from clusterprep.changes.playbook.reading import load_playbook
from clusterprep.changes.playbook.steps import Playbook, fact_names, own_facts
from clusterprep.errors import InputError
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Inventory
from tests.fuzz.files import HERE, texts_of, well_said, written

HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)  # turns or hides what stands there
OTHER_FILES = b"include"  # what is read besides is another input


@functools.cache
def inventory() -> Inventory:
    return load_inventory(HERE / "changes" / "playbook" / "inventory.yaml")


def one(data: bytes) -> None:
    """The first byte says whether it is read for an inventory."""
    if OTHER_FILES in data:
        return
    path = written("playbook.yaml", data[1:])
    known = inventory() if data[:1] == b"I" else None
    try:
        playbook = load_playbook(str(path), known)
    except InputError as error:
        well_said(error, path)
    else:
        meant(playbook)


def meant(playbook: Playbook) -> None:
    fact_names(playbook.steps)
    own_facts(playbook.steps, inventory())
    for step in playbook.steps:
        assert step.line is not None
        list(step.names())
        paths = getattr(step.resource, "paths", None)
        for target in paths(step.params, inventory()) if paths else ():
            assert not HIDDEN.search(target)
            assert ".." not in target.split("/")


DICTIONARY = (
    *(
        word.encode()
        for word in (
            "- file:",
            "- line:",
            "- command:",
            "- sysctl:",
            "- package:",
            "- service:",
            "when: ",
        )
    ),
    *(
        word.encode()
        for word in (
            "{{ node.name }}",
            "{{",
            "}}",
            "path: /etc/x",
            "content: ",
            "../",
            "mode: 0644",
            "not ",
        )
    ),
    *(
        word.encode()
        for word in (
            " and ",
            " or ",
            "(",
            ")",
            " in group ",
            '"',
            "serial: 50%",
            "notify: ",
            "handler: true",
        )
    ),
    *(
        word.encode()
        for word in (
            "tags: [a]",
            "nodes: n[1-2]",
            "name: ",
            "\n  ",
            "&a ",
            "*a",
            "/dev/zero",
            "\u202e",
        )
    ),
)


def seeds() -> Iterator[bytes]:
    for text in texts_of("changes/playbook/wrong/*.yaml", "../playbooks/*.yaml"):
        if len(text) < 4096:
            yield b"I" + text
            yield b"-" + text
