"""Settings of the kernel: the file that is read at boot, and the running values, which are set after all files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, Resource, file_change
from clusterprep.changes.resources.file import MODE
from clusterprep.model import Inventory
from clusterprep.model.files import FileChange, FileState

HEAD = b"# Written by clusterprep apply: put values into the playbook; those of other playbooks stay.\n"
PATH = "/etc/sysctl.d/90-clusterprep.conf"
KERNEL = "/proc/sys"
_LINE = re.compile(rb"[ \t]*-?[ \t]*([^\s=#;]+)[ \t]*=")
_KEY = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_][A-Za-z0-9_:@/-]*)+", re.ASCII)


def place(key: str) -> str:
    """Where a value is below /proc/sys. A slash in a key is a dot there: net.ipv4.conf.eth0/1.mtu is of eth0.1."""
    return "/".join([KERNEL, *(part.replace("/", ".") for part in key.split("."))])


def one_blank(value: str) -> str:
    """A value with one blank between its columns: the kernel prints tabs, and people write what they like."""
    return " ".join(value.split())


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (PATH, *(place(key) for key in params))


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
    """The file with these settings: each in its line, new ones below; settings of other steps stay as they are."""
    wanted = {
        key.encode(): f"{key} = {one_blank(str(value))}\n".encode() for key, value in params.items()
    }
    lines, written = [], set()
    for line in content.split(b"\n"):
        match = _LINE.match(line)
        key = match[1] if match else b""
        if key not in wanted:
            lines.append(line)
        elif key not in written:  # one that stands there twice is one
            lines.append(wanted[key].rstrip(b"\n"))
            written.add(key)
    kept = b"\n".join(lines)
    kept += b"" if not kept or kept.endswith(b"\n") else b"\n"
    return kept + b"".join(line for key, line in wanted.items() if key not in written)


def plan(params: Params, known: PlanContext) -> Iterable[FileChange]:
    file = known.files[PATH]
    yield file_change(
        known.node,
        "sysctl",
        file,
        with_values(HEAD if file.content is None else file.content, params),
        MODE,
    )
    for key, value in params.items():
        state = known.files[place(key)]
        if state.content is None:
            hint = "a module that is not loaded may bring it"
            raise NoPlan("no_such_key", f"this kernel has no setting {key}: {hint}")
        if not state.mode & 0o200:
            raise NoPlan(
                "fixed",
                f"{key} is {one_blank(state.content.decode('utf-8', 'replace'))}, and nobody may set it",
            )
        yield running(known, state, one_blank(str(value)).encode() + b"\n")


def running(known: PlanContext, state: FileState, wanted: bytes) -> FileChange:
    """The change of a value, whose columns are parted by one blank on both sides, as the agent does it."""
    before = (state.content or b"").replace(b"\t", b" ")
    return FileChange(
        known.node.name, "sysctl", state.path, before, wanted, state.mode, running=True
    )


def live(params: Params) -> str:
    return "settings of the kernel are those of the running system"


RESOURCE = Resource("sysctl", paths, plan, parts=parts, wrong=wrong, variables=("*",), live=live)
