"""What the tools of the server return, and what they do not read."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest

from clusterprep.cli.commands.unattended import Secrets
from clusterprep.cli.mcp import answers
from clusterprep.cli.mcp.answers import CheckRequest, Scope, scope_of
from clusterprep.errors import InputError
from clusterprep.runtime.deadline import Deadline
from tests.support.command import report_schema

HERE = "nodes: [{name: n1, address: 127.0.0.1, transport: local}]\n"
LOG = "[rank0]: torch.OutOfMemoryError: CUDA out of memory.\n"
NO_SECRETS = Secrets("", "", "")
ONE = CheckRequest(only=("host.identity",))


@pytest.fixture
def scope(tmp_path: Path) -> Scope:
    """Return a scope with an inventory of this machine and a folder of logs."""
    here = tmp_path / "here.yaml"
    here.write_text(HERE)
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "a.log").write_text(LOG)
    (tmp_path / "secret.log").write_text(LOG)
    return scope_of([str(here)], [str(logs)], NO_SECRETS)


def test_a_check_is_a_run_of_the_history(scope: Scope) -> None:
    text = answers.check(scope, ONE, "text", Deadline(60.0))
    found = re.search(r"run (\d{8}-\d{6}-[0-9a-f]{4})", text)
    assert found is not None, text
    assert found[1] in answers.history("", 20)
    assert found[1] not in answers.history("another", 20)
    assert found[1] in answers.report("last", "", "text")
    document = json.loads(answers.report(found[1], "", "json"))
    report_schema().validate(document)
    assert document["run"] == found[1]


def test_a_report_is_limited_to_a_check(scope: Scope) -> None:
    answers.check(scope, ONE, "text", Deadline(60.0))
    document = json.loads(answers.report("last", "ssh.", "json"))
    assert {finding["check"] for finding in document["findings"]} == {"ssh.reach"}
    with pytest.raises(InputError, match=r"has no finding of 'time\.offset'"):
        answers.report("last", "time.offset", "text")


def test_pages_of_checks_variables_and_causes(scope: Scope) -> None:
    assert answers.explain(scope, "time.offset", "").startswith("time.offset: Clocks agree")
    assert "NCCL_IB_HCA" in answers.explain(scope, "", "")
    with pytest.raises(InputError, match=r"time\.offset"):
        answers.explain(scope, "time.ofset", "")


def test_a_log_is_diagnosed(scope: Scope) -> None:
    assert "A GPU has no memory left" in answers.diagnose(scope, ["a.log"])
    whole = str(scope.folders[0] / "a.log")
    assert "A GPU has no memory left" in answers.diagnose(scope, [whole])


@pytest.mark.parametrize(
    "name", ["../secret.log", "/etc/passwd", "link.log", ".", "fifo", "none.log", "a\0b", "-"]
)
def test_what_is_no_file_of_the_folders_is_not_read(scope: Scope, name: str) -> None:
    logs = scope.folders[0]
    (logs / "link.log").symlink_to("../secret.log")
    os.mkfifo(logs / "fifo")
    with pytest.raises(InputError, match="is no file in"):
        answers.diagnose(scope, [name])


def test_files_are_bounded(scope: Scope) -> None:
    logs = scope.folders[0]
    with (logs / "large.log").open("wb") as sink:
        sink.truncate(answers.LARGEST + 1)
    with (logs / "packed.gz").open("wb") as sink:
        sink.write(gzip.compress(b""))
        sink.truncate(answers.LARGEST_PACKED + 1)
    for files, said in (
        (["large.log"], "are more than"),
        (["packed.gz"], "is compressed"),
        ([], "give 1 to"),
        (["a.log"] * 65, "give 1 to"),
    ):
        with pytest.raises(InputError, match=said):
            answers.diagnose(scope, files)


@pytest.mark.parametrize("name", ["other.yaml", "/etc/passwd", "../here.yaml"])
def test_only_inventories_of_the_user_are_loaded(scope: Scope, name: str) -> None:
    with pytest.raises(InputError, match=f"'{re.escape(name)}' is no inventory of this server"):
        answers.check(scope, CheckRequest(name), "text", Deadline())


def test_what_the_user_names_has_to_be_there(tmp_path: Path) -> None:
    nothing = scope_of([], [], NO_SECRETS)
    with pytest.raises(InputError, match="clusterprep mcp INVENTORY"):
        nothing.inventory("")
    with pytest.raises(InputError, match="clusterprep mcp --logs DIR"):
        answers.diagnose(nothing, ["a.log"])
    with pytest.raises(InputError, match="no such file"):
        scope_of([str(tmp_path / "none.yaml")], [], NO_SECRETS)
    with pytest.raises(InputError, match="no such folder"):
        scope_of([], [str(tmp_path / "none")], NO_SECRETS)


def test_with_several_inventories_one_is_named(scope: Scope) -> None:
    both = Scope({"a": "/a.yaml", "b": "/b.yaml"}, (), NO_SECRETS)
    assert both.inventory("b") == "/b.yaml"
    with pytest.raises(InputError, match="one of a, b"):
        both.inventory("")


def test_answers_are_bounded_and_without_control_characters() -> None:
    assert answers.bounded("a\x1b[2Jb\tc\n") == "a\ufffd[2Jb\tc\n"
    text = answers.bounded("line\n" * answers.LONGEST)
    assert len(text) < answers.LONGEST + 100
    assert text.endswith(f"line\n… cut: the whole has {5 * answers.LONGEST:,} characters\n")
