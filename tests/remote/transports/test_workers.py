"""Logins in worker processes: what they share, how they end, and what their end means.

That a connection in a worker behaves as one in this process is held by test_ssh.py, which runs its
tests with both.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterprep.errors import Interrupted, LinkLost, Unreached
from clusterprep.model import Fleet, Inventory, Node
from clusterprep.remote.transports import transports_for
from clusterprep.remote.transports.factory import worker_count
from clusterprep.remote.transports.protocol import Channel
from clusterprep.remote.transports.ssh import SshTransport
from clusterprep.remote.transports.workers import Passphrases, WorkerProcess, WorkerTransport
from clusterprep.runtime.deadline import Deadline
from clusterprep.survey import registry
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.queries import QueryPlan, plan_queries
from clusterprep.survey.selection import Selection, select_checks
from tests.remote.transports.heard import read_all
from tests.remote.transports.peers import listening
from tests.remote.transports.sshd import Sshd, new_key, public
from tests.support.patience import LONG, eventually, killed_on_failure

Workers = Callable[..., WorkerTransport]
HOURS = 36_000.0  # seconds; a limit that no test lives to see
MOST_HELD = 200 << 20  # bytes of a worker whose nodes say more than is taken


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """Makes transports, and closes them in the end."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with contextlib.ExitStack() as stack:
        yield lambda *given, **options: stack.enter_context(
            contextlib.closing(WorkerTransport(*given, **options))
        )


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def started(transport: WorkerTransport, node: Node) -> tuple[Channel, int]:
    """A command that ends with its input, and its process number."""
    channel = transport.open(node, "echo $$; exec cat")
    return channel, int(channel.recv(LONG))


def worker_of(remote: int, pids: Sequence[int]) -> int:
    """The only worker."""
    assert remote
    (pid,) = pids
    return pid


# ---------------------------------------------------------------- whether, and how many


@pytest.mark.parametrize(
    ("nodes", "cores", "count"),
    [
        (128, 64, 0),
        (129, 1, 0),
        (129, 2, 0),
        (129, 3, 2),
        (129, 64, 2),
        (256, 64, 4),
        (10_000, 2, 0),
        (10_000, 4, 3),
        (10_000, 8, 7),
        (10_000, 64, 8),
    ],
)
def test_workers_are_used_where_they_help(nodes: int, cores: int, count: int) -> None:
    assert worker_count(nodes, cores) == count


@pytest.mark.parametrize(
    ("cores", "kind"), [(1, SshTransport), (2, SshTransport), (8, WorkerTransport)]
)
def test_an_inventory_s_transport_is_chosen_by_nodes_and_cores(cores: int, kind: type) -> None:
    nodes = tuple(Node(f"n{number}", f"n{number}", number) for number in range(200))
    transport = transports_for(Inventory("large", nodes), lambda prompt: "", cores)["ssh"]
    assert type(transport) is kind
    transport.close()


# ---------------------------------------------------------------- what nodes share


def test_a_passphrase_is_asked_for_once_for_all_workers() -> None:
    typed = iter(["wrong", "right", "of another key"])
    prompts: list[str] = []

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return next(typed)

    passphrases = Passphrases(ask)
    with contextlib.ExitStack() as stack:
        one, other = _two_processes(stack)
        assert passphrases.answer(one, "key") == "wrong"
        assert passphrases.answer(other, "key") == "wrong"
        assert passphrases.answer(other, "key") == "right"
        assert passphrases.answer(one, "key") == "right"
        assert passphrases.answer(one, "key 2") == "of another key"
    assert prompts == ["key", "key", "key 2"]


def _two_processes(stack: contextlib.ExitStack) -> list[WorkerProcess]:
    processes = [WorkerProcess(), WorkerProcess()]
    for process in processes:
        stack.callback(process.await_end, 0.0)
        stack.callback(process.end)
    return processes


@pytest.mark.machine
def test_a_key_is_unlocked_in_every_worker_by_one_answer(
    sshd: Sshd, workers: Workers, tmp_path: Path
) -> None:
    key = new_key(tmp_path / "locked", passphrase="open sesame")
    with (sshd.folder / "authorized_keys").open("a") as file:
        file.write(public(key) + "\n")
    prompts: list[str] = []

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return "open sesame" if len(prompts) > 1 else "wrong"

    transport = workers(2, ask)
    node = sshd.node(tmp_path, identity_file=str(key))
    channels = [started(transport, node)[0] for _ in range(4)]
    assert len(transport.pids) == 2
    assert len(prompts) == 2
    assert set(prompts) == {f"Passphrase for {key}: "}
    for channel in channels:
        channel.close()


@pytest.mark.machine
def test_a_new_host_key_is_written_once(sshd: Sshd, workers: Workers, tmp_path: Path) -> None:
    transport = workers(3)
    node = sshd.node(tmp_path, known="", host_keys="accept-new")
    channels: list[Channel] = []

    def open_one(number: int) -> None:
        channel = transport.open(replace(node, name=f"n{number}"), "true")
        channels.append(channel)

    threads = [threading.Thread(target=open_one, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert len(channels) == 9
    assert len(transport.pids) == 3
    assert (tmp_path / "known_hosts").read_text() == sshd.known()
    for channel in channels:
        channel.close()


@pytest.mark.machine
def test_a_prompt_on_stderr_is_seen_at_once(sshd: Sshd, workers: Workers, tmp_path: Path) -> None:
    """As sudo's, which waits for the password then."""
    command = "printf 'word: ' >&2; read word; echo got $word"
    channel = workers(1).open(sshd.node(tmp_path), command)

    def has_asked() -> bool:
        with contextlib.suppress(TimeoutError):
            channel.recv(0.1)
        return channel.stderr() == b"word: "

    assert eventually(has_asked)
    channel.send(b"sesame\n")
    assert read_all(channel) == b"got sesame\n"
    channel.close()


@pytest.mark.machine
def test_a_node_that_floods_fills_no_memory_and_stops_no_other(
    sshd: Sshd, workers: Workers, tmp_path: Path
) -> None:
    transport = workers(1)
    node = sshd.node(tmp_path)
    floods = [transport.open(node, "exec cat /dev/zero") for _ in range(8)]
    for flood in floods:
        assert flood.recv(LONG)
    for number in range(20):
        channel = transport.open(node, f"echo {number}")
        assert read_all(channel) == b"%d\n" % number
        channel.close()
    status = Path(f"/proc/{transport.pids[0]}/status").read_text()
    (peak,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    assert int(peak) << 10 < MOST_HELD
    for flood in floods:
        flood.close()


# ---------------------------------------------------------------- all of a survey


class Watch:
    """Counts who was through, in that order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def stage(self, name: str, total: int, nodes: Sequence[str] = ()) -> None:
        assert not self.names

    def step(self, node: str, outcome: str, seconds: float | None = None) -> None:
        self.names.append(node)


def plan() -> QueryPlan:
    checks = select_checks(registry.checks(), Selection(only=("kernel.version",)))
    return plan_queries(checks, registry.facts())


def survey(
    transport: SshTransport | WorkerTransport,
    nodes: Sequence[Node],
    watch: Watch,
    forks: int = 4,
    deadline: Deadline | None = None,
) -> Fleet:
    named = [replace(node, name=f"n{i}", index=i) for i, node in enumerate(nodes)]
    with Fanout(
        Inventory("spread", tuple(named)),
        {"ssh": transport},
        forks,
        lambda node: None,
        watch,
        deadline=deadline,
    ) as fanout:
        return fanout.survey(plan(), last=True)


@pytest.mark.machine
def test_nodes_say_the_same_through_workers(sshd: Sshd, workers: Workers, tmp_path: Path) -> None:
    nodes = [sshd.node(tmp_path)] * 6
    with contextlib.closing(SshTransport()) as transport:
        here = survey(transport, nodes, Watch())
    there = survey(workers(2), nodes, Watch())
    assert len(there.reached) == 6
    for name, snapshot in here.snapshots.items():
        assert there.snapshots[name].facts == snapshot.facts


@pytest.mark.machine
def test_a_silent_node_keeps_no_other_from_its_turn(
    sshd: Sshd, workers: Workers, tmp_path: Path
) -> None:
    good, watch = sshd.node(tmp_path), Watch()

    def silent_until_then(connection: socket.socket) -> None:
        assert eventually(lambda: len(watch.names) >= 3)

    with listening(silent_until_then) as mute:
        bad = replace(good, ssh=replace(good.ssh, port=mute, connect_timeout=HOURS))
        fleet = survey(workers(2), [bad, bad, good, good, good], watch, forks=1)
    assert watch.names[:3] == ["n2", "n3", "n4"]
    reasons = [snapshot.reason for snapshot in fleet.snapshots.values() if not snapshot.reached]
    assert reasons == ["no_banner"] * 2


@pytest.mark.machine
def test_a_node_that_has_greeted_is_not_silent(
    sshd: Sshd, workers: Workers, tmp_path: Path
) -> None:
    """Its login takes longer than a moment, but it keeps its place."""
    transport = workers(1)
    greeted = threading.Event()

    def greets(connection: socket.socket) -> None:
        connection.sendall(b"SSH-2.0-slow\r\n")
        greeted.set()
        while connection.recv(4096):
            pass

    with listening(greets) as port:
        node = sshd.node(tmp_path)
        node = replace(node, ssh=replace(node.ssh, port=port, connect_timeout=HOURS))
        thread = threading.Thread(target=lambda: _refused(transport, node))
        thread.start()
        assert eventually(lambda: transport.unheard() == ["n1"])
        assert greeted.wait(LONG)
        assert eventually(lambda: transport.unheard() == [])
        transport.close()
        thread.join(LONG)


def _refused(transport: WorkerTransport, node: Node) -> Unreached:
    with pytest.raises(Unreached) as caught:
        transport.open(node, "true")
    return caught.value


@pytest.mark.machine
def test_an_interrupted_command_leaves_no_process(
    sshd: Sshd, workers: Workers, tmp_path: Path
) -> None:
    transport, deadline, pids = workers(2), Deadline(), list[int]()

    def interrupted(connection: socket.socket) -> None:
        pids.extend(transport.pids)
        deadline.stop(Interrupted("interrupted by SIGINT"))
        while connection.recv(4096):
            pass

    with listening(interrupted) as mute:
        good = sshd.node(tmp_path)
        bad = replace(good, ssh=replace(good.ssh, port=mute, connect_timeout=HOURS))
        with pytest.raises(Interrupted):
            survey(transport, [good, good, bad], Watch(), deadline=deadline)
    assert pids
    assert not any(map(is_running, pids))


# ---------------------------------------------------------------- ends


@pytest.mark.machine
def test_a_worker_that_is_killed_loses_its_nodes_and_no_other(
    sshd: Sshd, workers: Workers, tmp_path: Path
) -> None:
    transport = workers(2)
    node = sshd.node(tmp_path)
    lost, remote = started(transport, node)
    killed = worker_of(remote, transport.pids)
    kept, _ = started(transport, node)
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(LinkLost, match="process on this machine that held the connection"):
        lost.recv(LONG)
    with pytest.raises(LinkLost):
        lost.send(b"x")
    assert not lost.alive
    assert eventually(lambda: not is_running(remote))
    kept.send(b"hello\n")
    assert kept.recv(LONG) == b"hello\n"
    further, _ = started(transport, node)
    for channel in (lost, kept, further):
        channel.close()


@pytest.mark.machine
def test_a_worker_that_has_begun_to_end_gets_no_node(
    sshd: Sshd, workers: Workers, tmp_path: Path
) -> None:
    """It still takes one: the kernel closes its sockets one by one, the control socket last."""
    transport = workers(2)
    node = sshd.node(tmp_path)
    channels = [started(transport, node)[0]]
    ending, *_ = transport._workers
    ending.has_ended = True
    channels += [started(transport, node)[0] for _ in range(3)]
    assert [worker.nodes for worker in transport._workers] == [1, 3]
    for channel in channels:
        channel.close()


@pytest.mark.machine
def test_without_a_worker_a_node_is_unreached_and_says_why(
    sshd: Sshd, workers: Workers, tmp_path: Path
) -> None:
    transport = workers(1)
    channel, _ = started(transport, sshd.node(tmp_path))
    os.kill(transport.pids[0], signal.SIGKILL)
    with pytest.raises(LinkLost):
        channel.recv(LONG)
    error = _refused(transport, sshd.node(tmp_path))
    assert (error.reason, error.answered) == ("hung", False)
    assert "process on this machine" in str(error)
    assert error.remedy.is_command
    channel.close()


def test_where_no_process_can_be_started_a_node_is_unreached(workers: Workers) -> None:
    transport = workers(2)
    lowest = os.dup(0)
    os.close(lowest)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        error = _refused(transport, Node("n1", "127.0.0.1", 0))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert error.reason == "hung"
    assert "no process could be started on this machine to log in" in str(error)
    assert error.remedy.is_command


@pytest.mark.machine
def test_a_worker_that_ends_while_it_logs_in_holds_up_no_node(
    sshd: Sshd, workers: Workers, tmp_path: Path
) -> None:
    transport = workers(1)

    def kills_the_worker(connection: socket.socket) -> None:
        os.kill(transport.pids[0], signal.SIGKILL)

    with listening(kills_the_worker) as port:
        node = sshd.node(tmp_path, port=port, connect_timeout=HOURS)
        assert _refused(transport, node).reason == "hung"


@pytest.mark.machine
def test_a_worker_that_is_stopped_holds_up_no_node(
    sshd: Sshd, workers: Workers, tmp_path: Path
) -> None:
    transport = workers(1, grace=0.5)
    channel, _ = started(transport, sshd.node(tmp_path))
    pid = transport.pids[0]
    os.kill(pid, signal.SIGSTOP)
    error = _refused(transport, sshd.node(tmp_path, connect_timeout=0.5))
    assert (error.reason, "gives no answer" in str(error)) == ("hung", True)
    channel.close()
    transport.close()
    assert not is_running(pid)


@pytest.mark.machine
def test_signals_that_end_a_command_do_not_end_its_workers(
    sshd: Sshd, workers: Workers, tmp_path: Path
) -> None:
    transport = workers(1)
    channel, _ = started(transport, sshd.node(tmp_path))
    assert os.getsid(transport.pids[0]) != os.getsid(0)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(transport.pids[0], signum)
        channel.send(b"hello\n")
        assert channel.recv(LONG) == b"hello\n"
    channel.close()


@pytest.mark.machine
def test_closed_workers_are_gone_and_new_ones_start(
    sshd: Sshd, workers: Workers, tmp_path: Path
) -> None:
    transport = workers(1)
    node = sshd.node(tmp_path)
    channel, remote = started(transport, node)
    (first,) = transport.pids
    transport.close()
    assert not is_running(first)
    assert eventually(lambda: not is_running(remote))
    again, _ = started(transport, node)
    assert transport.pids != [first]
    channel.close()
    again.close()


CONTROLLER = """
import pickle, sys, time
from clusterprep.remote.transports.workers import WorkerTransport
node = pickle.loads(bytes.fromhex(sys.argv[1]))
transport = WorkerTransport(2)
channels = [transport.open(node, "echo $$; exec cat") for _ in range(2)]
for channel in channels:
    print(int(channel.recv(60)), flush=True)
print(*transport.pids, flush=True)
time.sleep(3600)
"""


@pytest.mark.machine
def test_nothing_outlives_a_controller_that_is_killed(sshd: Sshd, tmp_path: Path) -> None:
    node = pickle.dumps(sshd.node(tmp_path)).hex()
    argv = [sys.executable, "-c", CONTROLLER, node]
    controller = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    with killed_on_failure(controller):
        assert controller.stdout is not None
        pids = []
        for _ in range(3):
            pids.extend(map(int, controller.stdout.readline().split()))
        assert len(pids) == 4
        assert all(map(is_running, pids))
        controller.kill()
        assert eventually(lambda: not any(map(is_running, pids)))
