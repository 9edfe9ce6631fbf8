"""Options of `diagnose` that would have no effect are refused, and its help names its formats."""

import pytest
from click.testing import CliRunner

from clusterprep.cli.main import cli


@pytest.mark.parametrize("words", [["--limit", "n1"], ["--timeout", "9"], ["-b"], ["-K"]])
def test_options_about_nodes_want_an_inventory(words: list[str]) -> None:
    ran = CliRunner().invoke(cli, ["diagnose", "-", *words], input="")
    assert ran.exit_code == 2
    assert "add --inventory or --live INVENTORY" in ran.output


def test_the_help_names_the_formats_of_a_diagnosis() -> None:
    text = " ".join(CliRunner().invoke(cli, ["diagnose", "--help"]).output.split())
    assert "On stdout: console or json." in text
