"""A text of settings, nccl.conf above all: lint judges any, and apply keeps what is not its own.

May happen: InputError for what is no text. Never: another exception, a report that is not
well-formed, a foreign line that apply loses, or a second apply that changes what the first
one wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from clusterprep.changes.resources.env import nccl_conf, without_block
from clusterprep.cli.commands.lint import lint
from clusterprep.errors import InputError
from clusterprep.model import EnvValue
from clusterprep.nccl.lint import DIALECTS
from tests.fuzz.files import placed, texts_of
from tests.fuzz.wellformed import FORMATS, checked

NOW = datetime(2026, 11, 21, tzinfo=timezone.utc)
OURS = {
    name: EnvValue(name, value, ("n1",), "")
    for name, value in (("NCCL_DEBUG", "WARN"), ("NCCL_IB_HCA", "=mlx5_0"))
}
ROOM, LONGER = 20_000, 200  # characters of a report: by itself, and per byte that was judged
VERSIONS = ((None, None), ("2.21.5", "2.6.0"), ("2.4", "1.13"))


def one(data: bytes) -> None:
    """The first byte chooses dialect, versions and format."""
    if not data:
        return
    chosen, content = data[0], data[1:]
    dialect = (*DIALECTS, None)[chosen % (len(DIALECTS) + 1)]
    nccl, torch = VERSIONS[chosen % len(VERSIONS)]
    try:
        report = lint(
            "x.conf",
            content,
            NOW,
            dialect=dialect,
            nccl=nccl,
            torch=torch,
            strict=bool(chosen & 128),
        )
    except InputError as error:
        placed(error, "x.conf")
    else:
        text = checked(report, list(FORMATS)[chosen % len(FORMATS)])
        assert len(text) < ROOM + LONGER * len(content)
    kept(content)


def kept(before: bytes) -> None:
    once = nccl_conf(OURS, before)
    assert nccl_conf(OURS, once) == once
    foreign = without_block(before)
    assert once.endswith(foreign)
    assert without_block(once) == foreign


DICTIONARY = (
    *(
        word.encode()
        for word in (
            "NCCL_",
            "NCCL_DEBUG=",
            "NCCL_IB_HCA=^=mlx5_0:1,",
            "NCCL_SOCKET_IFNAME=",
            "export ",
        )
    ),
    *(
        word.encode()
        for word in (
            "# BEGIN clusterprep",
            "# END clusterprep\n",
            "# ",
            "\r\n",
            "=",
            "$(",
            "`",
            "${",
            "<<EOF\n",
        )
    ),
    *(
        word.encode()
        for word in (
            "if ",
            "fi\n",
            "[Service]\n",
            "Environment=",
            "declare -x ",
            "\\\n",
            "'",
            '"',
            "\x1b[2J",
        )
    ),
    *(
        word.encode()
        for word in ("99999999999999999999", "-1", "0x10", "1e9", "\u2028", ";", "&&", "setenv ")
    ),
    b"\xef\xbb\xbf",
    b"\xff",
)


def seeds() -> Iterator[bytes]:
    texts = [
        b"NCCL_DEBUG=INFO\nNCCL_IB_HCA==mlx5_0:1\n",
        b" export NCCL_DEBUG = 'INFO' # why\r\n",
        nccl_conf(OURS, b"A=1"),
    ]
    texts.append(
        b'#!/bin/bash\nif [ -n "$X" ]; then export NCCL_P2P_DISABLE=1; fi\n'
        b"NCCL_DEBUG=INFO torchrun x.py\n"
    )
    texts.append(b'[Service]\nEnvironment="NCCL_DEBUG=INFO" NCCL_IB_TIMEOUT=%h\n')
    for number, text in enumerate([*texts, *texts_of("machines/*/environment.yaml")]):
        for choice in range(len(DIALECTS) + 1):
            yield bytes([choice + 6 * number % 120]) + text[:2048]
