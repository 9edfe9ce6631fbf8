"""Every command where no node can be used: a report that says so, or an error of usage; never 70.

The nodes are ports of this machine: one that refuses connections, one that accepts them and says
nothing, one that shows a host key that nobody knows.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from tests.support.command import asked, report_schema

LOG = "n1:1:2 [0] ibvwrap.c:160 NCCL WARN Call to ibv_create_qp failed\n"
# Commands with a report, by their words; the inventory comes behind the first one.
REPORTING = (
    "check --pick 1", "verify --pick 1",
    "check", "check --strict", "check --deep --store", "check --only time.", "check --forks 1",
    "plan", "plan --partial", "plan --detailed-exitcode", "plan --playbook limits",
    "apply", "apply --partial", "apply --dry-run", "apply --no-verify", "apply --playbook limits",
    "rollback", "rollback --partial", "rollback --force",
    "verify", "verify --on-busy", "verify --try-workarounds --incident-sizes",
    "env", "env --node n1",
    "launch -- true", "launch --direct -- true", "launch --no-preflight -- true",
)  # fmt: skip
COMMANDS = ("check", "plan", "apply", "rollback", "verify", "env", "launch")
PRINTING = (
    "env --target profile.d", "env --target nccl.conf --node n1",
    "launch --print torchrun -- true", "launch --print sbatch -- true",
    "launch --print hostfile -- true", "launch --print accelerate -- true",
    "launch --print deepspeed -- true", "launch --print lightning -- true",
    "launch --print mpirun -- true", "launch --print k8s --image i -- true",
)  # fmt: skip


def behind(words: str) -> list[str]:
    """The words behind the inventory that a command needs."""
    return ["--", "true"] if words in ("launch", "bisect") else []


class Ports:
    """Three ports of this machine by what they do."""

    def __init__(self) -> None:
        self._open = [socket.socket() for _ in range(3)]
        for each in self._open:
            each.bind(("127.0.0.1", 0))
        closed, silent, refusing = self._open
        silent.listen(64)
        refusing.listen(64)
        self._connections: list[socket.socket] = []
        for listener, serve in ((silent, self._keep), (refusing, self._greet)):
            threading.Thread(target=self._accept, args=(listener, serve), daemon=True).start()
        self._key = paramiko.ECDSAKey.generate()
        self.ports = {
            "closed": closed.getsockname()[1],
            "silent": silent.getsockname()[1],
            "refusing": refusing.getsockname()[1],
        }

    def _accept(self, listener: socket.socket, serve: object) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            serve(connection)  # type: ignore[operator]

    def _keep(self, connection: socket.socket) -> None:
        self._connections.append(connection)

    def _greet(self, connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        transport.daemon = True
        transport.add_server_key(self._key)
        transport.start_server(event=threading.Event(), server=paramiko.ServerInterface())

    def close(self) -> None:
        for each in (*self._open, *self._connections):
            each.close()


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    made = Ports()
    yield made
    made.close()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def inventory(folder: Path, port: int, count: int) -> str:
    path = folder / "fleet.yaml"
    nodes = [f"{{name: n{number}, address: 127.0.0.{number}}}" for number in range(1, count + 1)]
    path.write_text(
        f"cluster: empty\nssh: {{user: root, port: {port}, connect_timeout: 0.3, "
        f"known_hosts: {folder}/known_hosts}}\ngpus: 8\nnodes: [{', '.join(nodes)}]\n"
        "groups: {bare: {nodes: n1}}\n"
    )
    return str(path)


def split(words: str, path: str) -> list[str]:
    first, *rest = words.split()
    return [first, path, *rest]


def with_json(words: list[str]) -> list[str]:
    return [words[0], "--format", "json", *words[1:]]


@pytest.mark.parametrize("count", [1, 2], ids=["one-node", "two-nodes"])
@pytest.mark.parametrize("words", REPORTING)
def test_all_nodes_refuse_the_connection(
    ports: Ports, state: Path, capsys: pytest.CaptureFixture[str], words: str, count: int
) -> None:
    path = inventory(state, ports.ports["closed"], count)
    code, out, err = asked(capsys, *with_json(split(words, path)))
    assert code == 3, err
    _unreached(out, "refused", count)


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize(
    ("kind", "reason", "expected"),
    [("silent", "no_banner", 3), ("refusing", "host_key_unknown", 1)],
)
def test_all_nodes_are_silent_or_refuse_the_login(
    ports: Ports,
    state: Path,
    capsys: pytest.CaptureFixture[str],
    words: str,
    kind: str,
    reason: str,
    expected: int,
) -> None:
    path = inventory(state, ports.ports[kind], 1)
    line = split(words, path) + behind(words)
    code, out, err = asked(capsys, *with_json(line))
    assert code == expected, err
    _unreached(out, reason, 1)


def _unreached(out: str, reason: str, count: int) -> None:
    report = json.loads(out)
    report_schema().validate(report)
    assert [node["reason"] for node in report["nodes"]] == [reason] * count
    (reach,) = [finding for finding in report["findings"] if finding["check"] == "ssh.reach"]
    assert reach["nodes"] == [f"n{number}" for number in range(1, count + 1)]
    assert reach["verdict"] in ("fail", "unknown")
    done = [change for change in report.get("changes", ()) if change["outcome"] == "done"]
    assert done == []


@pytest.mark.parametrize("words", PRINTING)
def test_nothing_is_printed_and_the_reason_is_said(
    ports: Ports, state: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    code, out, err = asked(capsys, *split(words, inventory(state, ports.ports["closed"], 2)))
    assert (code, out) == (3, "")
    assert "not known" in err or "nothing is printed: ssh.reach unknown on n[1-2]" in err


@pytest.mark.parametrize(
    "fmt", ["console", "junit", "markdown", "prometheus", "html", "svg", "nagios"]
)
def test_every_format_can_show_it(
    ports: Ports, state: Path, capsys: pytest.CaptureFixture[str], fmt: str
) -> None:
    path = inventory(state, ports.ports["closed"], 2)
    for words in ("check", "plan", "verify", "env"):
        code, out, _ = asked(capsys, words, path, "--format", fmt)
        assert code == 3
        assert out


def test_what_looks_at_other_things_goes_on(
    ports: Ports, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = inventory(state, ports.ports["closed"], 2)
    (state / "rank.log").write_text(LOG)
    log = str(state / "rank.log")
    assert asked(capsys, "diagnose", log, "--inventory", path)[0] == 1
    assert asked(capsys, "validate", path)[0] == 0
    for _ in range(2):
        asked(capsys, "check", path)
    assert asked(capsys, "history")[0] == 0
    assert "UNKNOWN" in asked(capsys, "report", "last")[1]
    assert asked(capsys, "compare", "last~1", "last")[0] in (0, 3)
    made = str(state / "made.yaml")
    port = str(ports.ports["closed"])
    code, _, err = asked(capsys, "init", "n1=127.0.0.1", "--port", port, "--output", made)
    assert code == 3
    assert "nothing is written" in err
    assert not Path(made).exists()


def test_bisect_makes_no_run_where_no_node_is_reached(
    ports: Ports, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = inventory(state, ports.ports["closed"], 2)
    code, out, err = asked(capsys, "bisect", path, "--format", "json", "--", "true")
    assert code == 3, err
    _unreached(out, "refused", 2)
    found = json.loads(out)["bisect"]
    assert (found["verdict"], found["runs"], found["logs"]) == ("unknown", [], "")
    assert found["message"].startswith("no run was made: ssh.reach unknown on n[1-2]")


@pytest.mark.parametrize("words", [*COMMANDS, "bisect"])
@pytest.mark.parametrize("limit", ["", "nobody", "n9", "n[5-9]", "bare,nobody"])
def test_a_limit_to_no_node_is_an_error_of_usage(
    ports: Ports, state: Path, capsys: pytest.CaptureFixture[str], words: str, limit: str
) -> None:
    path = inventory(state, ports.ports["closed"], 2)
    line = [*split(words, path), "--limit", limit, *behind(words)]
    code, out, err = asked(capsys, *line)
    assert (code, out) == (2, ""), err
    assert "clusterprep: " in err


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("rollback", "--run"),
        ("apply", "--retry-failed"),
        ("apply", "--tags"),
        ("plan", "--tags"),
        ("env", "--from-run"),
        ("env", "--node"),
        ("env", "--target"),
    ],
)
def test_an_empty_text_does_not_mean_everything(
    ports: Ports, state: Path, capsys: pytest.CaptureFixture[str], words: str, option: str
) -> None:
    path = inventory(state, ports.ports["closed"], 1)
    code, out, err = asked(capsys, words, path, option, "")
    assert (code, out) == (2, "")
    assert err == f"clusterprep: {option}: it is empty; leave it out to mean everything\n"


@pytest.mark.parametrize("words", [*COMMANDS, "bisect"])
@pytest.mark.parametrize(
    "text", ["nodes: []\n", "{}\n", "", "nodes: [{name: n1}]\ngroups: {g: {nodes: ''}}\n"]
)
def test_an_inventory_without_nodes_is_an_error_of_usage(
    state: Path, capsys: pytest.CaptureFixture[str], words: str, text: str
) -> None:
    path = state / "none.yaml"
    path.write_text(text)
    line = split(words, str(path)) + behind(words)
    assert asked(capsys, *line)[0] == 2
