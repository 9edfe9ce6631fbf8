"""One file with given content, from the playbook or from a template; owner and mode if given."""

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
    """Return the fact that is the wanted owner's account on this node."""
    if "owner" not in params:
        return ()
    user = str(params["owner"])
    reads = (Read("account", (user,)),)
    fact = Fact(f"owner:{user}", lambda node, inventory: reads, parse_account)
    return (fact,)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    why = misplaced(str(params["path"]))
    if why:
        yield "path", why
    given = {"content", "template"} & set(params)
    if not given:
        yield "", "expected either content or template"
    if len(given) > 1:
        yield "", "expected either content or template; seen both"


def access(params: Params, context: PlanContext, state: FileState) -> Access | None:
    """Return the wanted mode and owner, None where the step leaves them alone."""
    if "owner" not in params:
        # A new file belongs to the user that writes it; an existing file keeps its owner.
        if "mode" not in params or state.content is None:
            return None
        return Access(_mode(params), state.uid, state.gid)
    user = params["owner"]
    account: Account | None = context.facts[f"owner:{user}"]
    if account is None:
        raise NoPlan("no_such_user", f"{state.path}: this node has no user {user}")
    mode = _mode(params)
    if "mode" not in params and state.content is not None:
        mode = state.mode
    return Access(mode, account.uid, account.gid)


def _mode(params: Params) -> int:
    """Return the mode that the step gives, or that of new files."""
    if "mode" not in params:
        return MODE
    return int(str(params["mode"]), 8)


def plan(params: Params, context: PlanContext) -> Iterable[FileChange]:
    path = str(params["path"])
    state = context.files[path]
    content = str(params["content"]).encode()
    mode = _mode(params)
    wanted_access = access(params, context, state)
    yield file_change(
        context.node,
        "file",
        state,
        content,
        mode,
        wanted_access,
    )


def live(params: Params) -> str:
    if "owner" not in params:
        return ""
    return "the users of a tree that is not running are not known: leave out owner"


RESOURCE = Resource(
    "file", paths, plan, facts=owner, wrong=wrong, variables=("content", "template"), live=live
)
