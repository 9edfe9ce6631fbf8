"""The controller where it is not Linux: nothing of it needs what only Linux has.

tests/support/macos.py says what stands in for macOS, tests/hosts/test_other_systems.py has the
commands that reach nodes.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.macos import LINUX_ONLY, ROOT, write_python
from tests.support.patience import LONG

PACKAGE = ROOT / "clusterprep"
# What the controller uses of Linux alone, with what it does elsewhere.
ELSEWHERE = {
    ("remote/transports/factory.py", "os.sched_getaffinity"): "all cores count",
    ("remote/transports/local.py", "os.waitid"): "refused: nodes run Linux",
    ("remote/transports/tcp.py", "socket.TCP_INFO"): "every node counts as far",
    ("runtime/budget.py", "time.CLOCK_BOOTTIME"): "the time before Python starts is not counted",
}


def used(path: Path) -> Iterator[str]:
    """Yield what only Linux has and a module names, as os.waitid."""
    linux_only = {name: set(words.split()) for name, words in LINUX_ONLY.items()}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, name = node.value.id, node.attr
            if name in linux_only.get(module, ()):
                yield f"{module}.{name}"


def test_what_only_linux_has_is_used_where_there_is_another_way() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in PACKAGE.rglob("*.py")
        if PACKAGE / "remote/agent" not in path.parents
        for name in used(path)
    }
    assert found == set(ELSEWHERE)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_python(tmp_path_factory.mktemp("macos"))


def run(python: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [str(python), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG,
        cwd=python.parent,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_the_stand_in_is_no_linux(python: Path) -> None:
    tried = "import os, sys, select\nprint(sys.platform, hasattr(os, 'waitid'))\nselect.epoll"
    done = subprocess.run([str(python), "-c", tried], capture_output=True, text=True, check=False)
    assert done.stdout == "darwin False\n"
    assert "has no attribute 'epoll'" in done.stderr
    for path in ("/proc/self/stat", "/sys/class/net"):
        done = subprocess.run(
            [str(python), "-c", f"open({path!r})"], capture_output=True, text=True, check=False
        )
        assert "FileNotFoundError" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--help", "Usage: clusterprep"),
        ("explain eth.mtu", "Why it matters"),
        ("selftest --only eth.mtu", "checks fire on their fault"),
        (f"lint {ROOT}/inventory.example.yaml", "0 errors"),
    ],
    ids=lambda value: value.split()[0],
)
def test_commands_without_nodes(python: Path, words: str, said: str) -> None:
    assert said in run(python, "-m", "clusterprep", *words.split())


def test_a_machine_that_is_no_linux_is_no_node(python: Path) -> None:
    told = run(python, "-m", "clusterprep", "check", "--local", code=2)
    assert "this machine runs darwin, and nodes run Linux" in told


OPEN_FILES = """
import resource
from clusterprep.survey import open_files
for count in (64, 20000):
    open_files.raise_limit(count)
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_open_files_are_raised_as_far_as_macos_goes(python: Path) -> None:
    assert run(python, "-c", OPEN_FILES).split() == ["320", "10240"]


SILENCE = """
import socket
from clusterprep.remote.transports.wire import Wire
wire = Wire.__new__(Wire)
with socket.socket() as wire._stream:
    wire.notice_silence(30.0)
    print(wire._stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
    for name in ("TCP_KEEPALIVE", "TCP_KEEPINTVL", "TCP_KEEPCNT"):
        print(wire._stream.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)))
"""


def test_a_silent_peer_is_noticed_by_the_kernel(python: Path) -> None:
    assert run(python, "-c", SILENCE).split() == ["1", "10", "10", "2"]


PARSE = """
from clusterprep.survey import registry
from clusterprep.survey.parse_process import ParseProcess
process = ParseProcess()
print(process.parse(registry.facts()["kernel.release"], [["ok", "6.1.0-49-amd64\\n"]]))
process.close()
"""


def test_large_answers_are_parsed_in_a_process_without_a_limit_of_memory(python: Path) -> None:
    assert run(python, "-c", PARSE) == "6.1.0-49-amd64\n"
