"""Parses large answers in a process of its own, which is killed if it takes too long.

value = ParseProcess().parse(fact, raw_answers)

A regular expression holds the interpreter's lock until it is done. If a node's answer made one run
for minutes, neither --timeout nor an interruption nor any other node would get a turn. Answers
below LARGE are parsed where they are: tests hold that no parser takes long for them
(tests/project/test_growth.py). Larger ones are rare, and go to a child.

The child is killed by the kernel once it has worked for CPU_LIMIT, whatever it is doing. It is
started by the first large answer, and ends with its standard input.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, Any

from clusterprep.errors import LinkLost
from clusterprep.facts import Fact
from clusterprep.model import Json
from clusterprep.model.extensions import SITE_MODULES
from clusterprep.survey import registry
from clusterprep.survey.answers import narrowed_and_parsed

LARGE = 64 << 10  # bytes of a fact's answers
CPU_LIMIT = 1.0  # seconds of the processor for one fact of one node
WALL_LIMIT = 20.0  # seconds, on a controller where other work takes the processors
END_LIMIT = 0.1  # seconds for a child that was killed to be gone
MEMORY = 1 << 30  # bytes of address space that the child may have
_LENGTH = 8  # bytes of a message's length
_MODULES = (
    "clusterprep.",
    "builtins",
    "collections",
    "ipaddress",
)  # whose classes a value may have
# The folders of the controller's own modules come as an argument: -I takes no others.
_START = (
    "import json,sys;sys.path[:]=json.loads(sys.argv[1]);"
    "from clusterprep.survey.parse_process import serve;serve()"
)


class ParseProcess:
    """The child, started when it is first needed. Many threads may use it, one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._why = ""  # why the last child ended, as the end of a sentence

    def parse(self, fact: Fact, raw_answers: Sequence[Json]) -> Any:
        """Return the fact's value, or the Absent that says why it is not known.

        Raises LinkLost, which names the fact, if that takes too long.
        """
        question = _packed_question(fact, raw_answers)
        if question is None:
            return narrowed_and_parsed(fact, raw_answers)
        with self._lock:
            answer = None if self._closed else self._ask(question)
        if answer is None:
            raise LinkLost("garbled", f"what it answered for {fact.name} {self._why}")
        return answer[0]

    def close(self) -> None:
        """End the child, also in the middle of an answer."""
        self._closed = True
        self._end_child()

    def _end_child(self) -> None:
        child = self._child
        self._child = None
        if child is not None:
            _end(child)

    def _ask(self, question: bytes) -> tuple[Any] | None:
        """Return the child's answer, None if it was killed for it. Then the next one is another."""
        child = self._child
        if child is None or child.poll() is not None:
            child = self._child = _started()
        answer = None
        try:
            answer = _conversed(child, question)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            pass  # it was killed
        finally:
            # Also after an interruption: what it still answers would pass for the next answer.
            if answer is None:
                self._why = _how_it_ended(child)
                self._end_child()
        return answer


def _packed_question(fact: Fact, raw_answers: Sequence[Json]) -> bytes | None:
    """Return a question for the child, None if the child cannot find the fact's functions.

    Functions are sent by their names, and those that have none are found by the name of the fact.
    Neither works for functions made for one file, as of the files that a step may write: these
    decode base64 and nothing else.
    """
    answers = json.dumps(raw_answers)
    functions = (fact.parse, fact.narrow, fact.lenient)
    if any(_is_of_site(function) for function in (fact.parse, fact.narrow)):
        return None
    try:
        return pickle.dumps((fact.name, functions, answers))
    except (pickle.PicklingError, AttributeError, TypeError):
        if registry.facts().get(fact.name) is fact:
            return pickle.dumps((fact.name, None, answers))
        return None


def _is_of_site(function: object) -> bool:
    """Return whether a function stands in a file of the site, which the child cannot import."""
    return str(getattr(function, "__module__", "")).startswith(SITE_MODULES)


def _started() -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-I", "-c", _START, json.dumps(sys.path)]
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the controller, which then closes it
        cwd="/",
    )


def _how_it_ended(child: subprocess.Popen[bytes]) -> str:
    """Return why the child gave no answer, as the end of a sentence."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if child.wait(END_LIMIT) == -signal.SIGPROF:
            return f"takes more than {CPU_LIMIT:g} s to read"
    return "could not be read"


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what was not written finds no reader
                pipe.close()


def _conversed(child: subprocess.Popen[bytes], question: bytes) -> tuple[Any] | None:
    """Return the child's answer to a question. Raises EOFError or OSError if it has ended."""
    if child.stdin is None or child.stdout is None:
        raise EOFError
    _send(child.stdin, question)
    if not select.select([child.stdout], [], [], WALL_LIMIT)[0]:
        return None
    message = _received(child.stdout)
    answer: tuple[Any] = _ValueReader(io.BytesIO(message)).load()
    return answer


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(_LENGTH, "big") + message)
    stream.flush()


def _received(stream: IO[bytes]) -> bytes:
    """Return the next message. Raises EOFError at the end of the stream."""
    head = stream.read(_LENGTH)
    length = int.from_bytes(head, "big")
    message = stream.read(length)
    if len(head) < _LENGTH or len(message) < length:
        raise EOFError
    return message


class _ValueReader(pickle.Unpickler):
    """Reads values of facts, and makes objects of no other classes."""

    def find_class(self, module: str, name: str) -> Any:
        if not module.startswith(_MODULES):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a fact")
        found = super().find_class(module, name)
        if not isinstance(found, type):
            raise pickle.UnpicklingError(f"{module}.{name} is no class")
        return found


# ---------------------------------------------------------------- the child


def serve() -> None:
    """Answer questions from standard input until it ends. Runs in the child."""
    # macOS has no limit of memory: there an answer is bounded by its size and the time to read it.
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Without a handler of Python's: that would wait for the interpreter's lock.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    while True:
        try:
            question = _received(sys.stdin.buffer)
        except EOFError:
            return
        fact, raw_answers = _unpacked_question(question)
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT)
        value = narrowed_and_parsed(fact, raw_answers)
        answer = pickle.dumps((value,))
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        _send(sys.stdout.buffer, answer)


def _unpacked_question(question: bytes) -> tuple[Fact, list[Json]]:
    name, functions, answers = pickle.loads(question)  # noqa: S301 - from the controller
    if functions is None:
        return registry.facts()[name], json.loads(answers)
    parse, narrow, lenient = functions
    return Fact(name, parse=parse, narrow=narrow, lenient=lenient), json.loads(answers)
