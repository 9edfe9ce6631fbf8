"""Can every node be reached and used: port, banner, host key, login, Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from clusterprep.checks import Check, Outcome, Proof, Scene


def reach(scene: Scene) -> Iterable[Outcome]:
    """A node that refused us fails; one that gave no answer is unknown."""
    for sighting in scene.fleet.sightings.values():
        if sighting.reached:
            yield Outcome(
                "pass", (sighting.node,), "the node answers", "login and Python work", "login and Python work"
            )
            continue
        yield Outcome(
            "fail" if sighting.answered else "unknown",
            (sighting.node,),
            sighting.detail or "the node gave no answer",
            seen=sighting.reason or "",
            wanted="login and Python work",
            remedy=sighting.remedy or None,
            reason=sighting.reason,
        )


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
    proof=Proof("", lambda seen: replace(seen, reached=False, reason="auth_refused", detail="permission denied")),
)
