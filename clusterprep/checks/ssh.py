"""Judges whether every node can be reached and used: port, banner, host key, login, Python."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    passed,
    skipped,
    unknown,
)
from clusterprep.facts.account import Rights
from clusterprep.model import Absent, Node, NodeSnapshot, Verdict
from clusterprep.remedies import NO_REMEDY, Remedy, sentence, shell_line, with_all_words

BECOME = sentence("set `ssh: {{become: true}}` for these nodes in the inventory")
USABLE = "login and Python work"
NAMED = 8  # facts in one message
KEY_UNKNOWN = "host_key_unknown"


def reach(context: CheckContext) -> Iterable[Outcome]:
    """Judge every node: one that refused us fails, one that gave no answer is unknown."""
    keyless = _remedy_for_unknown_keys(context.fleet.snapshots.values())
    for snapshot in context.fleet.snapshots.values():
        if snapshot.reached:
            yield Outcome(
                "pass",
                (snapshot.node,),
                "the node answers",
                USABLE,
                USABLE,
            )
        elif snapshot.reason == KEY_UNKNOWN:
            yield _judge_unreached(replace(snapshot, remedy=keyless))
        else:
            yield _judge_unreached(snapshot)


def _remedy_for_unknown_keys(snapshots: Iterable[NodeSnapshot]) -> Remedy:
    """Return one command for all nodes whose host keys are not known.

    ssh-keyscan takes any number of hosts.
    """
    remedies = [snapshot.remedy for snapshot in snapshots if snapshot.reason == KEY_UNKNOWN]
    return with_all_words(remedies) if remedies else NO_REMEDY


def _judge_unreached(snapshot: NodeSnapshot) -> Outcome:
    """Return a failure if the node answered and refused, else unknown."""
    verdict: Verdict = "fail" if snapshot.answered else "unknown"
    message = snapshot.detail or "the node gave no answer"
    seen = snapshot.reason or ""
    remedy = snapshot.remedy or None
    nodes = (snapshot.node,)
    return Outcome(
        verdict,
        nodes,
        message,
        seen,
        USABLE,
        remedy,
        snapshot.reason,
    )


def sudo(context: CheckContext) -> Iterable[Outcome]:
    """Judge whether facts were denied for want of root.

    Each denied fact counts in the checks that need it; this check says how it would be known.
    """
    rights: dict[str, Rights] = context.values("ssh.rights")

    def apart(node: Node) -> str:
        """Return the name of a node of which all facts are looked at, "" for root."""
        return "" if rights[node.name].uid == 0 else node.name

    for nodes in context.alike_by(apart):
        yield from about_all(nodes, [_judge_rights(context, nodes[0], rights[nodes[0].name])])


def _judge_rights(context: CheckContext, node: Node, rights: Rights) -> Outcome:
    """Return the outcome of one node."""
    wanted = "root, or checks that do not need root"
    if rights.uid == 0:
        return passed(node, "the node is looked at as root", "root", wanted)
    denied = _denied_facts(context, node)
    if not denied:
        return skipped(node, "nothing that was asked needs root", rights.user)
    count = "1 fact needs" if len(denied) == 1 else f"{len(denied)} facts need"
    names = ", ".join(denied[:NAMED])
    if len(denied) > NAMED:
        names = f"{names}, …"
    message = f"{count} root: {names}"
    permission = "may not"
    cure = allow_sudo(rights.user)
    if rights.sudo == 0:
        permission = "may"
        cure = BECOME
    seen = f"{rights.user}, who {permission} use sudo without a password"
    # A warning: each denied fact counts by itself, with its own severity.
    return unknown(
        node,
        message,
        "denied",
        seen,
        wanted,
        cure,
        "warning",
    )


def allow_sudo(user: str) -> Remedy:
    """Return a command for root of the node. The file is ours, and is never writable by others."""
    return shell_line(
        "(umask 227 && echo {rule} > {file})"
        "   # as root there, if this user may be root; then `ssh: {{become: true}}` in the "
        "inventory. docs/reference/privileges.md has a user for this alone",
        rule=f"{user} ALL=(root) NOPASSWD: /bin/sh",
        # sudo reads no file with a dot in its name.
        file=f"/etc/sudoers.d/clusterprep-{user.replace('.', '_')}",
    )


def _denied_facts(context: CheckContext, node: Node) -> list[str]:
    names = []
    for name, value in context.fleet.snapshots[node.name].facts.items():
        if isinstance(value, Absent) and value.reason == "denied":
            names.append(name)
    return sorted(names)


def _without_root(snapshot: NodeSnapshot) -> NodeSnapshot:
    """Return the snapshot as a user without root would have it; for the proof."""
    facts = {
        "ssh.rights": Rights(1000, "ubuntu", 1),
        # No check needs a fact of this name, so no other check changes.
        "kernel.log": Absent("denied", "/dev/kmsg: Permission denied"),
    }
    return replace(
        snapshot,
        facts={
            **snapshot.facts,
            **facts,
        },
    )


def _with_refused_login(snapshot: NodeSnapshot) -> NodeSnapshot:
    detail = "permission denied"
    return replace(snapshot, reached=False, reason="auth_refused", detail=detail)


REACH = Check(
    "ssh.reach",
    facts=(),
    judge=reach,
    severity="error",
    title="The node can be reached and used",
    why="A node that cannot be logged in to cannot be checked, written to or trained on; whatever "
    "it holds is unknown.",
    how="TCP connect, SSH banner, host key, login and start of Python, all within "
    "ssh.connect_timeout. The stage that failed is the reason.",
    remedy=shell_line("ssh -v NODE true"),
    proof=Proof("", _with_refused_login),
)
SUDO = Check(
    "ssh.sudo",
    facts=("ssh.rights",),
    judge=sudo,
    severity="error",
    title="Root where something needs it",
    why="The kernel log, PCIe settings, firmware and others' processes are shown to root alone; "
    "what was denied is not known, and a cluster of which half is not known has not been checked.",
    how="The user id of the login; where that is not root, whether anything was denied on that "
    "node, and whether `sudo -n true` works. What was denied counts in the checks that wanted to "
    "know it.",
    remedy=BECOME,
    proof=Proof("", _without_root, verdict="unknown"),
)
