"""Questions to the person at the terminal, and the progress that is shown there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from clusterprep.model import ChangeRow, Node


def password(words: dict[str, Any]) -> Callable[[Node], str | None]:
    secret = os.environ.get("CLUSTERPREP_BECOME_PASSWORD")
    if words.get("ask_become_pass"):
        secret = click.prompt("sudo password", hide_input=True, err=True)
    return lambda node: secret


def ask_passphrase(prompt: str) -> str:
    if not sys.stdin.isatty():
        return ""
    return str(click.prompt(prompt, hide_input=True, err=True, default="", show_default=False))


def confirm(rows: Sequence[ChangeRow]) -> bool:
    for row in rows:
        if row.action != "none":
            click.echo(f"{row.action} {row.target} on {', '.join(row.nodes)}\n{click.unstyle(row.diff)}", err=True)
    return click.confirm("Write this?", err=True)


def progress(words: dict[str, Any]) -> Any:
    from clusterprep.reports.progress import progress_on

    return progress_on(sys.stderr, color=not words["no_color"] and "NO_COLOR" not in os.environ)
