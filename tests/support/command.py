"""Runs the real command line on the lab's controller, as a user would."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from clusterprep.cli.exit import ending
from clusterprep.cli.main import cli
from clusterprep.inventory.schema import schema_path
from tests.support.lab import Lab

CLI = (sys.executable, "-m", "clusterprep")


@functools.cache
def report_schema() -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema_path("report").read_text()))


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a command within this process and return its exit code, stdout and stderr."""
    code = ending(
        lambda: cli.main(args=list(words), prog_name="clusterprep", standalone_mode=False),
        words,
        words[0],
    )
    out, err = capsys.readouterr()
    return code, out, err


@dataclass(frozen=True)
class Answer:
    """What a command said and how it ended."""

    code: int
    report: dict[str, Any]
    stderr: str

    def findings(self, check: str, verdict: str = "fail") -> list[dict[str, Any]]:
        return [
            f for f in self.report["findings"] if f["check"] == check and f["verdict"] == verdict
        ]

    def blamed(self, check: str, verdict: str = "fail") -> list[str]:
        """The nodes that findings of a check name."""
        return [node for finding in self.findings(check, verdict) for node in finding["nodes"]]

    def failed(self) -> dict[str, list[str]]:
        """Every failed or unknown error by check, silenced and fixed ones left out."""
        bad = [f for f in self.report.get("findings", ()) if f["verdict"] in ("fail", "unknown")]
        counted = [
            f for f in bad if f["severity"] == "error" and not f["fixed"] and not f["silenced"]
        ]
        return {f["check"]: f["nodes"] for f in counted}

    def outcomes(self) -> set[str]:
        return {change["outcome"] for change in self.report["changes"]}


def clusterprep(
    lab: Lab, command: str, *words: str, inventory: Path | None = None, **options: Any
) -> Answer:
    """One command about the lab, its JSON report checked against the schema."""
    argv = [*CLI, command, str(inventory or lab.inventory()), "--format", "json", *words]
    return answer(lab.controller.run(argv, **{"timeout": 120, **options}))


def started(
    lab: Lab, command: str, *words: str, inventory: Path | None = None
) -> subprocess.Popen[str]:
    """The same, left running."""
    argv = [*CLI, command, str(inventory or lab.inventory()), "--format", "json", *words]
    pipe = subprocess.PIPE
    return lab.controller.popen(argv, stdout=pipe, stderr=pipe, stdin=pipe, text=True)


def finished(process: subprocess.Popen[str], words: str = "", timeout: float = 90) -> Answer:
    out, err = process.communicate(words, timeout=timeout)
    return answer(subprocess.CompletedProcess(process.args, process.returncode, out, err))


def answer(done: subprocess.CompletedProcess[str]) -> Answer:
    try:
        report = json.loads(done.stdout)
    except ValueError:
        raise AssertionError(
            f"no report, exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        ) from None
    report_schema().validate(report)
    return Answer(done.returncode, report, done.stderr)
