"""Makes docs/man/clusterprep.1: every command with its options, for `man`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from clusterprep.cli.main import cli

EXITS = (
    ("0", "pass: nothing failed"),
    ("1", "fail: a check, a node, a change or a rank failed, or a culprit was found"),
    ("2", "a mistake in the command line, the inventory or a playbook; nothing was done"),
    ("3", "unknown: nothing failed, and something could not be learned"),
    ("4", "refused: another run holds the nodes, or files were edited since"),
    ("5", "with --detailed-exitcode: changes are pending"),
    ("70", "a bug in clusterprep; the message names a log"),
    ("130", "interrupted; what was written is put back"),
)
VARIABLES = (
    ("CLUSTERPREP_BECOME_PASSWORD", "The password of sudo on the nodes."),
    ("CLUSTERPREP_KEY_PASSPHRASE", "The passphrase of the SSH key."),
    ("XDG_STATE_HOME", "Where the history lies; default ~/.local/state."),
)


def page() -> str:
    """Return the page in roff, as man(7) describes it."""
    root = click.Context(cli, info_name="clusterprep")
    lines = [
        '.\\" Written by `make format` from the declarations of the commands.',
        ".TH CLUSTERPREP 1",
        ".SH NAME",
        "clusterprep \\- " + escaped(summary(cli)),
        ".SH SYNOPSIS",
        ".B clusterprep",
        "[\\-h] [\\-\\-version] COMMAND [OPTION ...] [ARGUMENT ...]",
        ".SH DESCRIPTION",
        *paragraphs(cli.help or ""),
        ".SH COMMANDS",
    ]
    for name, command in cli.commands.items():
        lines.extend(_command(click.Context(command, info_name=name, parent=root)))
    lines.append(".SH EXIT STATUS")
    for code, meaning in EXITS:
        lines.extend([".TP", f".B {code}", escaped(meaning)])
    lines.append(".SH ENVIRONMENT")
    for name, meaning in VARIABLES:
        lines.extend([".TP", f".B {name}", escaped(meaning)])
    lines.extend([".SH SEE ALSO", ".BR ssh (1),", ".BR ssh_config (5)"])
    return "\n".join(lines) + "\n"


def summary(command: click.Command) -> str:
    """Return the first sentence of a command's help, without its full stop."""
    return " ".join((command.help or "").split("\n\n", 1)[0].split()).rstrip(".")


def _command(context: click.Context) -> Iterator[str]:
    """Yield the section of a command, and of those below it."""
    command = context.command
    words = context.command_path.removeprefix("clusterprep ")
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SS clusterprep {escaped(words)}"
    yield f".B clusterprep {escaped(words)}"
    yield escaped(usage)
    yield ".PP"
    yield from paragraphs(command.help or "")
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            yield ".TP"
            yield f".B {escaped(_option(param))}"
            yield escaped(param.help or "")
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _command(click.Context(below, info_name=name, parent=context))


def _option(option: click.Option) -> str:
    """Return an option as `--help` writes it; click's own words differ between its releases."""
    words = ", ".join(option.opts)
    if option.secondary_opts:
        words += " / " + ", ".join(option.secondary_opts)
    if option.is_flag or option.count:
        return words
    if isinstance(option.type, click.Choice):
        return f"{words} {'|'.join(option.type.choices)}"
    return f"{words} {option.metavar or 'N'}"


def paragraphs(text: str) -> Iterator[str]:
    """Yield the lines of a text whose paragraphs are parted by empty lines."""
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield ".PP"
        yield escaped(" ".join(paragraph.split()))


def escaped(text: str) -> str:
    r"""Return a text as roff shows it: no escape of it is read, and no line of it is a request."""
    shown = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{shown}" if shown.startswith((".", "'")) else shown
