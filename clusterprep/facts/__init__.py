"""Facts: one file per subject, each saying what to read on a node and, purely, what the answers mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from clusterprep.model import Inventory, Node, Read
from clusterprep.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Needs:
    """Who may learn a fact on a node: whoever may log in, the job's user (or root, who becomes it), or root alone.

    `why` says what is kept from others. What they learn all the same, with gaps that the checks tell, is kept `partly`.
    """

    who: Literal["anybody", "job_user", "root"]
    why: str = ""
    partly: bool = False


ANYBODY = Needs("anybody")
JOB_USER = Needs(
    "job_user", "it runs as the job's user, and nobody but root can become somebody else"
)


@dataclass(frozen=True)
class Fact:
    """Something to know about every node.

    `reads(node, inventory)` says what to look at, `parse(*answers)` what it means; it may raise ValueError,
    KeyError, IndexError or TypeError on an answer it cannot understand, which makes the fact garbled. A file
    that does not exist is knowledge: parse gets None. Any other missing answer makes the fact absent with that
    answer's reason without calling parse, unless `lenient`, when parse gets the Absent itself. A fact with a
    `stage` has no reads: that stage of a run brings its value. What is `deep` runs code of the job's user (the
    interpreter, shells with their start-up files), which nobody can promise to be quick: where there is a budget it is
    left to stored results. With `apiece` the reads name the node itself; those of
    all other facts are asked for once for nodes that differ in name and address alone, and tests hold that.
    `needs` says who may learn it.
    `narrow(answer)` takes from the first answer what counts, and parse gets nothing else of it: for what is only a part
    of a long answer, so that nodes are seen to be alike in it although they differ elsewhere.
    """

    name: str
    reads: Callable[[Node, Inventory], tuple[Read, ...]] = lambda node, inventory: ()
    parse: Callable[..., Any] = lambda answer: answer
    lenient: bool = False
    stage: str | None = None
    deep: bool = False
    apiece: bool = False
    narrow: Callable[[Any], Any] | None = None
    needs: Needs = ANYBODY


def file(path: str, etc: bool = False) -> Callable[[Node, Inventory], tuple[Read, ...]]:
    """Reads one text file; `etc` marks configuration, which lies under the node's `root`."""
    anywhere = (Read("file", (path,)),)
    return lambda node, inventory: (Read("file", (under(node, path),)),) if etc else anywhere


def under(node: Node, path: str) -> str:
    """A configuration path below the node's root."""
    return path if node.root == "/" else node.root.rstrip("/") + path
