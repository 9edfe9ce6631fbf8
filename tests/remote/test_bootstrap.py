"""Whatever happens to the transfer, an agent runs completely or not at all."""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote import bootstrap
from clusterprep.remote.transports.frames import (
    MAX_EVENT,
    MAX_EVENT_VALUES,
    MAX_FRAME,
    MAX_VALUES,
    FrameReader,
)
from tests.support.surroundings import login_home

NONCE = "0123456789abcdef"
PYTHONS = [sys.executable, *map(str, sorted(login_home().glob(".pyenv/versions/3.*/bin/python")))]


def start(command: str | None = None, folder: Path | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", command or bootstrap.command()],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def started_by(python: str, folder: Path | None = None) -> subprocess.Popen[bytes]:
    """The same in a Python that may be another one than that which the shell finds."""
    command = [python, bootstrap.FLAGS, "-c", shlex.split(bootstrap.command())[-1]]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder)


def finish(
    process: subprocess.Popen[bytes], data: bytes = b""
) -> tuple[list[dict[str, object]], bytes, int]:
    out, err = process.communicate(data, timeout=20)
    return FrameReader(NONCE).feed(out), err, process.returncode


def ask(number: int, **body: object) -> bytes:
    return json.dumps({"id": number, **body}).encode() + b"\n"


near_and_far = pytest.mark.parametrize("near", [True, False], ids=["near", "far"])


def forget_packed() -> None:
    for packed in (bootstrap._packed_agent, bootstrap._parcels, bootstrap._source):
        packed.cache_clear()


@near_and_far
def test_threads_that_start_agents_at_once_pack_them_once(near: bool) -> None:
    forget_packed()
    pack = bootstrap._parcels if near else bootstrap._source
    at_once = threading.Barrier(8)

    def start_agent(number: int) -> bytes:
        at_once.wait(20)
        return bootstrap.payload(f"{number:016x}", EVERY_PART[:4], near)

    with ThreadPoolExecutor(8) as pool:
        payloads = set(pool.map(start_agent, range(8)))
    assert len(payloads) == 8
    assert pack.cache_info().misses == 1


@near_and_far
def test_a_whole_transfer_says_hello_answers_and_ends_with_its_stdin(near: bool) -> None:
    frames, _, code = finish(start(), bootstrap.payload(NONCE, ["look"], near) + ask(1, op="ping"))
    assert frames[0]["hello"] == 1
    assert frames[1]["id"] == 1
    assert code == 0


@pytest.mark.parametrize(
    ("magic", "chosen"), [(bootstrap.MAGIC_NUMBER, "code"), (b"3.99", "text")], ids=str
)
def test_code_is_for_the_python_that_compiled_it(
    magic: bytes, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "MAGIC_NUMBER", magic)
    monkeypatch.setattr(bootstrap, "_compiled", lambda modules: b"no code")
    forget_packed()
    frames, err, _ = finish(
        started_by(sys.executable),
        bootstrap.payload(NONCE, ["look"], near=True) + ask(1, op="ping"),
    )
    forget_packed()
    assert ([frame.get("id") for frame in frames], bool(err)) == (
        ([], True) if chosen == "code" else ([None, 1], False)
    )


@pytest.mark.parametrize("python", PYTHONS)
def test_a_near_node_may_have_any_python(python: str) -> None:
    """All parts of the agent, in all Pythons of this machine.

    The agent reports which code its Python can run.
    """
    parts = [*bootstrap.parts_for(bootstrap.kinds()), "act", "ranks", "job"]
    frames, err, _ = finish(
        started_by(python), bootstrap.payload(NONCE, parts, near=True) + ask(1, op="ping")
    )
    assert ([frame.get("id") for frame in frames], err) == ([None, 1], b"")
    ours = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, check=True
    )
    same = ours.stdout.split() == [b"%d" % number for number in sys.version_info[:2]]
    assert (frames[0]["magic"] == bootstrap.MAGIC) == same


EVERY_PART = [*bootstrap.parts_for(bootstrap.kinds()), "act", "steps", "stream", "ranks", "job"]


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with a file in place of each module of Python's; whichever runs leaves `ran`."""
    for name in sys.stdlib_module_names:
        text = f"open({str(tmp_path / 'ran')!r}, 'a').write({name + ' '!r})\n"
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


@pytest.mark.parametrize("python", PYTHONS)
def test_no_file_of_the_working_folder_is_taken_for_a_module(python: str, planted: Path) -> None:
    frames, err, _ = finish(
        started_by(python, planted),
        bootstrap.payload(NONCE, EVERY_PART) + ask(1, op="ping"),
    )
    assert ([frame.get("id") for frame in frames], err) == ([None, 1], b"")
    assert not (planted / "ran").exists()


def test_what_the_agent_starts_works_in_no_folder_of_others(planted: Path) -> None:
    """The job's interpreter too, whose own path begins with the working folder."""
    script = "import json, os, struct; print(json.dumps([os.getcwd(), struct.calcsize('I')]))"
    reads = [["job_python", [sys.executable, None, script], 20], ["command", ["pwd"], 5]]
    answers = looked(reads, planted)
    assert answers[0] == ["ok", ["/", 4]]
    assert answers[1][1]["out"] == "/\n"
    assert not (planted / "ran").exists()


@near_and_far
def test_a_slow_transfer_arrives_whole(near: bool) -> None:
    """Byte by byte over the start, then in uneven pieces with pauses."""
    data = bootstrap.payload(NONCE, ["look"], near) + ask(1, op="ping")
    process = start()
    assert process.stdin is not None
    for piece in _pieces(data):
        process.stdin.write(piece)
        process.stdin.flush()
        time.sleep(0.001)
    frames, _, code = finish(process)
    assert [frame.get("id") for frame in frames] == [None, 1]
    assert code == 0


def _pieces(data: bytes) -> Iterator[bytes]:
    yield from (data[i : i + 1] for i in range(40))
    yield from (data[i : i + 4099] for i in range(40, len(data), 4099))


@near_and_far
@pytest.mark.parametrize("share", [0.0, 0.0001, 0.1, 0.3, 0.7, 0.999999], ids=str)
def test_a_transfer_that_ends_early_does_nothing(share: float, near: bool) -> None:
    data = bootstrap.payload(NONCE, ["look", "act"], near)
    frames, _, _ = finish(start(), data[: int(len(data) * share)])
    assert frames == []


@near_and_far
@pytest.mark.parametrize("place", [2000, 20000])
def test_a_truncated_part_followed_by_requests_never_runs_them_as_source(
    place: int, near: bool
) -> None:
    """The length counts bytes: requests in the gap spoil the source, so that no half of it runs."""
    data = bootstrap.payload(NONCE, ["look"], near)
    place = min(place, len(data) // 2)
    cut = data[:place] + data[place + 100 :]
    frames, err, _ = finish(start(), cut + ask(1, op="ping") * 20)
    assert frames == []
    assert err


def test_junk_before_and_between_answers_is_ignored(tmp_path: Path) -> None:
    command = "printf 'Welcome to n1!\\nno newline at the end: '; " + bootstrap.command()
    frames, _, _ = finish(start(command), bootstrap.payload(NONCE, ["look"]) + ask(1, op="ping"))
    assert [frame.get("id") for frame in frames] == [None, 1]
    noisy = FrameReader(NONCE)
    assert noisy.feed(b"x\n%s 12 {" % NONCE.encode()) == []
    assert noisy.feed(b'"id": 1234}\n??') == [{"id": 1234}]
    assert noisy.feed(b"more junk\n%s 8 {}" % NONCE.encode()) == []


def test_a_huge_line_without_a_nonce_is_an_error_not_a_memory_leak() -> None:
    reader = FrameReader(NONCE)
    reader.feed(b"A" * 1_000_000)
    with pytest.raises(ValueError, match="1 MiB"):
        reader.feed(b"A" * 65536)


def test_an_announced_giant_is_refused_before_it_is_read() -> None:
    with pytest.raises(ValueError, match="999999999 bytes"):
        FrameReader(NONCE).feed(b"\n%s 999999999 {" % NONCE.encode())


@pytest.mark.parametrize(
    "payload",
    [b"[1]", b"{", b"nul", b"[" * 5000, b'"text"'],
    ids=["list", "cut", "word", "deep", "text"],
)
def test_a_frame_that_is_no_object_is_an_error(payload: bytes) -> None:
    frame = b"\n%s %d %s\n" % (NONCE.encode(), len(payload), payload)
    with pytest.raises(ValueError, match="JSON"):
        FrameReader(NONCE).feed(frame)


def test_a_large_answer_may_come_in_many_pieces() -> None:
    payload = json.dumps({"id": 1, "text": "x" * 3_000_000}).encode()
    stream = b"\n%s %d %s\n" % (NONCE.encode(), len(payload), payload)
    reader = FrameReader(NONCE)
    reader.largest = MAX_FRAME
    frames = [
        frame
        for at in range(0, len(stream), 65536)
        for frame in reader.feed(stream[at : at + 65536])
    ]
    assert [len(frame["text"]) for frame in frames] == [3_000_000]


@pytest.mark.parametrize("junk", [b" x {}", b" ", b" 12x4 {}", b" -1 {}"], ids=repr)
def test_a_nonce_without_a_length_is_junk(junk: bytes) -> None:
    reader = FrameReader(NONCE)
    assert reader.feed(b"\n" + NONCE.encode() + junk + b"\n") == []
    assert reader.feed(b'\n%s 9 {"id": 7}\n' % NONCE.encode()) == [{"id": 7}]


def test_frames_survive_any_cut() -> None:
    stream = b"".join(b"\n%s %d %s\n" % (NONCE.encode(), 8, b'{"id":%d}' % i) for i in range(1, 6))
    reader = FrameReader(NONCE)
    frames = [frame for byte in stream for frame in reader.feed(bytes([byte]))]
    assert [frame["id"] for frame in frames] == [1, 2, 3, 4, 5]


def test_a_bad_request_is_answered_and_does_not_end_the_conversation() -> None:
    requests = ask(1, op="nonsense") + ask(2, op="look", reads="?") + ask(3, op="ping")
    frames, _, _ = finish(start(), bootstrap.payload(NONCE, ["look"]) + requests)
    answers = {frame["id"]: frame for frame in frames if "id" in frame}
    assert answers[1]["no"] == "agent_error"
    assert answers[2]["no"] == "agent_error"
    assert "seen" in answers[3]


def test_a_node_without_python_says_so(tmp_path: Path) -> None:
    command = bootstrap.command().replace("/usr/bin/python3", "/nowhere/python3")
    command = command.replace("/usr/libexec/platform-python", "/nowhere/platform-python")
    shell = shutil.which("sh")
    assert shell
    out = subprocess.run(
        [shell, "-c", command],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        timeout=10,
        check=False,
    ).stdout
    assert bootstrap.NO_PYTHON.encode() in out


def test_the_line_for_the_node_holds_nothing_that_any_shell_would_change() -> None:
    """Single-quoted words, three with sudo: no quote, backslash, newline or history mark inside."""
    for line, count in (
        (bootstrap.command(), 2),
        (bootstrap.command(become="ab12", ready="cd34", password=True), 3),
    ):
        quoted = line.split("'")[1::2]
        assert len(quoted) == count
        assert not set("\\\n!`") & set("".join(quoted))
    assert "-S -p ab12" in bootstrap.command(become="ab12", ready="cd34", password=True)
    assert " -n " in bootstrap.command(become="ab12", ready="cd34")


@pytest.mark.parametrize(
    ("there", "password", "expected"),
    [
        pytest.param(("sudo", "doas"), False, "sudo -n -- /bin/echo a  b", id="sudo-comes-first"),
        pytest.param(("sudo",), True, "sudo -k -S -p ab12 -- /bin/echo a  b", id="a-password"),
        pytest.param(("doas",), False, "doas -n -- setsid -w /bin/echo a  b", id="doas"),
        pytest.param(
            ("doas",), True, "doas -n -- setsid -w /bin/echo a  b", id="doas-asks-for-none"
        ),
    ],
)
def test_sudo_is_asked_and_where_there_is_none_doas(
    there: tuple[str, ...], password: bool, expected: str, tmp_path: Path
) -> None:
    for name in there:
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    line = bootstrap.become_prefix("ab12" if password else None) + "/bin/echo 'a  b'"
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected


def test_without_sudo_and_doas_the_shell_says_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", bootstrap.become_prefix(None) + "/bin/true"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 127
    assert "sudo" in done.stderr


@pytest.mark.machine
@pytest.mark.skipif(
    shutil.which("csh") is None and shutil.which("fish") is None, reason="no csh or fish here"
)
@pytest.mark.parametrize("shell", [s for s in ("csh", "fish") if shutil.which(s)])
def test_other_login_shells_pass_the_line_unchanged(shell: str) -> None:
    process = subprocess.Popen(
        [shell, "-c", bootstrap.command()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    out, _ = process.communicate(bootstrap.payload(NONCE, ["look"]), timeout=20)
    assert FrameReader(NONCE).feed(out)[0]["hello"] == 1


def test_an_agent_whose_controller_is_silent_ends_itself() -> None:
    source = (
        bootstrap.payload(NONCE, [])[9:]
        .decode()
        .replace(
            f"main({NONCE!r}, define, modules)", f"main({NONCE!r}, define, modules, patience=0.6)"
        )
    )
    process = start()
    assert process.stdin is not None
    process.stdin.write(b"%09d" % len(source.encode()) + source.encode())
    process.stdin.flush()
    assert process.wait(timeout=5) == 0
    process.communicate()


def looked(reads: list[list[Any]], folder: Path | None = None) -> list[Any]:
    """What an agent of this machine answers to some reads; it has ended when this returns."""
    process = start(folder=folder)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(bootstrap.payload(NONCE, ["look"]) + ask(1, op="look", reads=reads))
    process.stdin.flush()
    reader, frames = FrameReader(NONCE), []
    while not any("id" in frame for frame in frames):
        data = os.read(process.stdout.fileno(), 65536)
        assert data, "the agent ended"
        frames.extend(reader.feed(data))
    finish(process)
    return list(next(frame for frame in frames if "id" in frame)["answers"])


@pytest.mark.machine
def test_a_stuck_read_costs_its_limit_and_leaves_no_process(tmp_path: Path) -> None:
    """A fifo without a writer blocks open() for ever: only its own read is hung."""
    fifo = tmp_path / "stuck"
    os.mkfifo(fifo)
    reads = [
        ["file", [str(fifo)], 0.5],
        ["file", ["/proc/version"], 5],
        ["command", ["sleep", "777.25"], 0.5],
    ]
    answers = looked(reads)
    assert [answer[1] for answer in (answers[0], answers[2])] == ["hung", "hung"]
    assert answers[1][0] == "ok"
    assert (
        subprocess.run(["pgrep", "-f", "sleep 777.25"], capture_output=True, check=False).returncode
        == 1
    )


# The limit is measured in real time: it takes 1.5 s, and 3.5 s more are left for busy machines.
@pytest.mark.clock
def test_many_stuck_reads_cost_little_more_than_one(tmp_path: Path) -> None:
    """After the first one the others do not wait for each other; what can be read is read."""
    for number in range(8):
        os.mkfifo(tmp_path / str(number))
    limit = 1.0  # second
    stuck: list[list[Any]] = [["file", [str(tmp_path / str(number))], limit] for number in range(8)]
    reads = [read for fifo in stuck for read in (fifo, ["file", ["/proc/version"], limit])]
    began = time.monotonic()
    answers = looked(reads)
    assert [answer[1] for answer in answers[::2]] == ["hung"] * 8
    assert {answer[0] for answer in answers[1::2]} == {"ok"}
    assert (
        time.monotonic() - began < 5 * limit
    )  # one after the other: 8, and beside nothing else: 1.5


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b'{"id":1,"d":[' + b"[]," * MAX_VALUES + b"0]}", "more than 200,000 values"),
        (b'{"id":1,"d":{' + b'"a":{},' * MAX_VALUES + b'"b":0}}', "more than 200,000 values"),
        (b'{"id":1,"d":[' + b'"",' * MAX_VALUES + b"0]}", "more than 200,000 values"),
        (b'{"id":1,"d":"' + b"x" * (1 << 20) + b'\\ud83d\\ude00"}', "rare letters"),
        (b'{"what":"x","d":"' + b"x" * MAX_EVENT + b'"}', "that nothing asked for"),
        (b'{"what":"x","d":[' + b"0," * MAX_EVENT_VALUES + b"0]}", "that nothing asked for"),
    ],
    ids=["lists", "objects", "texts", "wide", "large-event", "event-of-values"],
)
def test_what_would_take_much_memory_is_refused(payload: bytes, words: str) -> None:
    reader = FrameReader(NONCE)
    reader.largest = MAX_FRAME
    with pytest.raises(ValueError, match=words):
        reader.feed(b"\n%s %d %s\n" % (NONCE.encode(), len(payload), payload))


def test_signs_within_texts_are_no_values() -> None:
    text = '[{"a\\": ,' * 100_000
    payload = json.dumps({"id": 1, "d": text}).encode()
    assert payload.count(b",") + payload.count(b"[") > MAX_VALUES
    reader = FrameReader(NONCE)
    reader.largest = MAX_FRAME
    (frame,) = reader.feed(b"\n%s %d %s\n" % (NONCE.encode(), len(payload), payload))
    assert frame["d"] == text


# ---------------------------------------------------------------- what each part imports

# Parts that are sent behind others alone.
BEHIND = {"steps": ("act",), "shared_marks": ("sessions",)}


def lacking(parts: tuple[str, ...], *, anywhere: bool = False) -> list[str]:
    """Return what modules of these parts import and nothing before them has brought.

    Functions import what is of runtimes, which nodes without one are not sent: `anywhere` counts
    these too. They are called once all parts are there.
    """
    modules = bootstrap._modules(parts)
    loaded = {name for name, _ in modules} if anywhere else set()
    found = []
    for name, source in modules:
        tree = ast.parse(source)
        for node in ast.walk(tree) if anywhere else tree.body:
            imported = node.module if isinstance(node, ast.ImportFrom) else None
            if imported and imported.startswith("clusterprep") and imported not in loaded:
                found.append(f"{name} imports {imported}")
        loaded.add(name)
    return found


@pytest.mark.parametrize("kind", bootstrap.kinds())
def test_what_one_kind_of_read_needs_is_sent_with_it(kind: str) -> None:
    assert lacking(bootstrap.parts_for([kind])) == []


@pytest.mark.parametrize("part", bootstrap._MODULES_OF_PART)
def test_what_a_part_needs_is_sent_with_it(part: str) -> None:
    """Reads may need further parts: those are sent by their kinds, see the test above."""
    kinds = bootstrap._KINDS_OF_PART.get(part, ())
    parts = bootstrap.parts_for(kinds) if kinds else ("look", *BEHIND.get(part, ()), part)
    assert lacking(parts) == []


def test_a_job_is_started_inside_a_runtime_with_nothing_else_sent() -> None:
    for part in ("ranks", "job"):
        parts = (*bootstrap.parts_for([bootstrap.INSIDE]), part)
        assert lacking(parts, anywhere=True) == []


def test_questions_are_asked_inside_a_runtime_with_nothing_else_sent() -> None:
    parts = bootstrap.parts_for([bootstrap.INSIDE, *bootstrap.kinds()])
    assert lacking(parts, anywhere=True) == []
