"""Limits of users and of services: logins read /etc/security, and systemd's services have defaults of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from clusterprep.changes.resources import Params, PlanContext, Resource, file_change
from clusterprep.changes.resources.file import MODE
from clusterprep.model import Inventory
from clusterprep.model.files import FileChange
from clusterprep.model.units import UNLIMITED, parse_size
from clusterprep.runtime.lazy_dataclass import dataclass

HEAD = "# Written by clusterprep apply, which overwrites this file: put limits into the playbook.\n"
LOGINS = "/etc/security/limits.d/90-clusterprep.conf"
SERVICES = "/etc/systemd/system.conf.d/90-clusterprep.conf"
USER_SERVICES = "/etc/systemd/user.conf.d/90-clusterprep.conf"
WHOM = ("*", "root")  # limits.conf(5): a wildcard does not mean root


@dataclass(frozen=True)
class Item:
    """One limit: what systemd calls it, and in which unit limits.conf(5) counts it; systemd counts bytes."""

    systemd: str
    size: bool  # bytes, else a number
    unit: int = 1
    endless: bool = True


ITEMS = {
    "core": Item("CORE", True, 1024),
    "memlock": Item("MEMLOCK", True, 1024),
    "stack": Item("STACK", True, 1024),
    "msgqueue": Item("MSGQUEUE", True),
    "nofile": Item(
        "NOFILE", False, endless=False
    ),  # unlimited is more than fs.nr_open, and then nobody logs in
    "nproc": Item("NPROC", False),
    "sigpending": Item("SIGPENDING", False),
}


def amount(name: str, text: str) -> int | None:
    """Bytes or a number, None without limit. ValueError says what is expected."""
    item = ITEMS[name]
    if item.size or text == "unlimited":
        size = parse_size(text)
        if size == UNLIMITED and item.endless:
            return None
        if size != UNLIMITED and int(size) % item.unit == 0 and size > 0:
            return int(size)
        raise ValueError(
            f"expected a number of files; seen '{text}'; with no limit nobody could log in any more"
            if size == UNLIMITED
            else f"expected a size in whole KiB; seen '{text}'"
        )
    if not (text.isdecimal() and text.isascii() and len(text) <= 18 and int(text) > 0):
        raise ValueError(
            f"expected a number{' or unlimited' if item.endless else ''}; seen '{text}'"
        )
    return int(text)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    for name, text in params.items():
        try:
            amount(name, str(text))
        except ValueError as error:
            yield name, str(error)
    if not params:
        yield "", f"expected a limit at least, of {', '.join(ITEMS)}"


def for_logins(params: Params) -> bytes:
    """Lines of limits.conf(5), for hard and soft limits."""
    rows = [
        f"{whom} - {name} {_login_word(name, str(text))}\n"
        for whom in WHOM
        for name, text in params.items()
    ]
    return (HEAD + "".join(rows)).encode()


def _login_word(name: str, text: str) -> str:
    found = amount(name, text)
    return "unlimited" if found is None else str(found // ITEMS[name].unit)


def for_services(params: Params) -> bytes:
    """The section of systemd-system.conf(5)."""
    rows = [
        f"DefaultLimit{ITEMS[name].systemd}={_service_word(name, str(text))}\n"
        for name, text in params.items()
    ]
    return (HEAD + "[Manager]\n" + "".join(rows)).encode()


def _service_word(name: str, text: str) -> str:
    found = amount(name, text)
    return "infinity" if found is None else str(found)


FILES: dict[str, Callable[[Params], bytes]] = {
    LOGINS: for_logins,
    SERVICES: for_services,
    USER_SERVICES: for_services,
}


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return tuple(FILES)


def plan(params: Params, known: PlanContext) -> Iterable[FileChange]:
    for path, write in FILES.items():
        yield file_change(known.node, "limits", known.files[path], write(params), MODE)


RESOURCE = Resource("limits", paths, plan, wrong=wrong)
