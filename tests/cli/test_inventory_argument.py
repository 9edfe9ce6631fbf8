"""INVENTORY is a file, standard input, or ./inventory.yaml where it is left out."""

from __future__ import annotations

import io
import json
from pathlib import Path

import click
import pytest

from clusterprep.cli.inventory_argument import InventoryCommand
from clusterprep.cli.main import cli
from tests.support.command import asked

GOOD = "cluster: here\nnodes: [{name: n1, address: 127.0.0.1, transport: local}]\n"
SAID = "clusterprep: with ./inventory.yaml\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with an inventory."""
    (tmp_path / "inventory.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_inventory_of_this_folder_is_taken_and_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = asked(capsys, "validate", "--format", "json")
    assert (code, json.loads(out)["cluster"]) == (0, "here")
    assert err == SAID


@pytest.mark.parametrize(
    "words",
    [
        ("exec", "--", "echo", "hello"),
        ("exec", "--forks", "2", "--", "echo", "hello"),
        ("exec", "--no-color", "--", "echo", "hello", "--", "inventory.yaml"),
    ],
)
def test_words_for_the_nodes_are_no_inventory(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, out, err = asked(capsys, *words)
    assert code == 0
    assert "hello" in out
    assert SAID in err


def parsed(words: list[str]) -> dict[str, object]:
    """Return the options of `copy` for these words."""
    command = cli.commands["copy"]
    return command.make_context("copy", words).params


def test_of_several_words_the_inventory_may_be_left_out(folder: Path) -> None:
    left_out = parsed(["--mode", "0600", "a", "/b"])
    given = parsed(["other.yaml", "a", "/b"])
    assert [left_out[key] for key in ("inventory", "source", "destination")] == [
        "inventory.yaml",
        "a",
        "/b",
    ]
    assert given["inventory"] == "other.yaml"
    with pytest.raises(click.UsageError, match="source"):
        parsed(["a"])


@pytest.mark.parametrize("words", [("check", "--help"), ("launch", "-h"), ("rollback", "--what")])
def test_help_and_mistakes_take_no_inventory(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    _, _, err = asked(capsys, *words)
    assert SAID not in err


def test_every_command_with_an_inventory_may_do_without() -> None:
    lacking = []
    for name, command in cli.commands.items():
        arguments = {option.name for option in command.params if isinstance(option, click.Argument)}
        if "inventory" in arguments and not isinstance(command, InventoryCommand):
            lacking.append(name)
    assert lacking == []


def test_where_none_is_the_user_is_told_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = asked(capsys, "verify")
    assert (code, out) == (2, "")
    assert "give an INVENTORY: there is no ./inventory.yaml here" in err
    assert "clusterprep init HOST" in err


def test_an_inventory_that_others_could_write_is_not_taken(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "inventory.yaml").chmod(0o666)
    code, _, err = asked(capsys, "validate")
    assert code == 2
    assert "./inventory.yaml is not taken" in err


def test_an_inventory_on_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(GOOD.encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    code, out, _ = asked(capsys, "validate", "-", "--format", "json")
    assert (code, json.loads(out)["cluster"]) == (0, "here")


def test_a_mistake_on_standard_input_has_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"cluster: x\nnods: []\n"))
    monkeypatch.setattr("sys.stdin", stdin)
    code, _, err = asked(capsys, "validate", "-")
    assert code == 2
    assert "-:2: nods" in err


def test_alone_the_program_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(args=["--help"], prog_name="clusterprep", standalone_mode=False)
    shown = capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main(args=[], prog_name="clusterprep", standalone_mode=False)
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err) == (0, shown, "")
