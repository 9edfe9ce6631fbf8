"""The manual page: up to date, complete, and read by `man` without a warning."""

from __future__ import annotations

import os
import shutil
import subprocess

import click
import pytest

from clusterprep.cli.main import cli
from tests.support import man_page
from tests.support.readme import MAN


def test_the_page_is_up_to_date() -> None:
    assert MAN.read_text() == man_page.page(), "make format"


@pytest.mark.parametrize("text", [".TH x", "'br", "a\\fBb", "--x"])
def test_no_text_is_read_as_roff(text: str) -> None:
    shown = man_page.escaped(text)
    assert not shown.startswith((".", "'"))
    assert "\\f" not in shown


@pytest.mark.machine
@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_man_shows_every_command_and_option() -> None:
    env = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "400"}
    done = subprocess.run(
        ["man", "--warnings=w", "-l", str(MAN)], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    for name, command in cli.commands.items():
        section = done.stdout.split(f"\n   clusterprep {name}\n", 1)[1].split("\n   clusterprep ")[
            0
        ]
        assert man_page.summary(command) in section
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.opts[-1] in section
