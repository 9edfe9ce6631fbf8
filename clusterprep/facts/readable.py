"""Which files of the environment the job's user cannot read, tried as that user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from msgspec import Struct

from clusterprep.facts import JOB_USER, Fact, under, user_of_job
from clusterprep.facts.env_files import READ_BY_USER, written_files
from clusterprep.model import Inventory, Node, Read

LIMIT = 5.0  # seconds; the home of the user may be on a file server
NEEDS = ("read", "run", "list")
USES = ("target", "nccl", "slurm", "shell")

Need = Literal["read", "run", "list"]
Use = Literal["target", "nccl", "slurm", "shell"]


class Refusal(Struct, frozen=True):
    """A file that the user cannot use, and what refuses.

    `need` says for what: "run" takes the right to read as well, "list" is for a folder. `use` says
    who wants it: apply writes a "target", NCCL reads its own files, Slurm runs TaskProlog, shells
    read start-up files. `at` is the folder on the way that the user cannot enter, or the file
    itself; "" where no right is missing and `why` names another error. `mode`, `owner`, `group` and
    `acl` (whether it has an access control list) are those of `at`. `exists` and `sets` (whether
    the file sets what matters to a job) are None where they could not be learned.
    """

    path: str
    need: Need
    use: Use
    why: str
    at: str = ""
    folder: bool = False
    mode: int | None = None
    owner: str | None = None
    group: str | None = None
    acl: bool = False
    exists: bool | None = True
    sets: bool | None = True

    @property
    def matters(self) -> bool | None:
        """Return whether a job loses settings by this refusal; None if that is not known.

        Into a target apply writes, also where there is no file yet. A folder counts by its files.
        """
        if self.use == "target" or self.need == "list":
            return True
        if self.exists is False or self.sets is False:
            return False
        if self.use == "shell":
            return self.sets
        return self.exists


class Readable(Struct, frozen=True):
    """The user whose rights opened the files, and what could not be opened, sorted by path."""

    user: str
    refusals: tuple[Refusal, ...] = ()


def parse_readable(answer: Mapping[str, Any]) -> Readable:
    """Return what the job's user cannot read. Raises ValueError for what is not understood."""
    refusals = []
    for row in answer["refused"]:
        refusals.append(_refusal(row))
    return Readable(_text(answer["user"]), tuple(refusals))


def _refusal(row: Mapping[str, Any]) -> Refusal:
    mode = row["mode"]
    if mode is not None and (isinstance(mode, bool) or not isinstance(mode, int)):
        raise ValueError(f"{mode!r} is no mode")
    if row["need"] not in NEEDS or row["use"] not in USES:
        raise ValueError("a file without a reader")
    return Refusal(
        _text(row["path"]),
        cast("Need", row["need"]),
        cast("Use", row["use"]),
        _text(row["why"]),
        at=_text(row["at"]),
        folder=row["folder"] is True,
        mode=mode,
        owner=_text_or_none(row["owner"]),
        group=_text_or_none(row["group"]),
        acl=row["acl"] is True,
        exists=_bool_or_none(row["exists"]),
        sets=_bool_or_none(row["sets"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, seen {value!r}")  # noqa: TRY004 - as every parse
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def _bool_or_none(value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"expected true or false, seen {value!r}")
    return value


def target_paths(node: Node, inventory: Inventory) -> dict[str, str]:
    """Return the files that apply writes on a node and the job's user reads, with their targets."""
    paths = {}
    for path, target in written_files(inventory).items():
        if target in READ_BY_USER:
            paths[under(node, path)] = target
    return paths


def _reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    wanted = []
    for path, target in target_paths(node, inventory).items():
        # slurmstepd starts a TaskProlog as the job's user, so it takes the right to run it as well.
        need = "run" if target == "slurm-task-prolog" else "read"
        wanted.append((path, need, "target"))
    declared = node.env.get("NCCL_CONF_FILE")
    if declared is not None and declared.value.startswith("/"):
        wanted.append((declared.value, "read", "nccl"))
    return (Read("readable", (user_of_job(node), tuple(wanted)), limit=LIMIT),)


READABLE = Fact("env.readable", _reads, parse_readable, deep=True, needs=JOB_USER)
