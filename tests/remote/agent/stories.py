"""What an agent is asked to do, operation by operation, for tests with other Pythons than our own.

A story begins with an agent of a Python and a folder of its own, and needs no root. It names the
parts that it loads and the operations that it asks for; asking for another one is an error, and so
is leaving one out.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterprep.fabric.program import ShellProgram
from clusterprep.model import Node, Read
from clusterprep.model.operations import OperationValue, RunCommand, Write, wire
from clusterprep.remote import bootstrap
from clusterprep.remote.transports.slurm_records import Record, RecordReader
from tests.jobs.verify.agents import LocalLink, PipeChannel
from tests.support.asked import answered
from tests.support.patience import LONG

LOADER = shlex.split(bootstrap.command())[-1]
NODE = Node("n1", "127.0.0.1", 0)
RUN, NEXT, LAST = "20261129-080000-0001", "20261129-080000-0002", "20261129-080000-0003"


@contextlib.contextmanager
def agent_of(python: str, *parts: str, near: bool = False) -> Iterator[LocalLink]:
    """An agent in this Python, by the source that a node would get."""
    channel = PipeChannel([python, bootstrap.FLAGS, "-c", LOADER])
    nonce = secrets.token_hex(8)
    link = LocalLink(NODE, channel, nonce)
    try:
        channel.send(bootstrap.payload(nonce, ("look", *parts), near))
        link.wait_hello(LONG)
        yield link
    finally:
        link.close()


@dataclass
class Talk:
    """An agent, the folder that it may write to, and what it has told by itself."""

    link: LocalLink
    folder: Path
    python: str
    asked: set[str] = field(default_factory=set)
    events: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, op: str, **body: Any) -> dict[str, Any]:
        """Return the answer of the agent without its number."""
        self.asked.add(op)
        answer = self.link.request(op, LONG, **body)
        answer.pop("id")
        return answer

    def read(self, kind: str, *args: Any) -> Any:
        """Return the answer to one read, which has to succeed."""
        self.asked.add("look")
        (answer,) = answered(self.link, [Read(kind, args, limit=LONG)])
        assert answer[0] == "ok", answer
        return answer[1]

    def event(self, what: str, **data: Any) -> dict[str, Any]:
        """Return the next event of this kind with these values, and wait for it if need be."""
        end = time.monotonic() + LONG
        while True:
            for event in self.events:
                if event["what"] == what and data.items() <= event.items():
                    self.events.remove(event)
                    return event
            assert time.monotonic() < end, f"no {what} {data} among {self.events}"
            self.link.pulse()
            self.link.send_waiting()
            self.events.extend(self.link.poll(0.2))

    def text(self, name: str) -> str | None:
        path = self.folder / name
        return path.read_text() if path.exists() else None


@dataclass(frozen=True)
class Story:
    parts: tuple[str, ...]
    ops: frozenset[str]
    tell: Callable[[Talk], None]


STORIES: dict[str, Story] = {}


def story(parts: str, ops: str) -> Callable[[Callable[[Talk], None]], Callable[[Talk], None]]:
    """Keep a story under the name of its function, with the parts and operations that it uses."""

    def keep(tell: Callable[[Talk], None]) -> Callable[[Talk], None]:
        STORIES[tell.__name__] = Story(tuple(parts.split()), frozenset(ops.split()), tell)
        return tell

    return keep


def tell(name: str, python: str, folder: Path) -> None:
    """Let an agent of this Python go through a story."""
    told = STORIES[name]
    with agent_of(python, *told.parts) as link:
        talk = Talk(link, folder, python)
        told.tell(talk)
        assert talk.asked == told.ops


# ---------------------------------------------------------------- the loop


@story("", "ping load look")
def loop(talk: Talk) -> None:
    """Parts come later too, as text and as the code that this Python has been sent."""
    assert set(talk.ask("ping")) == {"seen", "sent"}
    assert talk.ask("load", **bootstrap.load_as_text("targets")) == {}
    if talk.link.hello["magic"] == bootstrap.MAGIC:
        assert talk.ask("load", **bootstrap.load_as_code("results")) == {}
    name = "\u00fc\udcff"
    (talk.folder / name).write_text("h\u00e9\n", "utf-8")
    assert talk.read("file", f"{talk.folder}/{name}") == "h\u00e9\n"
    seen = talk.read("target", f"{talk.folder}/{name}", str(talk.folder))
    assert base64.b64decode(seen["data"]) == "h\u00e9\n".encode()


# ---------------------------------------------------------------- what is written


def _wanted(path: str, before: bytes | None, after: bytes | None) -> dict[str, Any]:
    coded = [None if data is None else base64.b64encode(data).decode() for data in (before, after)]
    return {"path": path, "before": coded[0], "after": coded[1], "mode": 0o644}


def _run(talk: Talk, run: str, number: int, **more: Any) -> dict[str, Any]:
    body = {"root": str(talk.folder), "run": run, "undo": run, "cluster": "demo", "undoes": None}
    return {**body, "number": number, "node": "n1", "nodes": "n1", "files": [], **more}


@story("act journal", "lock stage commit settle undo runs set_aside look")
def files(talk: Talk) -> None:
    """One is written and stays, one is rolled back, one is damaged and set aside."""
    (talk.folder / "etc").mkdir()
    (talk.folder / "etc/nccl.conf").write_text("old\n")
    conf = _wanted("/etc/nccl.conf", b"old\n", b"new\n")
    made = _wanted("/etc/made/\u00fc.env", None, b"made\n")
    first = _run(talk, RUN, 1, files=[conf, made])
    assert talk.ask("lock", **first) == {"last": 0}
    for op in ("stage", "commit", "settle"):
        assert talk.ask(op, **first) == {}
    assert (talk.text("etc/nccl.conf"), talk.text("etc/made/\u00fc.env")) == ("new\n", "made\n")
    refused = talk.ask("stage", **_run(talk, NEXT, 2, files=[conf]))
    assert refused["no"] == "changed"
    second = _run(talk, NEXT, 2, files=[_wanted("/etc/nccl.conf", b"new\n", b"newer\n")])
    for op in ("stage", "commit", "undo"):
        assert talk.ask(op, **second) == {}
    assert talk.ask("undo", **second) == {"nothing": "undone"}
    assert talk.text("etc/nccl.conf") == "new\n"
    states = [row["state"] for row in talk.ask("runs", **first)["runs"]]
    assert states == ["done", "undone"]
    state = talk.folder / "var/lib/clusterprep"
    (state / "runs" / NEXT / "manifest.json").write_text("{")
    moved = talk.ask("set_aside", **first)
    assert "no" not in moved, moved
    assert [row[0] for row in moved["moved"]] == [NEXT]
    assert [row[0] for row in talk.read("journal", str(state))["runs"]] == [RUN]


@story("act steps", "lock stage commit perform deeds take_back halt")
def steps(talk: Talk) -> None:
    """Operations of each kind that needs no root, undone in reverse."""
    value = talk.folder / "swappiness"
    value.write_text("60\n")
    body = _run(talk, LAST, 1)
    for op in ("lock", "stage", "commit"):
        assert "no" not in talk.ask(op, **body)
    made = str(talk.folder / "m\u00e4de")
    operations = [
        RunCommand(("touch", made), undo=(RunCommand(("rm", made)),)),
        Write("/etc/x", None, b"x\n", 0o600),
        OperationValue(str(value), b"60\n", b"10\n"),
    ]
    words = dict.fromkeys(("step", "resource", "target", "action", "diff"), "x")
    deeds = [{"place": 0, "operations": list(map(wire, operations)), **words}]
    done = talk.ask("perform", **body, deeds=deeds)
    assert "no" not in done, done
    assert (Path(made).exists(), talk.text("etc/x"), value.read_text()) == (
        True,
        "x\n",
        "10\n",
    )
    assert talk.ask("deeds", **body)["deeds"][0][-1] == ["done"] * 3
    assert talk.ask("halt", **body) == {}
    assert talk.ask("take_back", **body) == {"undone": [0], "kept": []}
    assert (Path(made).exists(), talk.text("etc/x"), value.read_text()) == (
        False,
        None,
        "60\n",
    )


@story("store results", "store look")
def findings(talk: Talk) -> None:
    path = str(talk.folder / "deep.json")
    body = {"path": path, "root": "/", "results": {"schema": 1, "seen": "\udcff"}}
    assert talk.ask("store", **body) == {"before": False}
    assert talk.ask("store", **body) == {"before": True}
    assert '"schema"' in talk.read("results", path)["text"]


@story("copying", "copy_look copy_place fetch_look")
def copies(talk: Talk) -> None:
    import hashlib

    data, path = b"bytes\xff\n", talk.folder / "f\u00fcr"
    body = {"path": str(path), "size": len(data), "mode": 0o640}
    body["sha"] = hashlib.sha256(data).hexdigest()
    looked = talk.ask("copy_look", **body)
    assert looked["action"] == "create"
    Path(looked["stage"]).write_bytes(data)
    assert talk.ask("copy_place") == {"action": "create"}
    assert talk.ask("copy_look", **body) == {"same": True}
    (row,) = talk.ask("fetch_look", path=f"{talk.folder}/*")["files"]
    assert (row["name"], row["sha"], row["mode"]) == (str(path), body["sha"], 0o640)
    assert path.read_bytes() == data


@story("sessions shared_marks", "mark see_mark unmark look")
def marks(talk: Talk) -> None:
    place = {"user": None, "path": str(talk.folder), "name": ".clusterprep-x", "text": "abc"}
    assert talk.ask("mark", **place) == {}
    assert set(talk.ask("see_mark", **place, seconds=LONG)) == {"seconds"}
    assert talk.ask("unmark") == {"left": "", "why": ""}
    assert list(talk.folder.iterdir()) == []
    (status, seen) = talk.read("shared", None, LONG, str(talk.folder))[str(talk.folder)]
    assert (status, seen["writable"]) == ("ok", True)


# ---------------------------------------------------------------- networks


@story("dial", "listen dial unlisten")
def ports(talk: Talk) -> None:
    (port,) = talk.ask("listen", spans=[[20000, 29999]])["ports"]
    dialled = talk.ask("dial", targets=[["127.0.0.1", port]], limit=LONG, sizes=[0, 600])
    assert [(row[0], row[3]) for row in dialled["dials"]] == [("ok", True)] * 2
    silent = talk.ask("dial", targets=[["127.0.0.1", port]], limit=LONG, sizes=[], silent=True)
    assert silent["dials"] == [["ok", 0, 0, False, 0]]
    taken = talk.ask("listen", spans=[[port, port]])["ports"][0]
    assert (taken["no"], taken["owner"]["pid"]) == ("in_use", talk.link.hello["pid"])
    assert talk.ask("unlisten") == {}


@story("stream", "serve unserve look")
def streams(talk: Talk) -> None:
    token = "t" * 32
    port = talk.ask("serve", token=token)["port"]
    found = talk.read("stream", "127.0.0.1", port, token, 20, 1 << 16)
    assert found["pings"] == 20
    assert found["out"] > 0
    assert found["back"] > 0
    assert talk.ask("unserve") == {}


# ---------------------------------------------------------------- processes


@story("output", "exec")
def commands(talk: Talk) -> None:
    said = "printf 'h\\303\\251\\n'; echo no >&2; exit 7"
    program = ShellProgram(size=len(said), stdin=said.encode())
    stdin = base64.b64encode(program.stdin).decode()
    assert talk.ask("exec", argv=program.argv, stdin=stdin) == {}
    assert talk.event("ended")["code"] == 7
    told = {event["stream"]: base64.b64decode(event["data"]) for event in talk.events}
    assert told == {"out": "h\u00e9\n".encode(), "err": b"no\n"}


# A rank without torch: it tells what it hears on its socket.
ECHO = """
import os
def main(fd):
    source = os.fdopen(os.dup(fd), "rb")
    os.write(fd, b'{"what": "config", "t": 0.0, "text": %s}\\n' % source.readline().strip())
    for line in iter(source.readline, b"end\\n"):
        text = b'{"what": "heard", "t": 0.0, "line": "%s"}\\n' % line.strip().replace(b'"', b"'")
        os.write(fd, text)
"""


def _trial(talk: Talk, **more: Any) -> dict[str, Any]:
    ranks = [{"rank": rank, "env": {"RANK": str(rank), "LANG": "C"}} for rank in (0, 1)]
    return {
        "python": talk.python,
        "user": None,
        "ranks": ranks,
        "config": {"said": "\u00e9"},
        **more,
    }


@story("ranks", "start go part hold sockets stop")
def ranks(talk: Talk) -> None:
    """Two ranks in the agent's own Python, as those of a trial."""
    assert len(talk.ask("start", **_trial(talk, source=ECHO))["pids"]) == 2
    assert [talk.event("config", rank=rank)["text"] for rank in (0, 1)] == [{"said": "\u00e9"}] * 2
    assert talk.ask("go", tasks=[{"rank": 1}, {"rank": 0}]) == {"left": 2}
    assert talk.event("heard", rank=0)["line"] == "{'rank': 0}"
    assert talk.ask("hold") == {}
    assert "no" not in talk.ask("sockets")
    assert talk.ask("part") == {}
    assert talk.event("heard", rank=1, line="part")
    assert talk.ask("stop", grace=LONG) == {"left": []}
    assert talk.event("exit", rank=0)["code"] == 0


@story("ranks", "start stop")
def trial(talk: Talk) -> None:
    """The program of the trial is read by this Python, and looks for a torch that is not there."""
    assert "no" not in talk.ask("start", **_trial(talk, source=bootstrap.rank_source()))
    assert talk.event("no_torch", rank=0)["text"]
    assert talk.event("exit", rank=0)["code"] == 3
    assert talk.ask("stop") == {"left": []}


@story("ranks", "start stop")
def stress(talk: Talk) -> None:
    assert "no" not in talk.ask("start", **_trial(talk, source=bootstrap.stress_source()))
    assert talk.event("no_torch", rank=1)["text"]
    assert talk.ask("stop") == {"left": []}


PROGRAM = """
import faulthandler, os, sys, time
faulthandler.enable()
print("out of", os.environ["RANK"], flush=True)
sys.stderr.write("err\\n")
sys.stderr.flush()
time.sleep(float(sys.argv[1]))
"""


@story("job", "script launch keep stacks finish")
def job(talk: Talk) -> None:
    """Two ranks of a job, of which one ends by itself and one shows where it stands."""
    script = talk.folder / "train.py"
    script.write_text(PROGRAM)
    place = {"user": None, "folders": [str(talk.folder)], "strict": True}
    looked = talk.ask("script", **place, path="train.py")
    assert looked == {"script": "there", "folder": str(talk.folder)}
    processes = []
    for rank, seconds in enumerate(("0", "600")):
        argv = [talk.python, "-u", "train.py", seconds]
        processes.append({"rank": rank, "argv": argv, "env": {"RANK": str(rank)}})
    body = {**place, "python": talk.python, "torchrun": False, "processes": processes}
    assert talk.ask("launch", **body)["folder"] == str(talk.folder)
    assert talk.event("lines", rank=1, stream="out")["lines"] == ["out of 1"]
    assert talk.event("lines", rank=1, stream="err")["lines"] == ["err"]
    assert talk.event("exit", rank=0)["code"] == 0
    assert talk.ask("keep") == {}
    assert talk.ask("stacks")["states"]["1"] in "SR"
    assert talk.event("exit", rank=1)["signal"] == 6
    lines = [line for event in talk.events if event["what"] == "lines" for line in event["lines"]]
    assert any("train.py" in line for line in lines)
    assert talk.ask("finish") == {"left": []}


@story("load_samples", "sample sampled")
def samples(talk: Talk) -> None:
    assert talk.ask("sample", interval=0.2) == {}
    assert set(talk.ask("sampled")) >= {"samples"}


# ---------------------------------------------------------------- the task of a Slurm step


def tell_relay(python: str) -> None:
    """Run a shell line through the relay of a task, and let its stdin end."""
    nonce = "0123456789abcdef"
    sent = bootstrap.relay_payload(nonce)
    for op, body in (("open", b"cat"), ("data", b"h\xc3\xa9\n"), ("close", b"")):
        sent += b"* 1 %s %d\n%s" % (op.encode(), len(body), body)
    env = {**os.environ, "SLURM_PROCID": "0", "SLURMD_NODENAME": "n1"}
    with subprocess.Popen(
        [python, bootstrap.FLAGS, "-c", LOADER],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as task:
        assert task.stdin is not None
        assert task.stdout is not None
        task.stdin.write(sent)
        records: list[Record] = []
        reader = RecordReader(nonce)
        for line in task.stdout:
            records += [record for _, record in reader.feed(b"0: " + line)]
            if any(record.kind == "x" for record in records):
                task.stdin.close()
                break
        assert task.wait(LONG) == 0
    said = {record.kind: record.data for record in records}
    assert (said["h"], said["o"]) == (b"n1", b"h\xc3\xa9\n")


# ---------------------------------------------------------------- reads with arguments of ours


def special_reads(python: str, folder: Path, port: int) -> list[Read]:
    """The reads that a plan for this machine does not have, each with arguments that it answers.

    Nothing listens on `port` of this machine.
    """
    setup = folder / "setup.sh"
    setup.write_text("export NCCL_DEBUG=INFO\n")
    runtime = json.dumps({"activate": str(setup)})
    url = (f"http://127.0.0.1:{port}/", "http", "127.0.0.1", port, "/")
    return [
        Read("endpoints", (None, False, url), limit=LONG),
        Read("alone", ("echo", "h\u00e9"), limit=LONG),
        Read("job", (0.05,), limit=LONG),
        Read("link_errors", (), limit=LONG),
        Read("shared", (None, LONG, str(folder)), limit=LONG),
        Read("surroundings", (), limit=LONG),
        Read("target", (str(folder / "file"), str(folder)), limit=LONG),
        Read("ssh_mesh", (None, False, "127.0.0.1"), limit=LONG),
        Read("shell_runtime", (python, None, runtime, ("NCCL_DEBUG",)), limit=LONG),
        Read("job_python", (python, None, "print('{}')", runtime), limit=LONG),
    ]


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port of this machine that is taken, and on which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
