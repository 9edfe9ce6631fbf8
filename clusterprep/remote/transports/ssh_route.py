"""Where a node is and how to log in there: inventory first, then ssh_config, then OpenSSH's own defaults."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from clusterprep.errors import Unreached
from clusterprep.model import Node, SshSettings
from clusterprep.remote.transports.known_hosts import name_for
from clusterprep.remote.transports.ssh_config import SshConfig, expand, hostname, tokens
from clusterprep.runtime.lazy_dataclass import dataclass

DEFAULT_KEYS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
MOST_HOPS = 8


@dataclass(frozen=True)
class Route:
    """Everything that opening a connection needs to know; equal routes may share a jump host."""

    name: str  # what was asked for; in messages
    host: str  # what is connected to
    port: int
    user: str
    key_names: tuple[str, ...]  # names in known_hosts, the first one the proper one
    identities: tuple[str, ...]  # key files, in the order to try
    named: bool  # the identities were asked for and are not OpenSSH's defaults
    certificates: tuple[str, ...]
    identities_only: bool
    agent: str | None  # path of the agent's socket
    known_hosts: str
    host_keys: Literal["strict", "accept-new"]
    hash_known_hosts: bool
    command: str | None = None  # ProxyCommand, expanded
    via: Route | None = None  # jump host
    revoked: str | None = None  # file of RevokedHostKeys


class RouteMap:
    """Routes of nodes and jump hosts; every ssh_config file is read once."""

    def __init__(self) -> None:
        self._configs: dict[str, SshConfig] = {}
        self._lock = threading.Lock()

    def to(self, node: Node) -> Route:
        given = {
            "user": node.ssh.user,
            "port": node.ssh.port,
            "identityfile": node.ssh.identity_file,
        }
        if node.address != node.name:
            given["hostname"] = node.address.replace("%", "%%")
        words = {option: str(value) for option, value in given.items() if value is not None}
        route = self._route(node.name, words, node.ssh, ())
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
        """The way to name; None where it is the host behind, as `Host *` makes a jump host its own jump host."""
        options = self._config(settings.config).lookup(name, given)
        words = tokens(name, options)
        route = _bare(name, hostname(name, options), options, words, settings)
        if behind and (route.host, route.port) == (behind[-1].host, behind[-1].port):
            return None
        proxy = next((option for option in options if option in ("proxyjump", "proxycommand")), "")
        value = expand(options.get(proxy, ["none"])[0], words)
        if value.lower() == "none":
            return route
        if proxy == "proxycommand":
            return replace(route, command=value)
        return replace(route, via=self._hops(value, settings, (*behind, route)))

    def _hops(self, jumps: str, settings: SshSettings, behind: tuple[Route, ...]) -> Route | None:
        """The last of a list of jump hosts, reached through those before it."""
        if len(behind) > MOST_HOPS:
            chain = " <- ".join(route.name for route in behind)
            raise Unreached("name_unknown", f"ProxyJump never ends: {chain}", "see ssh_config")
        before: Route | None = None
        for jump in jumps.split(","):
            hop, given = _jump(jump.strip())
            route = self._route(hop, given, settings, behind)
            if route is None:
                return before
            before = route if before is None else replace(route, via=before, command=None)
        return before


def _jump(text: str) -> tuple[str, dict[str, str]]:
    """[user@]host[:port] or ssh://… as (name, what was given)."""
    text = text.removeprefix("ssh://").rstrip("/")
    user, _, place = text.rpartition("@")
    if place.startswith("["):
        name, _, port = place[1:].partition("]")
        port = port.removeprefix(":")
    else:
        name, _, port = place.partition(":") if place.count(":") == 1 else (place, "", "")
    given = {"user": user, "port": port}
    return name, {option: value for option, value in given.items() if value}


def _bare(
    name: str,
    host: str,
    options: Mapping[str, list[str]],
    words: Mapping[str, str],
    settings: SshSettings,
) -> Route:
    """The route without what is in between."""
    files = options.get("identityfile", [])
    port = _port(words["p"])
    return Route(
        name=name,
        host=host,
        port=port,
        user=words["r"],
        key_names=_key_names(host, port, options),
        identities=tuple(_path(f, words) for f in files if f.lower() != "none")
        if files
        else tuple(map(os.path.expanduser, DEFAULT_KEYS)),
        named=bool(files),
        certificates=tuple(_path(file, words) for file in options.get("certificatefile", [])),
        identities_only=_says_yes(options, "identitiesonly"),
        agent=_agent(options.get("identityagent", ["SSH_AUTH_SOCK"])[0], words),
        known_hosts=settings.known_hosts,
        host_keys=settings.host_keys,
        hash_known_hosts=_says_yes(options, "hashknownhosts"),
        revoked=_revoked(options.get("revokedhostkeys", ["none"])[0], words),
    )


def _port(text: str) -> int:
    if text.isdecimal() and 0 < int(text) < 65536:
        return int(text)
    raise Unreached(
        "name_unknown", f'"{text}" is not a port', "see Port and ProxyJump in ssh_config"
    )


def _key_names(host: str, port: int, options: Mapping[str, list[str]]) -> tuple[str, ...]:
    """OpenSSH also takes a key kept under the plain name, but only where it is the right one."""
    if "hostkeyalias" in options:
        return (options["hostkeyalias"][0].lower(),)
    return tuple(dict.fromkeys((name_for(host, port), name_for(host, 22))))


def _says_yes(options: Mapping[str, list[str]], option: str) -> bool:
    return options.get(option, ["no"])[0].lower() == "yes"


def _path(text: str, words: Mapping[str, str]) -> str:
    return os.path.expanduser(os.path.expandvars(expand(text, words)))


def _revoked(text: str, words: Mapping[str, str]) -> str | None:
    return None if text.lower() == "none" else _path(text, words)


def _agent(text: str, words: Mapping[str, str]) -> str | None:
    if text.lower() == "none":
        return None
    if text == "SSH_AUTH_SOCK" or text.startswith("$"):
        return os.environ.get(text.strip("${}")) or None
    return _path(text, words)
