"""What a hostile node says: sudo's password back to us, and escapes for our terminal.

The password is printed in every form and at every stage: by a program in the place of sudo before
it ends, between its ready word and Python, by an agent in every text that it sends, by steps, by a
job. No report, log, history or terminal has it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterprep.remote.transports.secret_filter import HIDDEN
from clusterprep.reports import SUFFIXES
from tests.hosts.test_secrets import files, rows
from tests.support.command import CLI
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults.fault import Fault
from tests.support.lab.faults.files import written

pytestmark = pytest.mark.hosts

USER, PASSWORD = "alice", "Tr0ub4dor  &3 c0rrect"
PYTHON, SUDO = "/usr/bin/python3", "/usr/bin/sudo"

# The forms of a text in which programs print it; both programs below begin with this.
FORMS = r"""#!REAL
import base64, html, json, os, re, shlex, sys, time, urllib.parse
def forms_of(text):
    data = text.encode()
    return [
        text, " ".join(text.split()), shlex.quote(text), json.dumps(text), repr(text),
        html.escape(text), urllib.parse.quote(text), urllib.parse.quote_plus(text), data.hex(),
        base64.b64encode(data).decode(), base64.b64encode(b"alice:" + data + b"\n").decode(),
        re.sub(r"(\W)", r"\\\1", text),
    ]
def tell(text):
    for form in forms_of(text):
        for stream in (1, 2):
            os.write(stream, ("sudo: account alice: " + form).encode())
            time.sleep(0.001)
            os.write(stream, b" is not valid here\n")
        half = len(form) // 2
        os.write(2, form[:half].encode())
        time.sleep(0.001)
        os.write(2, form[half:].encode() + b"\n")
    os.write(2, text.encode() * 400)  # more than is kept of a stderr
    os.write(2, b" " * 8000 + b"\n")
"""
FAKE_SUDO = (
    FORMS
    + r"""
words = sys.argv[1:]
ready = re.search(r'b"([0-9a-f]{16}) "', " ".join(words))[1]
os.write(2, words[words.index("-p") + 1].encode())
secret = b""
while not secret.endswith(b"\n"):
    secret += os.read(0, 1)
text = secret.decode().rstrip("\n")
way = "WAY"
if way == "refuse":
    tell(text)
    sys.exit(1)
if way == "ready":
    os.write(1, ready.encode() + b" ")
    time.sleep(0.3)
    tell(text)
    sys.exit(1)
with open("/home/alice/told", "w") as sink:
    sink.write(text)
command = words[words.index("--") + 1:]
os.execvp(command[0], command)
"""
)
FAKE_PYTHON = (
    FORMS
    + r"""
if "-c" not in sys.argv or not os.path.exists("/home/alice/told"):
    os.execv("REAL", ["REAL"] + sys.argv[1:])
secret = open("/home/alice/told").read()
if "WAY" == "dies":
    tell(secret)

def take(count):
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data

spoken = [0]
def spoilt(value):
    if isinstance(value, str):
        spoken[0] += 1
        forms = forms_of(secret)
        return value + " " + forms[spoken[0] % len(forms)]
    if isinstance(value, list):
        return [spoilt(item) for item in value]
    if isinstance(value, dict):
        return dict((key, spoilt(item)) for key, item in value.items())
    return value

# Python, when sudo starts it, first says a word that sudo's caller waits for.
loader = sys.argv[sys.argv.index("-c") + 1]
ready = re.search(r'b"([0-9a-f]{16} )"', loader)
if ready:
    os.write(1, ready[1].encode())
length = take(9)
source = take(int(length))
here = {"g": take, "n": int(length), "z": source, "__name__": "__main__"}
import binascii, zlib
start, _, packed = source.partition(b"~")
here["zlib"] = zlib
exec(zlib.decompress(binascii.a2b_base64(packed)), here)
agent = sys.modules["clusterprep.remote.agent.loop"]
emit = agent.Agent.emit
def emitted(self, body):
    rows = body.get("answers")
    if isinstance(rows, list):
        # Half of the answers stay as they are, so that the node is judged by something.
        body["answers"] = [spoilt(row) if place % 2 else row for place, row in enumerate(rows)]
    elif "why" in body:
        body["why"] = spoilt(str(body["why"]))
    os.write(2, ("agent: " + secret + "\n").encode())
    if "WAY" == "dies" and rows:
        os.write(1, secret.encode())
        os._exit(1)
    emit(self, body)
agent.Agent.emit = emitted
exec(start, here)
"""
)
BUG = """\
import clusterprep.cli.commands.check as command
look = command.run
def run(invocation): raise RuntimeError(repr(look(invocation)))
command.run = run
"""


def program(host: Host, place: str, text: str, way: str) -> Fault:
    """A host whose program is another one."""
    real = host.run(["readlink", "-f", PYTHON]).stdout.strip()
    return written(host, place, text.replace("REAL", real).replace("WAY", way), 0o755)


def needles() -> list[str]:
    """Parts of the password, in every form of it, that nothing else says."""
    program = FORMS.replace("#!REAL", "") + "print(json.dumps(forms_of(sys.argv[1])))"
    argv = [sys.executable, "-c", program, PASSWORD]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    middles = []
    for form in json.loads(done.stdout):
        third = len(form) // 3
        middles.append(form[third : 2 * third])
    return [*middles, "r0ub4", "c0rre"]


NEEDLES = needles()


def found_in(text: str) -> list[str]:
    return [needle for needle in NEEDLES if needle in text]


@pytest.fixture
def accounts(lab4: Lab) -> Iterator[Lab]:
    for host in lab4.hosts:
        faults.add_user(host, USER, "password", PASSWORD)
    yield lab4
    for host in lab4.hosts:
        host.run(["userdel", "--force", "--remove", USER])


class Said:
    """Commands of a controller of its own, and all that they left."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.texts: dict[str, str] = {}
        ssh = {**lab.inventory_content()["ssh"], "user": USER}
        self.inventory = lab.inventory(folder / "inventory.yaml", ssh=ssh, become=True)
        (folder / "broken").mkdir()
        (folder / "broken" / "sitecustomize.py").write_text(BUG)

    def run(self, name: str, command: str, host: str, *words: str, **env: str) -> int:
        place = self.folder / name
        outputs = [f"--output={place}{suffix}" for suffix in SUFFIXES.values()]
        argv = [*CLI, command, str(self.inventory), "--limit", host, "-v", *outputs]
        if command == "check":
            argv += ["--only", "ssh.,os.,host.,lim."]
        state = {"XDG_STATE_HOME": str(self.folder / "state")}
        given = {"CLUSTERPREP_BECOME_PASSWORD": PASSWORD}
        done = self.lab.controller.run([*argv, *words], env={**state, **given, **env}, timeout=100)
        self.texts[name] = done.stdout + done.stderr
        return done.returncode

    def leaks(self) -> dict[str, list[str]]:
        """Return the parts of the password that were said or written, by where."""
        texts = dict(self.texts)
        for path in files(self.folder):
            texts[str(path)] = path.read_bytes().decode("utf-8", "replace")
        for number, cell in enumerate(rows(self.folder / "state/clusterprep/history.sqlite")):
            texts[f"history, cell {number}"] = cell.decode("utf-8", "replace")
            with contextlib.suppress(zlib.error):
                texts[f"history, cell {number}, unpacked"] = zlib.decompress(cell).decode()
        return {place: found for place, text in texts.items() if (found := found_in(text))}


def test_the_password_comes_back_in_no_report(accounts: Lab, tmp_path: Path) -> None:
    said = Said(accounts, tmp_path)
    n1, n2, n3, n4 = accounts.hosts
    with program(n1, SUDO, FAKE_SUDO, "refuse"):
        assert said.run("refused", "check", "n1") == 1
    with program(n2, SUDO, FAKE_SUDO, "ready"):
        assert said.run("ready", "check", "n2") == 1
    for way in ("lies", "dies"):
        with program(n3, SUDO, FAKE_SUDO, "starts"), program(n3, PYTHON, FAKE_PYTHON, way):
            assert said.run(way, "check", "n3") in (1, 3)
            path = f"{said.folder}/broken:{Path.cwd()}"
            assert said.run(f"{way}-bug", "check", "n3", PYTHONPATH=path) == 70
    book = tmp_path / "book.yaml"
    step = {
        "command": {
            "run": "sh -c 'cat /root/told; cat /root/told >&2; exit 3'",
            "creates": "/root/made",
        }
    }
    book.write_text(json.dumps([step]))
    told = "\n".join([PASSWORD, f"'{PASSWORD}'", PASSWORD.encode().hex()])
    n4.write("/root/told", told)
    said.run("step", "apply", "n4", "--playbook", str(book), "--no-verify", "--only", "ssh.")
    job = ("--direct", "--no-preflight", "--", "cat", "/root/told")
    said.run("job", "launch", "n4", *job)
    for name in ("refused", "ready", "dies", "step", "job"):
        assert HIDDEN in said.texts[name], (name, said.texts[name])
    assert "the answer holds the password of sudo" in said.texts["lies"]
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    for name in ("last", "last~1", "last~2", "last~3", "last~4"):
        argv = [*CLI, "report", name, "--format", "json"]
        said.texts[f"report {name}"] = accounts.controller.run(argv, env=state).stdout
    assert said.leaks() == {}


# ---------------------------------------------------------------- escapes

ESCAPES = b"\x1b]52;c;Y3VybCBldmls\x07\x1b]0;title\x07\x1bc\x9b2J\r\x08\xe2\x80\xae\xe2\x80\xa8"
ACTING = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), "\u202e", "\u2028"} - {"\n", "\t"}


def at_a_terminal(lab: Lab, *words: str, answer: bytes = b"") -> tuple[int, str]:
    """Return the exit code of a command at a terminal, and what that showed."""
    master, slave = pty.openpty()
    streams = {"stdin": slave, "stdout": slave, "stderr": slave}
    shown = b""
    env = {"TERM": "dumb", "NO_COLOR": "1"}
    with lab.controller.popen([*CLI, *words], env=env, **streams) as process:
        os.close(slave)
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while select.select([master], [], [], 60)[0]:
                piece = os.read(master, 1 << 16)
                if not piece:
                    break
                shown += piece
                if answer and b"Write this?" in shown:
                    os.write(master, answer)
                    answer = b""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
    os.close(master)
    return process.returncode, shown.decode("utf-8", "surrogateescape").replace("\r\n", "\n")


def test_a_difference_that_is_approved_writes_no_escape(lab4: Lab, tmp_path: Path) -> None:
    host = lab4.host("n1")
    book = tmp_path / "book.yaml"
    book.write_text('- file: {path: /etc/x.conf, content: "rm -rf /precious\\n"}\n')
    with written(host, "/etc/x.conf", ""):
        (host.folder / "upper/etc/x.conf").write_bytes(b"old" + ESCAPES + b"end\n")
        words = ("--playbook", str(book), "--no-verify", "--only", "ssh.", "--ask", "--limit", "n1")
        code, shown = at_a_terminal(lab4, "apply", str(lab4.inventory()), *words, answer=b"n\n")
    assert code == 0, shown
    assert "-old" in shown, shown
    assert "end" in shown, shown
    assert "+rm -rf /precious" in shown, shown
    assert ACTING.isdisjoint(shown), repr(shown)


HOOK = r"""
look = sys.modules["clusterprep.remote.agent.look"]
answer = look.answer
def renamed(kind, args):
    answered = answer(kind, args)
    if kind == "interfaces" and answered[0] == "ok":
        for row in answered[1]:
            if row["name"] == "eth0":
                row["name"] = "eth0\x1b]52;c;ZWNobyBoaQ==\x07"
    return answered
look.answer = renamed
exec(start, here)
"""
NAMES_AN_INTERFACE = FAKE_PYTHON.replace('"/home/alice/told"', '"/dev/null"').partition("agent =")[
    0
]


def test_a_name_with_escapes_is_in_no_target(lab4: Lab) -> None:
    """To a pipe a target is written byte by byte, so a name that acts may not come that far."""
    words = ("env", str(lab4.inventory()), "--target", "profile.d", "--node", "n3")
    well = lab4.controller.run([*CLI, *words])
    assert "NCCL_SOCKET_IFNAME" in well.stdout
    with program(lab4.host("n3"), PYTHON, NAMES_AN_INTERFACE + HOOK, "names"):
        done = lab4.controller.run([*CLI, *words])
        code, shown = at_a_terminal(lab4, *words)
    assert done.returncode == code == 3, done
    for text in (done.stdout, done.stderr, shown):
        assert ACTING.isdisjoint(text), repr(text)
    assert "n3" in done.stderr
