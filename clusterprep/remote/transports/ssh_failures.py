"""Every way in which an SSH connection does not come about, as one of the contract's reasons."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paramiko import SSHException

from clusterprep.errors import Unreached

if TYPE_CHECKING:
    from clusterprep.remote.transports.ssh_connection import SshConnection
    from clusterprep.remote.transports.ssh_route import Route

_TURNED_AWAY = {
    "Exceeded MaxStartups",
    "Not allowed at this time",
}  # sshd.c, since OpenSSH 8.2 and 9.8


class ConnectPhase(enum.Enum):
    """How far a connection has come."""

    GREETING = "greeting and key exchange"
    LOGIN = "login"
    COMMAND = "start of the command"


def explain(error: Exception, connection: SshConnection) -> Unreached:
    """Why the connection did not come about; paramiko and the system each have exceptions of their own."""
    if isinstance(error, Unreached):
        return error
    what = connection.why or _words(error)
    if connection.step is ConnectPhase.GREETING:
        return _no_greeting(connection, what)
    happened = (
        "gives no answer"
        if connection.wire.overdue
        else f"fails: {what or 'the connection was closed'}"
    )
    return Unreached(
        "hung",
        f"{connection.route.host} speaks SSH, but the {connection.step.value} {happened}",
        f"look at the node's console and at its sshd log; try: {by_hand(connection.route)}",
    )


def _words(error: Exception) -> str:
    """paramiko lets through whatever a malformed packet makes Python raise."""
    if isinstance(error, EOFError):
        return ""
    return (
        str(error).strip()
        if isinstance(error, OSError | SSHException)
        else f"{type(error).__name__}: {error}"
    )


def _no_greeting(connection: SshConnection, what: str) -> Unreached:
    heard = connection.wire.heard.split(b"\n")[0].decode(errors="replace").strip()
    if connection.greeted:
        stalled = connection.wire.overdue
        said = (
            "stops in the middle of the key exchange"
            if stalled
            else f"ends the key exchange: {what}"
        )
        remedy = "an overloaded or a very old sshd? see its log on the node"
    elif heard in _TURNED_AWAY:
        said = f'turns connections away: "{heard}"'
        remedy = "raise MaxStartups in its sshd_config, or use fewer --forks"
    elif heard and not heard.startswith("SSH-"):
        said = f'answers, but not with SSH: "{heard[:60]}"'
        remedy = "is this the port of sshd?"
    elif connection.wire.overdue:
        said = "accepts the connection and then says nothing"
        remedy = "the node may be hanging (memory, disk): look at its console"
    elif not connection.wire.ended:
        said, remedy = (
            f"cannot be spoken to: {what}",
            "this looks like a bug of clusterprep's; please report it",
        )
    else:
        said = f"closes the connection before its banner: {connection.wire.why}"
        remedy = "an overloaded sshd, its MaxStartups, or a firewall? fewer --forks may help"
    place = f"{connection.route.host} port {connection.route.port}"
    return Unreached("no_banner", f"{place} {said.rstrip(': ')}", remedy)


def login_refused(
    connection: SshConnection,
    refused: Sequence[str],
    unusable: Sequence[str],
    wanted: Sequence[str],
) -> Unreached:
    """The node wants none of our keys."""
    route = connection.route
    if not (connection.alive or connection.farewell or unusable):
        return explain(EOFError(), connection)
    notes = [f"refused: {', '.join(refused)}" if refused else "there was no key to try"]
    if unusable:
        notes.append(f"not usable: {', '.join(unusable)}")
    if wanted:
        notes.append(f"it wants {' or '.join(wanted)}")
    if connection.farewell:
        notes.append(f'it said "{connection.farewell}"')
    return Unreached(
        "auth_refused",
        f"{route.host} does not let user {route.user} in; {'; '.join(notes)}",
        f"ssh-copy-id -p {route.port} {route.user}@{route.host}, or set ssh.user and ssh.identity_file in the "
        f"inventory; try: {by_hand(route)}",
    )


def tunnel_refused(error: Exception, jump: Route, route: Route) -> Unreached:
    """The jump host is there, but makes no connection to the node."""
    what = str(error).strip() or type(error).__name__
    place = f"{route.host} port {route.port}"
    said = f"says jump host {jump.name}: {what}"
    if "prohibited" in what.lower():
        return Unreached(
            "refused",
            f"no connection to {place}, {said}",
            f"{jump.name} needs AllowTcpForwarding yes",
        )
    if "refused" in what.lower():
        return Unreached(
            "refused",
            f"{place} refuses TCP connections, {said}",
            "is sshd running, and is this its port?",
        )
    if "resolv" in what.lower() or "not known" in what.lower():
        return Unreached(
            "name_unknown",
            f'the name "{route.host}" cannot be resolved, {said}',
            "ask the jump host's DNS",
        )
    return Unreached(
        "timed_out", f"no TCP connection to {place}, {said}", "check the network between the two"
    )


def by_hand(route: Route) -> str:
    """The same login with OpenSSH, for the user to try."""
    return f"ssh -v -o BatchMode=yes -p {route.port} {route.user}@{route.host} true"
