"""Can every node be reached and used: port, banner, host key, login, Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each
from clusterprep.facts.account import Rights
from clusterprep.model import Absent, Node, NodeSnapshot

BECOME = "ssh: {become: true}   # in the inventory, for these nodes"
SUDOERS = (
    "echo '{user} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/{user} && chmod 440 /etc/sudoers.d/{user}   # as root "
    "there; then `ssh: {{become: true}}` in the inventory"
)


def reach(context: CheckContext) -> Iterable[Outcome]:
    """A node that refused us fails; one that gave no answer is unknown."""
    for snapshot in context.fleet.snapshots.values():
        if snapshot.reached:
            yield Outcome(
                "pass",
                (snapshot.node,),
                "the node answers",
                "login and Python work",
                "login and Python work",
            )
            continue
        yield Outcome(
            "fail" if snapshot.answered else "unknown",
            (snapshot.node,),
            snapshot.detail or "the node gave no answer",
            seen=snapshot.reason or "",
            wanted="login and Python work",
            remedy=snapshot.remedy or None,
            reason=snapshot.reason,
        )


def sudo(context: CheckContext, node: Node, rights: Rights) -> Outcome:
    """Root is needed where something was denied: that counts by itself, and here is said how it would be known."""
    wanted = "root, or nothing that needs it"
    if rights.uid == 0:
        return Outcome("pass", (node.name,), "the node is looked at as root", "root", wanted)
    facts = context.fleet.snapshots[node.name].facts
    denied = sorted(
        name
        for name, value in facts.items()
        if isinstance(value, Absent) and value.reason == "denied"
    )
    if not denied:
        return Outcome(
            "skip",
            (node.name,),
            "nothing that was asked needs root",
            rights.user,
            reason="not_applicable",
        )
    count = "1 fact needs" if len(denied) == 1 else f"{len(denied)} facts need"
    seen = f"{rights.user}, {'may' if rights.sudo == 0 else 'may not'} use sudo without a password"
    return Outcome(
        "unknown",
        (node.name,),
        f"{count} root: {', '.join(denied[:8])}{', …' if len(denied) > 8 else ''}",
        seen,
        wanted,
        BECOME if rights.sudo == 0 else SUDOERS.format(user=rights.user),
        reason="denied",
        severity="warning",  # what was denied counts by itself, each with its own severity
    )


def _without_root(seen: NodeSnapshot) -> NodeSnapshot:
    facts = {
        "ssh.rights": Rights(1000, "ubuntu", 1),
        "kernel.log": Absent("denied", "/dev/kmsg: Permission denied"),
    }
    return replace(seen, facts={**seen.facts, **facts})


REACH = Check(
    "ssh.reach",
    facts=(),
    judge=reach,
    severity="error",
    title="The node can be reached and used",
    why="A node that cannot be logged in to cannot be checked, written to or trained on; whatever it holds is unknown.",
    how="TCP connect, SSH banner, host key, login and start of Python, all within ssh.connect_timeout. "
    "The stage that failed is the reason.",
    remedy="ssh -v NODE true",
    proof=Proof(
        "",
        lambda seen: replace(
            seen, reached=False, reason="auth_refused", detail="permission denied"
        ),
    ),
)
SUDO = Check(
    "ssh.sudo",
    facts=("ssh.rights",),
    judge=each(sudo, "ssh.rights"),
    severity="error",
    title="Root where something needs it",
    why="The kernel log, PCIe settings, firmware and others' processes are shown to root alone; what was denied is not "
    "known, and a cluster of which half is not known has not been checked.",
    how="The user id of the login; where that is not root, whether anything was denied on that node, and whether "
    "`sudo -n true` works. What was denied counts in the checks that wanted to know it.",
    remedy=BECOME,
    proof=Proof("", _without_root, verdict="unknown"),
)
