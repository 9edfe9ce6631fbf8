"""Resources: one module per kind of wanted state, each a pure comparison of actual and wanted.

Begin with `limits`, which is files, and `service`, which is steps. `Resource` and `StepResource`
below say what they promise.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from clusterprep.facts import Fact, under
from clusterprep.model import Absent, Fleet, Inventory, Node, Read
from clusterprep.model.files import Access, FileChange, FileState
from clusterprep.model.operations import StepAction
from clusterprep.model.units import parse_duration
from clusterprep.nccl.environment import Environment

Params = Mapping[str, Any]
# A path, and the part of that file that a step owns: "" for all of it.
Part = tuple[str, str]

# File systems of the running kernel.
LIVE = ("/proc", "/sys", "/dev")
# Where a node keeps what a rollback needs.
STATE = "/var/lib/clusterprep"


class NoPlan(Exception):
    """The state of a node cannot be compared with what is wanted; `absent` says why.

    Nothing is then written on any node.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.absent = Absent(reason, detail)


class PlanContext(Struct, frozen=True):
    """What a resource compares on one node. No fact is absent.

    * `files`: as the earlier steps leave them.
    * `earlier`: the actions of earlier steps that are planned and not done yet, for resources that
      go step by step. One of them may bring what is missing, such as a service by its package.
    * `written`: the files that the playbook will have written, by path.
    * `notified`: this is a handler whose turn has come.
    """

    fleet: Fleet
    node: Node
    files: Mapping[str, FileState]
    facts: Mapping[str, Any]
    environment: Environment
    earlier: tuple[StepAction, ...] = ()
    written: Mapping[str, FileState] = field(default_factory=dict)
    notified: bool = False

    def awaits(self, *resources: str) -> bool:
        """Return whether an earlier step of one of these resources has something to do.

        Such a step may bring what is missing now.
        """
        pending = (action for action in self.earlier if action.operations)
        return any(action.resource in resources for action in pending)


def _nothing(*_: Any) -> tuple[Any, ...]:
    return ()


class Resource(Struct, frozen=True):
    """A kind of wanted state that is files, or values of the kernel.

    All of it is written on all nodes or on none.

    * `paths(params, inventory)` names the files that it reads and may write.
    * `plan(params, context)` returns the changes for one node, or raises NoPlan. It is not called
      where a path or a fact is not known.
    * `facts(params, inventory)` names what else has to be known.
    * `parts(params, inventory)` names what one step alone may write; by default all of its files.
    * `wrong(params)` yields a key and what is wrong with it, beyond what the schema can express.
    * `variables` are the parameters that may hold `{{ name }}`.
    * `live(params)` says why a node whose root is not / cannot have it.
    """

    name: str
    paths: Callable[[Params, Inventory], tuple[str, ...]]
    plan: Callable[[Params, PlanContext], Iterable[FileChange]]
    facts: Callable[[Params, Inventory], tuple[Fact, ...]] = _nothing
    parts: Callable[[Params, Inventory], tuple[Part, ...]] | None = None
    wrong: Callable[[Params], Iterable[tuple[str, str]]] = _nothing
    variables: tuple[str, ...] = ()
    live: Callable[[Params], str] = lambda params: ""

    @property
    def verb(self) -> str:
        """Return the participle for messages."""
        return "written"

    def owned(self, params: Params, inventory: Inventory) -> tuple[Part, ...]:
        """Return the parts of files that belong to a step with these parameters."""
        if self.parts is not None:
            return self.parts(params, inventory)
        return tuple((path, "") for path in self.paths(params, inventory))


def _live(params: Params) -> str:
    return "it is about the running system"


def _same(params: Params) -> Params:
    return params


class StepResource(Struct, frozen=True):
    """A kind of wanted state that goes step by step, and is undone where that is possible.

    * `plan(params, context)` returns a `StepAction` for each thing that the step is about, without
      operations where that is as wanted already; or it raises NoPlan. It is called again after the
      step is done, with facts that were read again. It must then find nothing to do, or the step
      has failed.
    * `facts(params, inventory)` names what has to be known, as fresh Facts of its own. They are
      asked of the step's nodes, whatever its `when` says.
    * `paths(params, inventory)` names the files that are then in `context.files`. When plan is
      called no file or fact is absent, except as `inapplicable` says.
    * `parts(params, inventory)` names what belongs to the step alone, such as
      («service chrony», ""). Two steps with the same part are an error.
    * `wrong(params)` yields a key and what is wrong with it.
    * `variables` are the parameters that may hold `{{ name }}`. `facts` and `paths` see them as
      they are written in the playbook.
    * `normal(params)` returns the parameters as plan gets them, before variables are filled in.
    * `texts` says which scalars are text as written, so that `on` stays "on": True for all, or a
      mapping of parameters.
    * `live(params)` says why a node whose root is not / cannot have it.
    * `handles`: it may be a handler. Plan is then called with `context.notified` when its turn has
      come.
    * `inapplicable`: plan is called on machines that a fact is not about, too. It then gets the
      Absent of that fact, whose reason is `not_applicable`, and finds nothing to do.
    * `only_handles(params)` says why a step with these parameters has to be a handler, if it has.
    """

    name: str
    plan: Callable[[Params, PlanContext], Iterable[StepAction]]
    facts: Callable[[Params, Inventory], tuple[Fact, ...]] = _nothing
    paths: Callable[[Params, Inventory], tuple[str, ...]] = _nothing
    parts: Callable[[Params, Inventory], tuple[Part, ...]] = _nothing
    wrong: Callable[[Params], Iterable[tuple[str, str]]] = _nothing
    normal: Callable[[Params], Params] = _same
    variables: tuple[str, ...] = ()
    texts: Any = None
    live: Callable[[Params], str] = _live
    handles: bool = False
    inapplicable: bool = False
    only_handles: Callable[[Params], str] = lambda params: ""

    @property
    def verb(self) -> str:
        """Return the participle for messages."""
        return "done"

    def owned(self, params: Params, inventory: Inventory) -> tuple[Part, ...]:
        """Return what belongs to a step with these parameters."""
        return self.parts(params, inventory)


def target_fact(path: str) -> Fact:
    """Return the fact that is the state of a file that may be rewritten, named after its path."""

    def reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
        arguments = [under(node, path)]
        if node.root != "/":
            arguments.append(node.root)
        return (Read("target", tuple(arguments)),)

    def parse(answer: dict[str, Any] | None) -> FileState:
        return parse_target(path, answer)

    return Fact(f"target:{path}", reads, parse)


def misplaced(path: str) -> str | None:
    """Return why no step may write a file at this path, or None where one may.

    The path does not include a node's root.
    """
    for mount_point in LIVE:
        if _is_below(path, mount_point):
            return (
                f"expected the path of a file; {path} is a part of the running system "
                "(sysctl sets values of the kernel)"
            )
    if _is_below(path, STATE):
        return f"expected a file of yours; {STATE} holds what undoes a run"
    return None


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def parse_target(path: str, answer: dict[str, Any] | None) -> FileState:
    """Return the state of a file from the agent's answer, which is None if there is no file."""
    if answer is None:
        return FileState(path, None)
    content = base64.b64decode(answer["data"], validate=True)
    mode = int(answer["mode"])
    uid = int(answer["uid"])
    gid = int(answer["gid"])
    return FileState(
        path,
        content,
        mode,
        uid,
        gid,
    )


def file_change(
    node: Node,
    resource: str,
    state: FileState,
    wanted: bytes | None,
    mode: int,
    access: Access | None = None,
) -> FileChange:
    """Return the change from a state to wanted bytes.

    A file that exists keeps its mode, unless `access` is given; `mode` is that of a new file.
    """
    path = state.path
    before = state.content
    if before is not None:
        mode = state.mode
    return FileChange(
        node.name,
        resource,
        path,
        before,
        wanted,
        mode,
        access,
        state.access,
    )


def known_states(states: Mapping[str, FileState | Absent]) -> dict[str, FileState] | Absent:
    """Return the states if all are known, else the first reason why one is not."""
    files = {}
    for path, state in states.items():
        if isinstance(state, Absent):
            named = path in state.detail  # most reasons of the reader name it already
            detail = state.detail if named else f"{path}: {state.detail}"
            return Absent(state.reason, detail)
        files[path] = state
    return files


def time_limit(params: Params, default: float) -> float:
    """Return the parameter `limit` in seconds, or the default if it is not given.

    Raises ValueError that says what is expected.
    """
    if "limit" not in params:
        return default
    return parse_duration(str(params["limit"]))
