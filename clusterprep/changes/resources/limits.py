"""Limits for logins, in /etc/security, and for services, in the defaults of systemd."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from clusterprep.changes.resources import Params, PlanContext, Resource, file_change
from clusterprep.changes.resources.file import MODE
from clusterprep.model import Inventory
from clusterprep.model.files import FileChange
from clusterprep.model.units import UNLIMITED, parse_size

HEAD = "# Written by clusterprep apply, which overwrites this file: put limits into the playbook.\n"
LOGINS = "/etc/security/limits.d/90-clusterprep.conf"
SERVICES = "/etc/systemd/system.conf.d/90-clusterprep.conf"
USER_SERVICES = "/etc/systemd/user.conf.d/90-clusterprep.conf"
DOMAINS = ("*", "root")  # limits.conf(5): a wildcard does not mean root
OTHERS = "others"  # the parameter that is no limit
KEEP = "keep"  # its value: limits that the files have already stay


class Item(Struct, frozen=True):
    """One limit: its name in systemd, and the `unit` in which limits.conf(5) counts it.

    systemd counts bytes. A limit that is no `size` is a plain number. `endless`: unlimited is
    allowed.
    """

    systemd: str
    size: bool
    unit: int = 1
    endless: bool = True


ITEMS = {
    "core": Item("CORE", True, 1024),
    "memlock": Item("MEMLOCK", True, 1024),
    "stack": Item("STACK", True, 1024),
    "msgqueue": Item("MSGQUEUE", True),
    # Unlimited is more than fs.nr_open allows, and logins then fail.
    "nofile": Item("NOFILE", False, endless=False),
    "nproc": Item("NPROC", False),
    "sigpending": Item("SIGPENDING", False),
}


def amount(name: str, text: str) -> int | None:
    """Return a limit in bytes or as a number, None for unlimited.

    Raises ValueError that says what is expected.
    """
    item = ITEMS[name]
    if text == "unlimited" and not item.endless:
        raise ValueError(
            f"expected a number of files; seen '{text}'; with no limit, logins would fail"
        )
    if item.size or text == "unlimited":
        return _size(item, text)
    is_number = text.isdecimal() and text.isascii() and len(text) <= 18
    if not is_number or int(text) == 0:
        expected = "a number or unlimited" if item.endless else "a number"
        raise ValueError(f"expected {expected}; seen '{text}'")
    return int(text)


def _size(item: Item, text: str) -> int | None:
    size = parse_size(text)
    if size == UNLIMITED:
        return None
    if size == 0 or int(size) % item.unit:
        raise ValueError(f"expected a size in whole KiB; seen '{text}'")
    return int(size)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    limits = _limits(params)
    for name, text in limits.items():
        try:
            amount(name, str(text))
        except ValueError as error:
            yield name, str(error)
    if not limits:
        yield "", f"expected a limit at least, of {', '.join(ITEMS)}"


def _limits(params: Params) -> dict[str, str]:
    return {name: str(text) for name, text in params.items() if name != OTHERS}


def for_logins(params: Params) -> bytes:
    """Return lines of limits.conf(5), each for the hard and the soft limit."""
    lines = [HEAD]
    for domain in DOMAINS:
        for name, text in params.items():
            value = _login_value(name, str(text))
            lines.append(f"{domain} - {name} {value}\n")
    return "".join(lines).encode()


def _login_value(name: str, text: str) -> str:
    limit = amount(name, text)
    if limit is None:
        return "unlimited"
    return str(limit // ITEMS[name].unit)


def for_services(params: Params) -> bytes:
    """Return the section of systemd-system.conf(5)."""
    lines = [HEAD, "[Manager]\n"]
    for name, text in params.items():
        limit = amount(name, str(text))
        value = "infinity" if limit is None else str(limit)
        item = ITEMS[name]
        lines.append(f"DefaultLimit{item.systemd}={value}\n")
    return "".join(lines).encode()


_LOGIN_LINE = re.compile(r"^\* - (\w+) (\w+)$", re.MULTILINE)
_SERVICE_LINE = re.compile(r"^DefaultLimit([A-Z]+)=(\w+)$", re.MULTILINE)


def of_logins(text: str) -> dict[str, str]:
    """Return the limits in a file that `for_logins` wrote, as parameters."""
    limits = {}
    for name, value in _LOGIN_LINE.findall(text):
        item = ITEMS.get(name)
        if item is None:
            continue
        # limits.conf(5) counts in the item's unit, parameters in bytes.
        is_number = value.isdecimal()
        limits[name] = str(int(value) * item.unit) if is_number else value
    return limits


def of_services(text: str) -> dict[str, str]:
    """Return the limits in a file that `for_services` wrote, as parameters."""
    names = {item.systemd: name for name, item in ITEMS.items()}
    limits = {}
    for key, value in _SERVICE_LINE.findall(text):
        if key in names:
            limits[names[key]] = "unlimited" if value == "infinity" else value
    return limits


class LimitsFile(Struct, frozen=True):
    """How one of the files is written, and how it is read again."""

    write: Callable[[Params], bytes]
    read: Callable[[str], dict[str, str]]


FILES: Mapping[str, LimitsFile] = {
    LOGINS: LimitsFile(for_logins, of_logins),
    SERVICES: LimitsFile(for_services, of_services),
    USER_SERVICES: LimitsFile(for_services, of_services),
}


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return tuple(FILES)


def plan(params: Params, context: PlanContext) -> Iterable[FileChange]:
    for path, file in FILES.items():
        state = context.files[path]
        limits = _limits(params)
        if params.get(OTHERS) == KEEP and state.content is not None:
            limits = {**file.read(state.content.decode("utf-8", "replace")), **limits}
        content = file.write(limits)
        yield file_change(
            context.node,
            "limits",
            state,
            content,
            MODE,
        )


RESOURCE = Resource("limits", paths, plan, wrong=wrong)
