"""Translate every failure of an SSH connection into one of the contract's reasons."""

from __future__ import annotations

import os
from collections.abc import Sequence

from paramiko import SSHException

from clusterprep.errors import Unreached
from clusterprep.remedies import Remedy, noted, sentence, shell_line
from clusterprep.remote.transports.ssh_route import Route
from clusterprep.remote.transports.ssh_state import ConnectionState, ConnectPhase

# sshd.c, since OpenSSH 8.2 and 9.8.
_TURNED_AWAY = {"Exceeded MaxStartups", "Not allowed at this time"}
LOCKED = "needs its passphrase"  # of a key that could not be tried
GREETING_SHOWN = 60  # characters of a greeting that is not SSH's


def explain(error: Exception, connection: ConnectionState) -> Unreached:
    """Return why the connection failed. `error` may be paramiko's, the system's or ours."""
    if isinstance(error, Unreached):
        return error
    reason = connection.end_reason or _text(error)
    if connection.phase is ConnectPhase.GREETING:
        return _no_greeting(connection, reason)
    if connection.wire.overdue:
        failure = "gives no answer"
    else:
        failure = f"fails: {reason or 'the connection was closed'}"
    route = connection.route
    message = f"{route.host} speaks SSH, but the {connection.phase.value} {failure}"
    remedy = noted(by_hand(route), "look at the node's console and at its sshd log")
    return Unreached("hung", message, remedy)


def _text(error: Exception) -> str:
    """Return the text of an error, "" for an end of file.

    paramiko does not catch what a malformed packet makes Python raise; of that the type is needed.
    """
    if isinstance(error, EOFError):
        return ""
    if isinstance(error, OSError | SSHException):
        return str(error).strip()
    return f"{type(error).__name__}: {error}"


def _no_greeting(connection: ConnectionState, reason: str) -> Unreached:
    """Return the error for a connection that ended before the host key was known."""
    failure, remedy = _greeting_failure(connection, reason)
    place = f"{connection.route.host} port {connection.route.port}"
    message = f"{place} {failure}".rstrip(": ")
    return Unreached("no_banner", message, remedy)


def _greeting_failure(connection: ConnectionState, reason: str) -> tuple[str, Remedy]:
    """Return what the peer does instead of greeting us, and a remedy."""
    wire = connection.wire
    greeting = wire.greeting.split(b"\n")[0].decode(errors="replace").strip()
    if connection.greeted:
        remedy = sentence("an overloaded or a very old sshd? see its log on the node")
        if wire.overdue:
            return "stops in the middle of the key exchange", remedy
        return f"ends the key exchange: {reason}", remedy
    if greeting in _TURNED_AWAY:
        remedy = sentence("raise MaxStartups in its sshd_config, or use fewer --forks")
        return f'turns connections away: "{greeting}"', remedy
    if greeting and not greeting.startswith("SSH-"):
        failure = f'answers, but not with SSH: "{greeting[:GREETING_SHOWN]}"'
        return failure, sentence("is this the port of sshd?")
    if wire.overdue:
        remedy = sentence("the node may be hanging (memory, disk): look at its console")
        return "accepts the connection and then says nothing", remedy
    if not wire.ended:
        remedy = sentence("this looks like a bug of clusterprep's; please report it")
        return f"cannot be spoken to: {reason}", remedy
    remedy = sentence("an overloaded sshd, its MaxStartups, or a firewall? fewer --forks may help")
    return f"closes the connection before its banner: {wire.end_reason}", remedy


def login_refused(
    connection: ConnectionState,
    refused: Sequence[str],
    unusable: Sequence[str],
    wanted: Sequence[str],
) -> Unreached:
    """Return the error for a node that accepts none of our keys.

    `refused` and `unusable` describe keys: those that the node did not take, and those that could
    not be tried, with the reason. `wanted` are the authentication methods that the node asks for.
    """
    route = connection.route
    ended_silently = not connection.alive and not connection.farewell
    if ended_silently and not unusable:
        # Nothing says that a key was at fault: the connection itself has failed.
        return explain(EOFError(), connection)
    notes = []
    if refused:
        notes.append(f"refused: {', '.join(refused)}")
    else:
        notes.append("there was no key to try")
    if unusable:
        notes.append(f"not usable: {', '.join(unusable)}")
    if wanted:
        notes.append(f"it wants {' or '.join(wanted)}")
    if connection.farewell:
        notes.append(f'it said "{connection.farewell}"')
    message = f"{route.host} does not let user {route.user} in; {'; '.join(notes)}"
    return Unreached("auth_refused", message, _login_remedy(route, refused, unusable))


def _login_remedy(route: Route, refused: Sequence[str], unusable: Sequence[str]) -> Remedy:
    """Return what to do about a refused login: about our key file, or about the node."""
    if not refused:
        missing = [path for path in route.identities if not os.path.exists(path)]
        if route.named and missing:
            return sentence("correct ssh.identity_file: there is no {file} here", file=missing[0])
        locked = [text for text in unusable if LOCKED in text]
        for path in route.identities:
            if any(text.startswith(f"{path} ") for text in locked):
                return shell_line("ssh-add {file}   # it asks for the passphrase once", file=path)
    login = f"{route.user}@{route.host}"
    if not route.named:
        return shell_line(
            "ssh-copy-id -p {port} {login}"
            "   # for each of the nodes, if ssh.user is right; by hand: {by_hand}",
            port=route.port,
            login=login,
            by_hand=by_hand(route),
        )
    return shell_line(
        "ssh-copy-id -i {file} -p {port} {login}"
        "   # for each of the nodes, if ssh.user is right; "
        "by hand: ssh -i {file} -p {port} {login}",
        file=route.identities[0],
        port=route.port,
        login=login,
    )


def tunnel_refused(error: Exception, jump: Route, route: Route) -> Unreached:
    """Return the error for a jump host that makes no connection to the node."""
    text = str(error).strip() or type(error).__name__
    lower = text.lower()
    place = f"{route.host} port {route.port}"
    source = f"says jump host {jump.name}: {text}"
    if "prohibited" in lower:
        message = f"no connection to {place}, {source}"
        return Unreached(
            "refused", message, sentence("set AllowTcpForwarding yes on {jump}", jump=jump.name)
        )
    if "refused" in lower:
        message = f"{place} refuses TCP connections, {source}"
        return Unreached("refused", message, sentence("is sshd running, and is this its port?"))
    if "resolv" in lower or "not known" in lower:
        message = f'the name "{route.host}" cannot be resolved, {source}'
        return Unreached("name_unknown", message, sentence("ask the jump host's DNS"))
    message = f"no TCP connection to {place}, {source}"
    return Unreached("timed_out", message, sentence("check the network between the two"))


def by_hand(route: Route) -> Remedy:
    """Return a command that makes the same login with OpenSSH, for the user to try."""
    return shell_line(
        "ssh -v -o BatchMode=yes -p {port} {login} true",
        port=route.port,
        login=f"{route.user}@{route.host}",
    )
