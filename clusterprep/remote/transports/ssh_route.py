"""Find out where a node is and how to log in there.

The inventory wins over ssh_config, and that over OpenSSH's own defaults.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.errors import Unreached
from clusterprep.model import Node, SshSettings
from clusterprep.remedies import sentence
from clusterprep.remote.transports.known_hosts import name_for
from clusterprep.remote.transports.ssh_config import SshConfig, hostname, tokens
from clusterprep.remote.transports.ssh_tokens import expand, expand_for_shell, refuse_invalid

KNOWN_HOSTS = "~/.ssh/known_hosts"
DEFAULT_KEYS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
MOST_HOPS = 8


class Route(Struct, frozen=True):
    """All that is needed to open a connection. Equal routes may share a jump host."""

    name: str  # as in the inventory or in ProxyJump; for messages
    host: str  # to which the connection is made
    port: int
    user: str
    key_names: tuple[str, ...]  # names in known_hosts; a new key gets the first one
    identities: tuple[str, ...]  # key files, in the order to try
    named: bool  # the identities are configured, and not OpenSSH's defaults
    certificates: tuple[str, ...]
    identities_only: bool
    agent: str | None  # path of the agent's socket
    known_hosts: str  # new keys are written there
    host_keys: Literal["strict", "accept-new"]
    hash_known_hosts: bool
    command: str | None = None  # ProxyCommand, expanded
    via: Route | None = None  # jump host
    revoked: str | None = None  # file of RevokedHostKeys
    more_known_hosts: tuple[str, ...] = ()  # further files with the keys of hosts


class RouteMap:
    """Routes of nodes and jump hosts. Every ssh_config file is read once."""

    def __init__(self) -> None:
        self._configs: dict[str, SshConfig] = {}
        self._lock = threading.Lock()

    def to(self, node: Node) -> Route:
        """Return the route to a node. Raises Unreached if ssh_config makes none possible."""
        given: dict[str, str] = {}
        if node.ssh.user is not None:
            given["user"] = node.ssh.user
        if node.ssh.port is not None:
            given["port"] = str(node.ssh.port)
        if node.ssh.identity_file is not None:
            given["identityfile"] = node.ssh.identity_file
        for name, value in node.ssh.options:
            given[name.lower()] = value
        if node.address != node.name:
            given["hostname"] = node.address.replace("%", "%%")
        route = self._route(node.name, given, node.ssh, ())
        assert route is not None  # noqa: S101 - only a jump host can be left out
        return route

    def _config(self, path: str) -> SshConfig:
        with self._lock:
            if path not in self._configs:
                self._configs[path] = SshConfig.from_path(path)
            return self._configs[path]

    def _route(
        self, name: str, given: Mapping[str, str], settings: SshSettings, behind: tuple[Route, ...]
    ) -> Route | None:
        """Return the route to a host; `behind` are the hosts that are reached through it.

        None if it is the last of these itself: `Host *` with a ProxyJump makes a jump host its own
        jump host.
        """
        options = self._config(settings.config).lookup(name, given)
        values = tokens(name, options)
        route = _direct(name, options, values, settings)
        if behind:
            next_host = behind[-1]
            if (route.host, route.port) == (next_host.host, next_host.port):
                return None
        proxy = _first_proxy_option(options)
        value = options.get(proxy, ["none"])[0]
        if value.lower() == "none":
            return route
        if proxy == "proxycommand":
            return replace(route, command=expand_for_shell(value, values))
        jumps = expand(value, values)
        jump_host = self._last_hop(jumps, settings, (*behind, route))
        return replace(route, via=jump_host)

    def _last_hop(
        self, jumps: str, settings: SshSettings, behind: tuple[Route, ...]
    ) -> Route | None:
        """Return the last of a list of jump hosts, reached through those before it."""
        if len(behind) > MOST_HOPS:
            chain = " <- ".join(route.name for route in behind)
            raise Unreached(
                "name_unknown", f"ProxyJump never ends: {chain}", sentence("see ssh_config")
            )
        previous: Route | None = None
        for jump in jumps.split(","):
            name, given = _parse_jump(jump.strip())
            route = self._route(name, given, settings, behind)
            if route is None:
                return previous
            if previous is not None:
                route = replace(route, via=previous, command=None)
            previous = route
        return previous


def _first_proxy_option(options: Mapping[str, list[str]]) -> str:
    """Return which of ProxyJump and ProxyCommand comes first and so counts, "" for neither."""
    for option in options:
        if option in ("proxyjump", "proxycommand"):
            return option
    return ""


def _parse_jump(text: str) -> tuple[str, dict[str, str]]:
    """Parse [user@]host[:port] or ssh://… into the name and the options given.

    >>> _parse_jump("admin@bastion:2200")
    ('bastion', {'user': 'admin', 'port': '2200'})
    """
    text = text.removeprefix("ssh://").rstrip("/")
    user, _, place = text.rpartition("@")
    name, port = _split_port(place)
    given = {}
    if user:
        given["user"] = user
    if port:
        given["port"] = port
    return name, given


def _split_port(place: str) -> tuple[str, str]:
    """Split "host:port" or "[address]:port". The port is "" where there is none."""
    if place.startswith("["):
        name, _, rest = place[1:].partition("]")
        return name, rest.removeprefix(":")
    if place.count(":") == 1:
        name, _, port = place.partition(":")
        return name, port
    return place, ""


def _direct(
    name: str,
    options: Mapping[str, list[str]],
    values: Mapping[str, str],
    settings: SshSettings,
) -> Route:
    """Return the route without jump hosts and ProxyCommand. `values` are those of tokens."""
    host = hostname(name, options)
    refuse_invalid(values["r"], host)
    port = _port(values["p"])
    files = options.get("identityfile", [])
    certificates = options.get("certificatefile", [])
    agent = options.get("identityagent", ["SSH_AUTH_SOCK"])[0]
    revoked = options.get("revokedhostkeys", ["none"])[0]
    known_hosts, *more_known_hosts = _known_hosts(options, values, settings)
    return Route(
        name=name,
        host=host,
        port=port,
        user=values["r"],
        key_names=_key_names(host, port, options),
        identities=_identities(files, values),
        named=bool(files),
        certificates=tuple(_path(file, values) for file in certificates),
        identities_only=_is_yes(options, "identitiesonly"),
        agent=_agent(agent, values),
        known_hosts=known_hosts,
        host_keys=settings.host_keys,
        hash_known_hosts=_is_yes(options, "hashknownhosts"),
        revoked=_path_or_none(revoked, values),
        more_known_hosts=tuple(more_known_hosts),
    )


def _known_hosts(
    options: Mapping[str, list[str]], values: Mapping[str, str], settings: SshSettings
) -> list[str]:
    """Return the user's files of known_hosts: that of the inventory, else of ssh_config.

    Of ssh_config's UserKnownHostsFile only files count: /dev/null would make every key unknown.
    """
    if settings.known_hosts is not None:
        return [settings.known_hosts]
    value = options.get("userknownhostsfile", [""])[0]
    try:
        words = shlex.split(value, comments=True)
    except ValueError:  # a quote is not closed
        words = [value]
    files: list[str] = []
    for word in words:
        if word.lower() not in ("none", os.devnull):
            files.append(_path(word, values))
    return files or [KNOWN_HOSTS]


def _port(text: str) -> int:
    if text.isdecimal() and 0 < int(text) < 65536:
        return int(text)
    message = f'"{text}" is not a port'
    raise Unreached("name_unknown", message, sentence("see Port and ProxyJump in ssh_config"))


def _key_names(host: str, port: int, options: Mapping[str, list[str]]) -> tuple[str, ...]:
    """Return the names in known_hosts of a host's key.

    OpenSSH also accepts a key under the name without a port, but only if it is the right one.
    """
    if "hostkeyalias" in options:
        alias = options["hostkeyalias"][0]
        return (alias.lower(),)
    names = (name_for(host, port), name_for(host, 22))
    return tuple(dict.fromkeys(names))


def _identities(files: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the key files to try: those configured, else OpenSSH's defaults."""
    if not files:
        return tuple(map(os.path.expanduser, DEFAULT_KEYS))
    return tuple(_path(file, values) for file in files if file.lower() != "none")


def _is_yes(options: Mapping[str, list[str]], option: str) -> bool:
    value = options.get(option, ["no"])[0]
    return value.lower() == "yes"


def _path(text: str, values: Mapping[str, str]) -> str:
    with_tokens = expand(text, values)
    return os.path.expanduser(os.path.expandvars(with_tokens))


def _path_or_none(text: str, values: Mapping[str, str]) -> str | None:
    return None if text.lower() == "none" else _path(text, values)


def _agent(text: str, values: Mapping[str, str]) -> str | None:
    """Return the path of the agent's socket for an IdentityAgent."""
    if text.lower() == "none":
        return None
    if text == "SSH_AUTH_SOCK" or text.startswith("$"):
        variable = text.strip("${}")
        return os.environ.get(variable) or None
    return _path(text, values)
