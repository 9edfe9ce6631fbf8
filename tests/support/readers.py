"""The real readers of what apply writes. Each gives back the variables that it found.

`run` starts a command, on a host of the lab or here. Of Slurm there is no program to be asked, so
its rule stands here.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import shlex
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

Run = Callable[..., subprocess.CompletedProcess[str]]
Found = dict[str, str]

CLEAN = ("env", "-i", "PATH=/usr/bin:/bin", "HOME=/root", "LC_ALL=C.UTF-8")
ALL = "exec env -0"
# It reads environment.d with the parser that systemd has for EnvironmentFile=, and prints what it
# read.
GENERATOR = "/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator"
SLURM_BUFFER = 4095  # what slurmstepd's task.c gives to fgets

ASK_NCCL = """
import ctypes, json, sys
library, *names = sys.argv[1:]
nccl, libc = ctypes.CDLL(library), ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
nccl.ncclGetUniqueId((ctypes.c_char * 128)())
found = {name: libc.getenv(name.encode()) for name in names}
print(json.dumps({name: value.decode() for name, value in found.items() if value is not None}))
"""


def here(argv: Iterable[str | Path]) -> subprocess.CompletedProcess[str]:
    """A command on this machine."""
    return subprocess.run([*argv], capture_output=True, text=True, check=False)


def variables(text: str) -> Found:
    """The output of `env -0`."""
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def login_shell(run: Run) -> Found:
    return variables(run([*CLEAN, "bash", "-l", "-c", ALL]).stdout)


def sourced(run: Run, shell: str, path: str, first: str = "") -> Found:
    """A shell reads the file; `first` is done before, such as `set -a`."""
    bare = ["zsh", "-f"] if shell == "zsh" else [shell]
    return variables(run([*CLEAN, *bare, "-c", f'{first} . "$0"; {ALL}', path]).stdout)


def systemd(run: Run, path: str, folder: str) -> Found:
    """By the generator of user sessions; `folder` is a place of its own where it finds the file."""
    run(["mkdir", "-p", f"{folder}/environment.d"])
    run(["ln", "-sf", path, f"{folder}/environment.d/50-clusterprep.conf"])
    lines = run(
        ["env", "-i", "HOME=/nowhere", f"XDG_CONFIG_HOME={folder}", GENERATOR]
    ).stdout.split("\n")
    words = (shlex.split(line) for line in lines if line)
    return dict(word.split("=", 1) for (word,) in words)


def slurm(run: Run, path: str) -> Found:
    """As slurmstepd does: lines begin with `export `, the name ends at =, then comes the value."""
    found: Found = {}
    for line in run([*CLEAN, path]).stdout.encode().splitlines(keepends=True):
        for part in (
            line[at : at + SLURM_BUFFER - 1] for at in range(0, len(line), SLURM_BUFFER - 1)
        ):
            text = part.decode(errors="replace").removesuffix("\n")
            if text.startswith("export "):
                name, _, value = text.removeprefix("export ").lstrip().partition("=")
                found[name.rstrip()] = value
    return found


def nccl(run: Run, library: str | Path, names: Iterable[str]) -> Found:
    """What stands in the C environment after NCCL has read its files."""
    done = run([*CLEAN, sys.executable, "-c", ASK_NCCL, str(library), *names])
    return dict(json.loads(done.stdout))


# ---------------------------------------------------------------- docker


def docker(path: Path, folder: Path) -> Found:
    """Return what docker's client would give to a container, as a daemon of ours receives it."""
    asked: list[Any] = []
    with _daemon(folder / "docker.sock", asked):
        argv = [
            "docker",
            "-H",
            f"unix://{folder}/docker.sock",
            "create",
            "--env-file",
            str(path),
            "image",
        ]
        subprocess.run(
            argv,
            capture_output=True,
            check=False,
            timeout=30,
            env={"HOME": str(folder), "PATH": _PATH},
        )
    return dict(entry.split("=", 1) for wish in asked for entry in wish.get("Env") or ())


_PATH = "/usr/local/bin:/usr/bin:/bin"
HAS_DOCKER = shutil.which("docker", path=_PATH) is not None


@contextlib.contextmanager
def _daemon(place: Path, asked: list[Any]) -> Iterator[None]:
    place.unlink(missing_ok=True)
    with _Server(str(place), _Handler) as server:
        server.asked = asked
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    asked: list[Any]

    def get_request(self) -> tuple[Any, Any]:
        return super().get_request()[0], ("docker", 0)  # http.server wants an address with a port


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_HEAD(self) -> None:
        self._reply(200, b"")

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._reply(201, b'{"Id": "1", "Warnings": []}')

    def _reply(self, code: int, body: bytes) -> None:
        self.send_response(code)
        fields = {
            "Api-Version": "1.41",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
        }
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """No log."""
