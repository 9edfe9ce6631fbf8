"""One file with given content, from the playbook or from a template beside it; owner and mode where they are given."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.changes.resources import (
    NoPlan,
    Params,
    PlanContext,
    Resource,
    file_change,
    misplaced,
)
from clusterprep.facts import Fact
from clusterprep.facts.account import Account, parse_account
from clusterprep.model import Inventory, Read
from clusterprep.model.files import Access, FileChange, FileState

MODE = 0o644  # of a new file, where none is given


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (str(params["path"]),)


def owner(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    """The user that is to own the file, as this node knows him."""
    if "owner" not in params:
        return ()
    user = str(params["owner"])
    return (
        Fact(f"owner:{user}", lambda node, inventory: (Read("account", (user,)),), parse_account),
    )


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    if why := misplaced(str(params["path"])):
        yield "path", why
    given = [key for key in ("content", "template") if key in params]
    if len(given) != 1:
        yield "", "expected either content or template" + ("; seen both" if given else "")


def access(params: Params, known: PlanContext, state: FileState) -> Access | None:
    """What mode and owner are to be; None where the step leaves them alone."""
    if not {"mode", "owner"} & set(params):
        return None
    mode = (
        int(str(params["mode"]), 8)
        if "mode" in params
        else MODE
        if state.content is None
        else state.mode
    )
    if "owner" not in params:
        # A new file belongs to whoever writes it, and the one that is there to whom it belongs.
        return None if state.content is None else Access(mode, state.uid, state.gid)
    account: Account | None = known.facts[f"owner:{params['owner']}"]
    if account is None:
        raise NoPlan("no_such_user", f"{state.path}: this node has no user {params['owner']}")
    return Access(mode, account.uid, account.gid)


def plan(params: Params, known: PlanContext) -> Iterable[FileChange]:
    state = known.files[str(params["path"])]
    mode = int(str(params.get("mode", f"{MODE:o}")), 8)
    content = str(params["content"]).encode()
    yield file_change(known.node, "file", state, content, mode, access(params, known, state))


def live(params: Params) -> str:
    return (
        "the users of a tree that is not running are not known: leave out owner"
        if "owner" in params
        else ""
    )


RESOURCE = Resource(
    "file", paths, plan, facts=owner, wrong=wrong, variables=("content", "template"), live=live
)
