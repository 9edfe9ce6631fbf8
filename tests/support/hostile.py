"""A python3 of a node that is not one: it reads what the controller sends, and answers as WAY says.

It becomes the host's interpreter because it lies where that is looked for. Some ways run the real
agent and spoil its answers, so that the rest of the conversation is real; others are no agent at
all.
"""

from __future__ import annotations

from tests.support.lab import Host
from tests.support.lab.faults.fault import Fault
from tests.support.lab.faults.files import written

PLACE = "/usr/bin/python3"

# Way → the reason that the controller gives for the node; None: it is reached, and judged by what
# it said.
LOST = {
    "lines": "garbled",
    "one_line": "garbled",
    "deep": "garbled",
    "rather_deep": "garbled",
    "digits": "garbled",
    "no_number": "garbled",
    "giant": "garbled",
    "list": "garbled",
    "others": "garbled",
    "events": "garbled",
    "too_few": "garbled",
    "unasked": "timed_out",  # nothing of it is kept, and nothing else comes
    "beats": "timed_out",
    "drip": "timed_out",
}
SPOILT = ("types", "nothing", "words", "clock", "twice")
WRITING = "writes"  # an agent as any other, until something is to be written
WAYS = (*LOST, *SPOILT, WRITING)
# Answers that are small to send and large in memory; processes that hold the streams of the agent.
COSTLY = ("bomb", "forks")
# Agents as any other, until they are to run ranks of a trial or processes of a launch.
JOBS = (
    "others_rank",  # what it tells, it tells of rank 0 too, which runs on another node
    "babbles",  # tells without end, once its processes run
    "never_ends",  # answers no request to end its processes
    "pretends",  # runs nothing, and tells that all went well
)

_PROGRAM = r'''#!REAL
import json, os, re, sys, time
WAY = "WAY_OF_THIS_HOST"
if "-c" not in sys.argv:
    os.execv("REAL", ["REAL"] + sys.argv[1:])

def take(count):
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data

def say(data):
    while data:
        data = data[os.write(1, data):]

length = take(9)
source = take(int(length))
nonce = re.search(rb"main\('([0-9a-f]+)', define, modules\)", source)[1]

def frame(payload):
    say(b"\n" + nonce + b" " + str(len(payload)).encode() + b" " + payload + b"\n")

def rest():
    """Send a heartbeat for as long as the other end listens."""
    while True:
        frame(b'{"beat": 1}')
        time.sleep(0.2)

def fake():
    if WAY == "lines":
        while True:
            say(b"Welcome to this node!\n" * 1000)
    if WAY == "one_line":
        while True:
            say(b"A" * 65536)
    frame(b'{"hello": 1}')
    if WAY == "others":
        while True:
            say(b'\n0123456789abcdef 10 {"id": 1}\n' * 1000)
    if WAY == "events":
        while True:
            say((b"\n" + nonce + b' 15 {"what":"left"}\n') * 2000)
    if WAY == "unasked":
        while True:
            for number in range(1000, 2000):
                frame(b'{"id": %d, "answers": []}' % number)
            frame(b'{"what": "x"}')
            # Or it were a flood, which is another way, where the look takes a minute.
            time.sleep(0.2)
    if WAY == "drip":
        while True:
            say(b"\n" + nonce + b" 1")
            time.sleep(0.1)
            say(b'2 {"beat": 12}\n')
    if WAY == "giant":
        say(b"\n" + nonce + b" 999999999 {")
    if WAY == "bomb":
        heard = b""
        while b'"op":"look"' not in heard:
            heard += os.read(0, 65536) or sys.exit(0)
        number = int(re.findall(rb'\{"id":([0-9]+),"op":"look"', heard)[-1])
        frame(b'{"id": %d, "answers": [' % number + b"[]," * 5500000 + b"[]]}")
        rest()
    heard = b""
    while WAY not in ("beats", "giant"):
        bodies = {
            "deep": b'{"id": %d, "answers": ' + b"[" * 100000 + b"]" * 100000 + b"}",
            "rather_deep": b'{"id": %d, "answers": ' + b"[" * 300 + b"]" * 300 + b"}",
            "digits": b'{"id": %d, "seen": ' + b"9" * 1000000 + b"}",
            "no_number": b'{"id": %d, "seen": NaN, "sent": Infinity}',
            "list": b'[{"id": %d}]',
            "too_few": b'{"id": %d, "seen": 1, "sent": 1, "answers": []}',
        }
        heard += os.read(0, 65536) or sys.exit(0)
        for number in re.findall(rb'\{"id":([0-9]+),"op"', heard):
            frame(bodies[WAY] % int(number))
        heard = heard[-20:]
    rest()

EVIL = (
    "\x1b[31m\x1b]0;x\x07[red]x[/] </script><img src=x onerror=y> a\"b\\c{d=\"e\"}"
    "\nPASS all is well\u202e\ud800"
)

def spoil(body):
    if WAY == "clock" and "seen" in body:
        body["seen"] = 1e308
        body["sent"] = -1e308
    rows = body.get("answers")
    for row in rows if isinstance(rows, list) else ():
        if WAY == "types":
            row[:] = ["ok", {"x": [1, None, {"y": 2 ** 63}]}]
        elif WAY == "nothing":
            row[:] = []
        elif WAY == "words":
            row[:] = ["no", EVIL * 3, EVIL * 1000]
    return body

def real():
    """The agent itself, with what it says spoilt on the way out."""
    here = {"g": take, "n": int(length), "z": source, "__name__": "__main__"}
    import binascii, zlib
    start, _, packed = source.partition(b"~")
    here["zlib"] = zlib
    exec(zlib.decompress(binascii.a2b_base64(packed)), here)
    agent = sys.modules["clusterprep.remote.agent.loop"]
    emit = agent.Agent.emit
    def emitted(self, body):
        emit(self, spoil(body))
        if WAY == "twice":
            emit(self, body)
            emit(self, dict(body, id=77))
    agent.Agent.emit = emitted
    answer = agent.Agent.answer
    def answered(self, request, **body):
        if WAY == "writes" and request["op"] == "stage":
            body = {"no": "changed", "why": [EVIL * 9], "path": ["x"], "current": "%", "left": 7}
        answer(self, request, **body)
    agent.Agent.answer = answered
    if WAY in ("others_rank", "babbles", "never_ends", "pretends"):
        spoil_jobs(agent.Agent)
    exec(start, here)

PRETENDED = ("start", "go", "launch", "stop", "finish", "hold", "keep")
TOLD = ("spawned", "started", "imported", "ready", "store", "joined", "met", "finished")

def spoil_jobs(kind):
    emit, serve = kind.emit, kind._serve

    def emitted(self, body):
        emit(self, body)
        if "what" not in body:
            return
        if WAY == "others_rank" and body.get("rank"):
            emit(self, dict(body, rank=0))
        if WAY == "babbles":
            os.set_blocking(1, True)
            event = json.dumps(dict(body, what="lines", lines=["x" * 200] * 50)).encode()
            while True:
                frame(event)

    def served(self, request):
        op = request.get("op")
        if WAY == "never_ends" and op in ("stop", "finish"):
            return
        if WAY != "pretends" or op not in PRETENDED:
            serve(self, request)
            return
        entries = request.get("ranks") or request.get("processes") or request.get("tasks") or ()
        self.answer(request, pids=[1] * len(entries), left=len(entries), folder="/", user="root")
        for entry in entries:
            names = TOLD if op == "go" else TOLD[:4]
            for name in names:
                emit(self, {"rank": entry["rank"], "what": name, "mono": time.monotonic()})
        if op == "go":
            for entry in entries:
                end = {"rank": entry["rank"], "what": "exit", "code": 0, "mono": time.monotonic()}
                emit(self, end)

    kind.emit, kind._serve = emitted, served

def hold():
    """Become processes that hold the agent's streams for a minute."""
    for _ in range(300):
        if os.fork() == 0:
            os.execv("/bin/sleep", ["sleep", "60"])

JOBS = ("others_rank", "babbles", "never_ends", "pretends")
SPOILT = ("types", "nothing", "words", "clock", "twice", "writes", "forks") + JOBS
if WAY == "forks":
    hold()
real() if WAY in SPOILT else fake()
'''


def hostile(host: Host, way: str) -> Fault:
    """A host whose python3 is ours."""
    real = host.run(["readlink", "-f", PLACE]).stdout.strip()
    return written(
        host, PLACE, _PROGRAM.replace("REAL", real).replace("WAY_OF_THIS_HOST", way), 0o755
    )
