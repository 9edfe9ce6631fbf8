"""What a soak does: which command, and what goes wrong where and when, from a seed alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FIRST_VALUE = (
    1_048_576  # of the variable that every apply sets anew; seven digits for nine million rounds
)
WITHOUT_NODE = ""  # the node of what is done to the command itself
VERIFY_NODES = 3
LONGER_THAN_SILENCE = 6.0  # seconds; a node counts as lost after five


@dataclass(frozen=True)
class Kind:
    """One way to go wrong.

    `whole`: from before the command until after it, so that the report must say so; else it comes
    and goes meanwhile. `tells` is the check that must not pass on the node then. `blocks`: no
    user can log in, so apply needs --partial.
    """

    name: str
    title: str
    commands: frozenset[str]
    whole: bool = False
    tells: str | None = None
    blocks: bool = False
    of_command: bool = False


LOOKS, WRITES = frozenset({"check", "apply"}), frozenset({"apply", "rollback"})
ALL = LOOKS | WRITES
REACH = "ssh.reach"


def _down(name: str, title: str) -> Kind:
    return Kind(name, title, LOOKS, whole=True, tells=REACH, blocks=True)


KINDS = (
    _down("powered-off", "the node is switched off"),
    _down("cable-out", "its cable is out"),
    _down("frozen", "every process of the node is stopped, its kernel answers"),
    _down("sshd-frozen", "sshd is stopped: TCP connects, and no banner comes"),
    _down("host-key", "another host key than the known one"),
    _down("no-python", "no Python"),
    Kind("clock", "clock five seconds off", LOOKS, whole=True, tells="time.offset"),
    Kind("mtu", "another MTU than the rest", LOOKS, whole=True, tells="eth.mtu"),
    Kind("disk-full", "no space for the file to be written", ALL, whole=True),
    Kind("lock", "another run holds the lock", ALL, whole=True),
    Kind("sshd-restart", "sshd restarts", ALL | {"verify"}),
    Kind("sessions-killed", "the SSH sessions of the node are killed", ALL | {"verify"}),
    Kind("link-flap", "the link goes down for some seconds", ALL | {"verify"}),
    Kind("agent-killed", "the agent is killed with -9", ALL | {"verify"}),
    Kind(
        "agent-stopped",
        "the agent is stopped for longer than the limit for silence",
        ALL | {"verify"},
    ),
    Kind("reboot", "the node reboots", ALL),
    Kind("controller-killed", "clusterprep itself is killed with -9", ALL, of_command=True),
    Kind(
        "controller-stopped",
        "clusterprep itself is stopped for 6 to 8 s",
        ALL | {"verify"},
        of_command=True,
    ),
    Kind("interrupted", "clusterprep gets a signal to end, as by Ctrl-C", ALL, of_command=True),
)
BY_NAME = {kind.name: kind for kind in KINDS}
HARMLESS = ("clock", "mtu")  # to an apply: it goes on, and says so
# Where anything may go wrong, some node of many stops every run before it writes. So some meet what
# they can live with, that there is something to lose, and some only what comes while they are at
# it.
MOODS = {"apply": ("calm", "passing", "any"), "rollback": ("passing", "passing", "any")}


@dataclass(frozen=True)
class Harm:
    """What goes wrong on a node, or with the command.

    `at` is a share of the time that the command takes usually, `lasts` are seconds; both are 0 for
    what is there from before the command until after it.
    """

    kind: str
    node: str
    at: float = 0.0
    lasts: float = 0.0


@dataclass(frozen=True)
class Round:
    """One command: `value` is what apply writes, `nodes` those of a verify, empty for all."""

    number: int
    command: str
    harms: tuple[Harm, ...]
    value: int
    partial: bool = False
    nodes: tuple[str, ...] = ()

    def harmed(self) -> frozenset[str]:
        return frozenset(harm.node for harm in self.harms)


def rounds(seed: int, nodes: Sequence[str], share: float) -> Iterator[Round]:
    """Rounds without end; of the same seed, nodes and share always the same ones."""
    dice = random.Random(f"{seed} {len(nodes)} {share}")
    yield Round(0, "apply", (), FIRST_VALUE)
    number = 0
    while True:
        number += 1
        command = dice.choices(("check", "apply", "rollback", "verify"), (40, 44, 12, 4))[0]
        yield _round(dice, number, command, nodes, share)


def _round(
    dice: random.Random, number: int, command: str, nodes: Sequence[str], share: float
) -> Round:
    mood = dice.choice(MOODS.get(command, ("any",)))
    kinds = [kind for kind in KINDS if command in kind.commands and _fits(kind, mood)]
    chosen = (
        tuple(dice.sample(list(nodes), min(VERIFY_NODES, len(nodes))))
        if command == "verify"
        else ()
    )
    count = min(
        max(1, round(share * len(nodes))), max(1, (len(nodes) - 1) // 2)
    )  # the majority stays right
    victims = dice.sample(chosen or list(nodes), 1 if chosen else count)
    own = [kind for kind in kinds if kind.of_command]
    harms = [
        _harm(dice, dice.choice([k for k in kinds if not k.of_command]), node) for node in victims
    ]
    if own and dice.random() < 0.3:
        harms.append(_harm(dice, dice.choice(own), WITHOUT_NODE))
    if (
        sum(harm.kind == "lock" for harm in harms) and command != "check"
    ):  # then all else could not be told from it
        harms = [harm for harm in harms if harm.kind == "lock" or BY_NAME[harm.kind].whole]
    partial = command == "apply" and any(BY_NAME[harm.kind].blocks for harm in harms)
    return Round(number, command, tuple(harms), FIRST_VALUE + number, partial, chosen)


def _fits(kind: Kind, mood: str) -> bool:
    if mood == "calm":
        return kind.name in HARMLESS
    return not (mood == "passing" and kind.whole)


def _harm(dice: random.Random, kind: Kind, node: str) -> Harm:
    if kind.whole:
        return Harm(kind.name, node)
    at, shortest = (
        round(dice.uniform(0.05, 1.0), 2),
        1.0 if kind.name == "link-flap" else LONGER_THAN_SILENCE,
    )
    return Harm(kind.name, node, at, round(dice.uniform(shortest, 8.0), 1))
