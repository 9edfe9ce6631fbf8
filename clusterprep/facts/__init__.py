"""Facts: one file per subject, with what to read on a node and how to parse the answers.

Parsing is pure and runs on the controller. Imports `remote` and what stands before it. Begin with
`Fact` below, and with `memory` as an example.

All reads that are not `deep` were measured and take milliseconds, the kernel's log too, so there is
no list of slow checks. What a command that looks every few seconds leaves out is declared with the
fact (`costly`). tests/hosts/test_privileges looks at one host as root and as a user without
rights: what is denied to the user is exactly what `Fact.needs` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct

from clusterprep.model import Inventory, Node, Read
from clusterprep.remote.agent.inside import SETUP_LIMIT

SETUP_MARGIN = 5.0  # seconds for the agent to tell of a runtime that hangs


class Denied(Exception):
    """An answer that the login has no right to see.

    Raise it from `parse` where the answer arrived but shows that the node withheld the value, as
    with a file that reads as empty without root. The fact becomes Absent("denied", message).
    """


class Needs(Struct, frozen=True):
    """The rights that a fact takes on a node.

    `who` may learn it: any user that can log in, the job's user (or root, which can become that
    user), or root alone. `why` says what other users cannot see. With `partly` they see it with
    gaps, which the checks report.
    """

    who: Literal["any_user", "job_user", "root"]
    why: str = ""
    partly: bool = False


ANY_USER = Needs("any_user")
JOB_USER = Needs("job_user", "it runs as the job's user, and only root can become another user")


class Fact(Struct, frozen=True):
    """Something to know about every node.

    * `reads(node, inventory)` returns what to read there.
    * `parse(*answers)` returns what the answers mean. It may raise ValueError, KeyError, IndexError
      or TypeError for an answer that it cannot understand, which makes the fact garbled, and Denied
      for one that was refused. A file that does not exist is knowledge: parse gets None. Any other
      missing answer makes the fact absent for that answer's reason, without a call of parse. It
      must not change an answer, of which other facts may be made.
    * `lenient`: parse is called for missing answers too and gets the Absent itself.
    * `stage`: the fact has no reads; that stage of a run provides its value.
    * `deep`: the reads run code of the job's user (the interpreter, shells with their start-up
      files) or go into its home on a file server, which may take any time. Where there is a time
      budget such facts come from stored results.
    * `apiece`: the reads name the node itself. The reads of all other facts are made once for nodes
      that differ in name and address alone, and tests hold that.
    * `narrow(answer)` returns the part of the first answer that counts, and parse gets only this
      part. It is for facts that use little of a long answer: nodes whose parts are equal then share
      one value. Facts with the same function are told apart by one look at the part.
    * `pieces`: for each answer a type by which msgspec decodes it, or None. What is `msgspec.Raw`
      in it stays JSON until it is new, so a long answer is never decoded as a whole. `narrow` gets
      the first answer so; without `narrow` parse gets all of them, and passes what is Raw to
      functions that are `read_once`. An answer of another shape they get decoded.
    * `typed`: nothing in `pieces` is Raw or Any. The types of a value that is made of such pieces
      follow from theirs, so they are not tested again.
    * `with_own(value, texts)` returns the value with the texts that `narrow` set apart (`Apart`),
      which the node has for itself. Without it they are no part of the value.
    * `needs`: who may learn the fact.
    * `moves`: the value changes by itself, as times, loads and counters do, so `compare` does not
      report it.
    * `costly`: kinds of its reads that are too much for a look that is repeated every few seconds:
      they start programs of others, or search what only grows. Such a look does without them. A
      lenient fact is then made of its other reads, and gets Absent("not_asked") for these; any
      other fact, and one that has no other reads, is not asked at all.
    * `guarded`: parse runs an expression that a site wrote, which may take forever, so it runs
      where it can be ended. It is absent then, and the node is not given up.
    """

    name: str
    reads: Callable[[Node, Inventory], tuple[Read, ...]] = lambda node, inventory: ()
    parse: Callable[..., Any] = lambda answer: answer
    lenient: bool = False
    stage: str | None = None
    deep: bool = False
    apiece: bool = False
    narrow: Callable[[Any], Any] | None = None
    pieces: tuple[Any, ...] = ()
    typed: bool = False
    with_own: Callable[[Any, Sequence[str]], Any] | None = None
    needs: Needs = ANY_USER
    moves: bool = False
    costly: tuple[str, ...] = ()
    guarded: bool = False


def file(path: str, etc: bool = False) -> Callable[[Node, Inventory], tuple[Read, ...]]:
    """Return the reads of one text file.

    `etc` marks configuration, which lies below the node's `root`.
    """
    same_everywhere = (Read("file", (path,)),)

    def reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
        if not etc:
            return same_everywhere
        return (Read("file", (under(node, path),)),)

    return reads


def command(*argv: str) -> Callable[[Node, Inventory], tuple[Read, ...]]:
    """Return the read of one command, which runs without a shell and in the C locale.

    Its answer is {"code": 0, "out": "…", "err": "…"}. `parse` has to look at the code.
    """
    reads = (Read("command", argv),)
    return lambda node, inventory: reads


def under(node: Node, path: str) -> str:
    """Return a configuration path below the node's root."""
    if node.root == "/":
        return path
    return node.root.rstrip("/") + path


def setup_seconds(node: Node) -> float:
    """Return how many seconds more a read may take that is answered inside the node's runtime."""
    return 0.0 if node.runtime is None else SETUP_LIMIT + SETUP_MARGIN


def user_of_job(node: Node) -> str | None:
    """Return the user that the training job runs as, None for the user that ssh chooses."""
    return node.job_user or node.ssh.user
