"""Settings of the kernel: the file read at boot, and the running values, set after all files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, Resource, file_change
from clusterprep.changes.resources.file import MODE
from clusterprep.model import Inventory
from clusterprep.model.files import FileChange, FileState

HEAD = (
    b"# Written by clusterprep apply: put values into the playbook; "
    b"those of other playbooks stay.\n"
)
PATH = "/etc/sysctl.d/90-clusterprep.conf"
KERNEL = "/proc/sys"
_LINE = re.compile(rb"[ \t]*(?:-[ \t]*)?([^\s=#;]+)[ \t]*=")
_KEY = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_][A-Za-z0-9_:@/-]*)+", re.ASCII)


def proc_path(key: str) -> str:
    """Return the path of a value below /proc/sys.

    A slash in a key is a dot there: net.ipv4.conf.eth0/1.mtu is that of the interface eth0.1.
    """
    # Dots become slashes, and slashes dots.
    return f"{KERNEL}/{key.translate(str.maketrans('./', '/.'))}"


def one_blank(value: str) -> str:
    """Return a value with one blank between its columns: the kernel prints tabs."""
    return " ".join(value.split())


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (PATH, *map(proc_path, params))


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return tuple((PATH, key) for key in params)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    if not params:
        yield "", "expected a setting at least, such as net.core.somaxconn: 4096"
    for key, value in params.items():
        if not _KEY.fullmatch(key):
            yield key, "expected the name of a setting, such as net.core.somaxconn"
        elif not one_blank(str(value)):
            yield key, "expected a value; seen nothing"


def with_values(content: bytes, params: Params) -> bytes:
    """Return the file with these settings, each in its line and new ones below.

    Settings of other steps stay as they are.
    """
    missing = {}
    for key, value in params.items():
        missing[key.encode()] = f"{key} = {one_blank(str(value))}".encode()
    lines = []
    written = set()
    for line in content.split(b"\n"):
        match = _LINE.match(line)
        key_of_line = match[1] if match else b""
        if key_of_line in missing:
            lines.append(missing.pop(key_of_line))
            written.add(key_of_line)
        elif key_of_line not in written:  # a second line of the same setting goes
            lines.append(line)
    changed = b"\n".join(lines)
    if changed and not changed.endswith(b"\n"):
        changed += b"\n"
    for line in missing.values():
        changed += line + b"\n"
    return changed


def plan(params: Params, context: PlanContext) -> Iterable[FileChange]:
    file = context.files[PATH]
    content = file.content
    if content is None:
        content = HEAD
    wanted_content = with_values(content, params)
    yield file_change(
        context.node,
        "sysctl",
        file,
        wanted_content,
        MODE,
    )
    for key, value in params.items():
        path = proc_path(key)
        state = context.files[path]
        _refuse(key, state)
        wanted = one_blank(str(value))
        yield running_value(context, state, f"{wanted}\n".encode())


def _refuse(key: str, state: FileState) -> None:
    """Raise NoPlan for a setting that the kernel does not have, or does not let anyone change."""
    if state.content is None:
        hint = "a module that is not loaded may bring it"
        raise NoPlan("no_such_key", f"this kernel has no setting {key}: {hint}")
    if not state.mode & 0o200:
        text = state.content.decode("utf-8", "replace")
        raise NoPlan("fixed", f"{key} is {one_blank(text)}, and is read-only")


def running_value(context: PlanContext, state: FileState, wanted: bytes) -> FileChange:
    """Return the change of a running value.

    Its columns are separated by one blank before and after, as the agent does it.
    """
    node = context.node.name
    content = state.content or b""
    before = content.replace(b"\t", b" ")
    return FileChange(
        node,
        "sysctl",
        state.path,
        before,
        wanted,
        state.mode,
        running=True,
    )


def live(params: Params) -> str:
    return "settings of the kernel are those of the running system"


RESOURCE = Resource("sysctl", paths, plan, parts=parts, wrong=wrong, variables=("*",), live=live)
