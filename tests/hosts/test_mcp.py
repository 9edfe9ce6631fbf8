"""The server of `clusterprep mcp` over stdio, asked by the client of the official SDK."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest

from tests.support.lab import Lab
from tests.support.patience import LONG, killed_on_failure

mcp = pytest.importorskip("mcp")  # `make setup` installs it, `make test` does without
anyio = pytest.importorskip("anyio")

pytestmark = pytest.mark.hosts

ROOT = Path(__file__).resolve().parents[2]
LOG = "[rank0]: torch.OutOfMemoryError: CUDA out of memory.\n"
NOISE = "this is no message of the protocol"
NOISY = f'import os\n\nprint("{NOISE}", flush=True)\nos.write(1, b"{NOISE}\\n")\n'
Call = tuple[str, dict[str, Any]]
SERVE = (sys.executable, "-m", "clusterprep", "mcp")
SILENT = """\
cluster: silent
ssh: {{user: root, port: {port}, connect_timeout: 600}}
nodes: [{{name: n1, address: 127.0.0.1}}]
"""


def asked(lab: Lab, folder: Path, words: list[str], calls: Sequence[Call]) -> list[Any]:
    """Return the tools of one server, and behind them its answers: is it an error, and the text."""
    answers: list[Any] = []
    environment = lab.controller.environment({"PYTHONPATH": str(ROOT)})
    server = mcp.StdioServerParameters(
        command=SERVE[0], args=[*SERVE[1:], *words], env=environment, cwd=folder
    )

    async def talk(errors: TextIO) -> None:
        async with mcp.Client(mcp.stdio_client(server, errlog=errors)) as client:
            answers.append((await client.list_tools()).tools)
            for name, arguments in calls:
                answer = await client.call_tool(name, arguments)
                (part,) = answer.content
                answers.append((bool(answer.is_error), part.text))

    with (folder / "errors").open("w") as errors, lab.controller.entered():
        anyio.run(talk, errors)
    return answers


@pytest.fixture
def desk(lab4: Lab, tmp_path: Path) -> Path:
    """Return a folder with inventories of the lab, one of which learns host keys, and a log."""
    content = lab4.inventory_content()
    content["ssh"] |= {"known_hosts": str(tmp_path / "empty"), "host_keys": "accept-new"}
    (tmp_path / "new.yaml").write_text(json.dumps(content))
    lab4.inventory(tmp_path / "lab.yaml", plugins=["plugins"])
    (tmp_path / "job.log").write_text(LOG)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "noisy.py").write_text(NOISY)
    return tmp_path


def test_every_tool_answers_reads_only_and_no_print_does_harm(lab4: Lab, desk: Path) -> None:
    calls = (
        ("check", {"inventory": "lab.yaml", "only": ["time.offset"]}),
        ("history", {"limit": 1}),
        ("report", {}),
        ("report", {"check": "time.offset", "form": "json"}),
        ("explain", {"topic": "time.offset"}),
        ("diagnose", {"files": ["job.log"]}),
        ("check", {"inventory": "new.yaml", "only": ["time.offset"]}),
        # What is asked for wrongly.
        ("check", {"inventory": "/etc/passwd"}),
        ("diagnose", {"files": ["/etc/passwd"]}),
        ("report", {"run": "none"}),
        ("history", {"limit": 0}),
    )
    tools, *answers = asked(lab4, desk, ["lab.yaml", "new.yaml", "--logs", "."], calls)
    assert {tool.name for tool in tools} == {"history", "report", "explain", "diagnose", "check"}
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    texts = [text for _, text in answers]
    assert [is_error for is_error, _ in answers] == [False] * 7 + [True] * 4, texts
    check, history, report, document, page, cause, learned, *errors = texts
    assert "4/4 nodes reached" in check
    assert "check" in history
    assert "4/4 nodes" in report
    findings = json.loads(document)["findings"]
    assert [node for finding in findings for node in finding["nodes"]] == ["n1", "n2", "n3", "n4"]
    assert "Clocks agree" in page
    assert "A GPU has no memory left" in cause
    # Although the inventory lets other commands learn new keys, this one writes nothing down.
    assert "host_key_unknown" in learned
    assert not (desk / "empty").exists()
    assert "is no inventory of this server (one of lab.yaml, new.yaml)" in errors[0]
    assert "is no file in" in errors[1]
    assert "none" in errors[2]
    assert "limit" in errors[3]
    assert NOISE in (desk / "errors").read_text()


# ---------------------------------------------------------------- ends


class Busy:
    """A server that checks a node which says nothing."""

    def __init__(self, process: subprocess.Popen[str], listener: socket.socket) -> None:
        self.process = process
        self._say("initialize", 1, protocolVersion="2025-06-18", capabilities={}, clientInfo=CLIENT)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["id"] == 1
        self._say("notifications/initialized", None)
        self._say("tools/call", 2, name="check", arguments={"seconds": 900})
        self.connection, _ = listener.accept()

    def _say(self, method: str, number: int | None, **params: Any) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if number is not None:
            message["id"] = number
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()


CLIENT = {"name": "test", "version": "1"}


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Busy]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        listener.settimeout(LONG)
        inventory = tmp_path / "silent.yaml"
        inventory.write_text(SILENT.format(port=listener.getsockname()[1]))
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*SERVE, str(inventory)], stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT
        )
        with killed_on_failure(process):
            server = Busy(process, listener)
            yield server
            server.connection.close()
            process.kill()


@pytest.mark.slow
def test_a_server_ends_with_its_client_although_a_check_runs(busy: Busy) -> None:
    out, err = busy.process.communicate(timeout=LONG)
    assert (busy.process.returncode, err) == (0, "")
    assert [json.loads(line)["id"] for line in out.splitlines()] in ([], [2])  # the check's error


@pytest.mark.slow
def test_a_signal_ends_a_server_although_a_check_runs(busy: Busy) -> None:
    busy.process.send_signal(signal.SIGTERM)
    assert busy.process.wait(LONG) == 130
