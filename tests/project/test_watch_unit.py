"""The example unit starts a command line that the program takes, and its end is a success."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

from clusterprep.cli.main import cli
from clusterprep.errors import Interrupted

UNIT = Path(__file__).resolve().parents[2] / "examples" / "watch" / "clusterprep-watch.service"


def test_the_unit_of_a_watch_fits_the_program() -> None:
    unit = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    program, command, *words = shlex.split(service["ExecStart"])
    params = cli.commands[command].make_context(command, words).params
    assert (program, command) == ("clusterprep", "watch")
    assert params["inventory"] == "/etc/clusterprep/cluster.yaml"
    assert params["webhook_secret"] == "${CREDENTIALS_DIRECTORY}/webhook"
    assert str(Path(params["textfile"]).parent) == service["ReadWritePaths"]
    assert service["SuccessExitStatus"] == str(Interrupted.code)
