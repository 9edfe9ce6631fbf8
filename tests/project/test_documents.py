"""Every command in README and docs/ is one of the tool's, and each is run, or says why not."""

from __future__ import annotations

import re

import click
import pytest

from clusterprep.cli.main import cli
from tests.support import documents
from tests.support.document_runs import EXPECTED, NOT_RUN, OF_REMEDIES
from tests.support.documents import Command, blocks, commands

FOUND = commands()
IN_BLOCKS = [found for found in FOUND if found.in_block]
TO_RUN = {
    found.typed: found
    for found in IN_BLOCKS
    if found.page not in OF_REMEDIES and not found.is_synopsis
}
PLACEHOLDERS = {"COMMAND"}  # words that stand for every command


def place(found: Command) -> str:
    return f"{found.page}:{found.line}"


def wrong(found: Command) -> str | None:
    """Return what is wrong with a command, or None. Files need not exist."""
    # A test has no standard input to open, so that is a file here.
    words = ["FILE" if word == "-" else word.strip("[]") for word in found.words if word != "…"]
    name, *rest = words
    if name in PLACEHOLDERS:
        return None
    command = cli.commands.get(name)
    if command is None:
        return f"there is no command {name}"
    # In sentences and in a synopsis words are missing, and placeholders stand for values.
    is_whole = found.in_block and not found.is_synopsis
    try:
        command.make_context(name, rest, resilient_parsing=not is_whole)
    except click.exceptions.Exit:
        return None
    except click.UsageError as error:
        message = error.format_message()
        return None if "No such file" in message else message
    return None


@pytest.mark.parametrize("found", FOUND, ids=place)
def test_every_command_of_a_document_is_understood(found: Command) -> None:
    assert wrong(found) is None, f"{place(found)}: {found.typed}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("chekc", "cluster.yaml"), "no command"),
        (("check", "cluster.yaml", "--limt", "n1"), "--limt"),
        (("apply", "cluster.yaml", "--on-failure", "stopp"), "stopp"),
        (("copy", "site.conf"), "Missing argument"),
    ],
)
def test_a_command_that_is_none_is_found(words: tuple[str, ...], said: str) -> None:
    assert said in (wrong(Command("page", 1, "", words, in_block=True)) or "")


def test_every_command_of_a_block_is_run_or_says_why_not() -> None:
    assert {*TO_RUN} - {*EXPECTED} - {*NOT_RUN} == set(), "tests/support/document_runs.py"
    assert ({*EXPECTED} | {*NOT_RUN}) - {*TO_RUN} == set(), "no document has these any more"
    assert {*EXPECTED} & {*NOT_RUN} == set()
    assert all(NOT_RUN.values())


def test_reasons_name_tests_that_exist() -> None:
    for reason in NOT_RUN.values():
        for path in re.findall(r"tests/[\w/]+(?:\.py)?", reason):
            assert (documents.ROOT / path).exists(), reason


def test_make_has_every_target_of_a_document() -> None:
    makefile = (documents.ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    asked = set()
    for page in documents.PAGES:
        text = page.read_text(encoding="utf-8")
        asked |= set(re.findall(r"`(?:sudo )?make ([a-z-]+)", text))
        for _, line in blocks(text):
            asked |= set(re.findall(r"^(?:sudo )?make ([a-z-]+)", line))
    assert asked
    assert asked - targets == set()


def test_every_option_of_the_page_of_options_exists() -> None:
    known = set()
    for command in cli.commands.values():
        for parameter in command.params:
            known |= {*parameter.opts, *parameter.secondary_opts}
    page = (documents.ROOT / "docs/reference/options.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"(?<=[`\s])--?[a-zA-Z][a-z-]*", page))
    assert len(shown) > 30
    assert shown - known - {"--help"} == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("text\n\n    a  # why\n\n    b\n", ["a  # why", "b"], id="indented"),
        pytest.param("```yaml\n    a: 1\n```\n", [], id="another-language"),
        pytest.param("```\n$ a\nits output\n```\n", ["a"], id="with-output"),
        pytest.param("    a [-x]\n      [-y]\n", ["a [-x] [-y]"], id="continued"),
        pytest.param("    a \\\n        b\n", ["a  b"], id="continued-in-a-shell"),
    ],
)
def test_blocks(text: str, expected: list[str]) -> None:
    assert [line for _, line in blocks(text)] == expected
