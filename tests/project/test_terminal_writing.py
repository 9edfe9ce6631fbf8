"""All that goes to the terminal goes through cli/output.py and the progress display, which clean.

A stray `print` of a node's words would let the node write escapes to the terminal.
"""

from __future__ import annotations

import ast

import pytest

from tests.project.test_architecture import MODULES, calls, names_used, none, place, tree_of

# Modules that run on nodes, or in training scripts, have no terminal of ours.
ELSEWHERE = ("remote.agent", "guard")
OUTPUT = "cli.output"
PRINTING = frozenset(
    "print click.echo click.secho click.echo_via_pager click.style click.unstyle os.write "
    "sys.stdout.write sys.stdout.writelines sys.stderr.write sys.stderr.writelines "
    "sys.__stdout__.write sys.__stderr__.write warnings.warn logging.warning".split()
)
STREAMS = frozenset({"sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"})
# What does not write: asking what a stream is.
ASKING = ("isatty", "encoding", "flush", "fileno")
# Modules that write bytes to pipes of their own.
PIPES = ("remote.transports.slurm_step", "runtime.signals")
# Uses of a stream itself, by module: what it is handed to, or what is asked of it.
HANDED = {
    "cli.terminal": "the progress display gets stderr and cleans each line",
    "cli.exit": "streams are flushed, or dropped where their reader has left",
    "survey.parse_process": "is the main module of a process whose stdout is a pipe to this one",
}
# Modules that write to a stream that they were given, and the tests that show that they clean.
WRITERS = {
    "reports.progress": "Lines._say cleans",
    "reports.live": "LiveLine._say cleans, and Text of rich is no markup",
    "reports.page": "renders into a text, each of whose parts is clean",
}


def is_ours(module: str) -> bool:
    return not module.startswith(ELSEWHERE) and module != OUTPUT


def test_only_one_module_prints() -> None:
    found = []
    for module in filter(is_ours, MODULES):
        for name, call in calls(module):
            if name in PRINTING and module not in PIPES:
                found.append(f"{place(module, call.lineno)}: {name}")
    none(found, "text for the terminal goes through cli/output.py:")


def test_no_other_module_takes_the_streams() -> None:
    found = []
    for module in filter(is_ours, MODULES):
        if module in HANDED:
            continue
        for name, line in names_used(module):
            taken = [
                stream for stream in STREAMS if name == stream or name.startswith(f"{stream}.")
            ]
            if taken and name.rpartition(".")[2] not in ASKING:
                found.append(f"{place(module, line)}: {name}")
    none(found, "stdout and stderr belong to cli/output.py:")


def test_consoles_are_made_where_each_part_is_cleaned() -> None:
    found = []
    for module in filter(is_ours, MODULES):
        if module in WRITERS:
            continue
        for name, call in calls(module):
            last = name.rpartition(".")[2]
            if last in ("Console", "Live") or name.endswith(("_stream.write", "_console.print")):
                found.append(f"{place(module, call.lineno)}: {name}")
    none(found, "text of nodes is cleaned before rich or a stream gets it:")


@pytest.mark.parametrize("module", sorted(WRITERS))
def test_each_writer_imports_what_cleans(module: str) -> None:
    names = {
        alias.name
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.ImportFrom) and node.module == "clusterprep.reports.plain"
        for alias in node.names
    }
    assert names & {"clean", "safe_text", "to_ascii"}, names


def test_questions_are_constants_or_cleaned() -> None:
    """click writes a prompt as it is."""
    found = []
    for module in filter(is_ours, MODULES):
        for name, call in calls(module):
            if name not in ("click.prompt", "click.confirm", "input", "getpass.getpass"):
                continue
            question = call.args[0]
            is_cleaned = (
                isinstance(question, ast.Call)
                and isinstance(question.func, ast.Name)
                and question.func.id == "clean"
            )
            if not isinstance(question, ast.Constant) and not is_cleaned:
                found.append(f"{place(module, call.lineno)}: {name}")
    none(found, "a question is a constant, or goes through clean():")
