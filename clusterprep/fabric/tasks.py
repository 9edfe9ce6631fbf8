"""`exec --task FABFILE:NAME`: call a Fabric task with each node, and keep what each prints."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit, UnexpectedExit
from invoke.tasks import Task
from paramiko import SSHConfig

from clusterprep.errors import InputError, Unreached
from clusterprep.fabric.connection import NodeConfig, NodeConnection, ssh_of
from clusterprep.fabric.fleet import Fleet, on_every_node
from clusterprep.fabric.printed import Kept, LineSplitter, kept_of
from clusterprep.fabric.results import Answer, Outcome, answer_of
from clusterprep.fabric.runner import CONNECTION_ERRORS
from clusterprep.model import Node
from clusterprep.model.nodeset import nearest
from clusterprep.remote.transports.sudo import SudoPassword

FAILED = 1
NO_EXIT_CODE = -1  # paramiko's word for it
_FABRIC_1 = re.compile(
    r"^\s*(from|import)\s+fabric\.(api|contrib|operations|context_managers|colors|state)\b",
    re.MULTILINE,
)


class _Cut(Exception):
    """A command of a task ended without an exit code: by a signal, or with its connection."""


class _KeptStream:
    """A stream that Fabric writes to what a node printed: kept for the report."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def write(self, text: str) -> int:
        self._kept.feed(text.encode("utf-8", "surrogateescape"))
        return len(text)

    def flush(self) -> None:
        """Do nothing: what is written is kept at once."""


class TaskConnection(NodeConnection):
    """A connection within a task. What its commands print is kept for the report."""

    kept: Mapping[str, Kept]


def find_task(text: str) -> Task[Any]:
    """Return the task of `fabfile.py:NAME`. Raises InputError.

    The file is imported, with its folder on the path of modules, as Fabric does.
    """
    file, _, name = text.rpartition(":")
    if not file or not name:
        raise InputError.of(f"'{text}' is not FABFILE:NAME", key="--task")
    module = _imported(file)
    tasks: dict[str, Task[Any]] = {}
    for key, item in vars(module).items():
        if isinstance(item, Task):
            tasks[item.name or key] = item
    # Fabric writes names with dashes.
    for spelling in (name, name.replace("-", "_"), name.replace("_", "-")):
        if spelling in tasks:
            refuse_parameters(tasks[spelling], text)
            return tasks[spelling]
    names = ", ".join(tasks) or "no task"
    hint = nearest(name, tasks) or f"it has {names}"
    raise InputError.of(f"there is no task '{name}'", file=file, key="--task", hint=hint)


def run_task(
    fleet: Fleet, task: Task[Any], show: Callable[[str], None]
) -> tuple[dict[str, Outcome], bool]:
    """Call a task with each node. Returns as `on_every_node`.

    Tasks that it names as `pre` and `post` are called once, here and not on a node, as Fabric does.
    `show` writes a line that belongs to no node, and cleans it.
    """
    ssh = ssh_of(fleet.transports)

    def begin(node: Node) -> NodeTask:
        kept = kept_of(node.name, None)
        streams = {
            "in_stream": False,  # many nodes cannot share one stdin
            "out_stream": _KeptStream(kept["out"]),
            "err_stream": _KeptStream(kept["err"]),
        }
        config = NodeConfig(overrides={"run": streams}, ssh_config=SSHConfig())
        connection = TaskConnection(node, ssh, fleet.password, config)
        connection.kept = kept
        return NodeTask(connection, fleet.password(node), task)

    with prints_by_thread(show):
        _call_once(task.pre)
        answers = on_every_node(fleet, "task", begin)
        _call_once(task.post)
    return answers


class NodeTask:
    """One task on one node. See NodeWork."""

    def __init__(
        self, connection: TaskConnection, secret: SudoPassword | None, task: Task[Any]
    ) -> None:
        self._connection = connection
        self._secret = secret
        self._task = task
        self._closed = False

    def run(self) -> Answer:
        """Return what the task printed and returned, and 0 if it raised nothing."""
        began = time.monotonic()
        connection = self._connection
        connection.open()
        _thread.kept = connection.kept
        reason = None
        code: int | None = None
        try:
            code = self._call()
            if self._closed:  # it may have gone over a command that was ended
                code, reason = None, "timed_out"
        except _Cut:
            reason = self._why_cut() or "killed"
        except CONNECTION_ERRORS as error:
            reason = self._why_cut()
            if reason is None:
                code = self._failed(error)
        finally:
            _thread.kept = None
        seconds = time.monotonic() - began
        return answer_of(connection.kept, self._secret, code, reason, 0, seconds)

    def _call(self) -> int:
        try:
            value = self._task(self._connection)
        except Unreached as error:  # of sudo, or of a further connection
            return self._failed(error)
        except UnexpectedExit as error:
            if error.result.exited == NO_EXIT_CODE:
                raise _Cut from error
            self._failed(error)
            return int(error.result.exited)
        except SystemExit as leaving:
            return self._left(leaving.code)
        except Exit as leaving:
            if leaving.message:
                self._say(leaving.message)
            return int(leaving.code)
        except CONNECTION_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a task raises is its result
            return self._failed(error)
        if isinstance(value, str):
            self._connection.kept["out"].feed(f"{value}\n".encode())
        return 0

    def _why_cut(self) -> str | None:
        """Return why a command could not end by itself; None if nothing is wrong with its node."""
        if self._closed:
            return "timed_out"
        return None if self._connection.opened_alive else "hung"

    def _left(self, code: object) -> int:
        """Return the exit code that Python would give sys.exit(code), and print what it would."""
        if code is None:
            return 0
        if isinstance(code, int):
            return code
        self._say(str(code))
        return FAILED

    def _failed(self, error: BaseException) -> int:
        self._say(f"{type(error).__name__}: {error}".strip())
        return FAILED

    def _say(self, text: str) -> None:
        self._connection.kept["err"].feed(f"{text}\n".encode("utf-8", "surrogateescape"))

    def close(self) -> None:
        self._closed = True
        self._connection.close()


def _imported(file: str) -> Any:
    path = Path(file).absolute()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InputError.of("there is no such file of Python", file=file, key="--task")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        message = f"it cannot be imported: {type(error).__name__}: {error}"
        hint = _import_hint(path)
        raise InputError.of(message, file=file, key="--task", hint=hint) from error
    return module


def _import_hint(path: Path) -> str | None:
    """Return what to do about a fabfile of Fabric 1, which is another library; None for others."""
    if _FABRIC_1.search(path.read_text(encoding="utf-8", errors="replace")):
        return "it is written for Fabric 1; here a task is @task of Fabric 2 or 3, def NAME(c)"
    return None


def refuse_parameters(task: Task[Any], text: str) -> None:
    """Raise InputError for a task that cannot be called with a connection alone."""
    try:
        inspect.signature(task.body).bind(None)
    except TypeError as error:
        message = f"the task takes more than the connection: {error}"
        hint = "give its parameters defaults; their values may come from the environment"
        raise InputError.of(message, file=text, key="--task", hint=hint) from None


def _call_once(tasks: Iterable[Any]) -> None:
    for task in tasks:
        args, kwargs = getattr(task, "args", ()), getattr(task, "kwargs", {})
        getattr(task, "task", task)(Context(), *args, **kwargs)


# ---------------------------------------------------------------- what tasks print themselves

_thread = threading.local()


class _ByThread(io.TextIOBase):
    """A stdout that belongs to the node whose task runs in this thread.

    Lines of other threads are in no report, as nothing says which node they belong to: they are
    shown, as they come.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._lock = threading.Lock()
        self._splitter = LineSplitter()

    def write(self, text: str) -> int:
        kept = getattr(_thread, "kept", None)
        if kept is not None:
            kept["out"].feed(text.encode("utf-8", "surrogateescape"))
            return len(text)
        with self._lock:
            for line in self._splitter.feed(text):
                self._show(line)
        return len(text)

    def end(self) -> None:
        """Show what is left of a line."""
        with self._lock:
            for line in self._splitter.end():
                self._show(line)


@contextlib.contextmanager
def prints_by_thread(show: Callable[[str], None]) -> Iterator[None]:
    """Keep what tasks print with `print` by node while the block runs."""
    by_thread = _ByThread(show)
    try:
        with contextlib.redirect_stdout(by_thread):
            yield
    finally:
        by_thread.end()
