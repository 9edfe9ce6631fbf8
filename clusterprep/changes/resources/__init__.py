"""Resources: one file per kind of wanted state, each a pure comparison of what is with what is wanted."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

from clusterprep.facts import Fact, under
from clusterprep.model import Absent, Fleet, Inventory, Node, Read
from clusterprep.model.files import Access, FileChange, FileState
from clusterprep.model.operations import StepAction
from clusterprep.nccl.environment import Environment
from clusterprep.runtime.lazy_dataclass import dataclass

Params = Mapping[str, Any]
Part = tuple[str, str]  # a path, and the part of that file that a step owns: "" for all of it


class NoPlan(Exception):
    """What stands on a node cannot be compared; `absent` says why. Nothing is then written anywhere."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.absent = Absent(reason, detail)


@dataclass(frozen=True)
class PlanContext:
    """What a resource compares on one node: `files` as the steps before it leave them, and no fact is absent.

    For resources that go step by step, `earlier` are the deeds of the steps before it that were planned and not done
    yet: what is not there may come by one of them, such as a service by its package. `written` are the files that the
    playbook will have written, by path. `notified` is true for a handler whose turn has come.
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
        """Whether a step before this one will do something by one of these resources, which may bring what lacks."""
        return any(
            step_action.resource in resources and step_action.operations
            for step_action in self.earlier
        )


def _nothing(*_: Any) -> tuple[Any, ...]:
    return ()


@dataclass(frozen=True)
class Resource:
    """A kind of wanted state that is files, or values of the kernel: all are written on all nodes or on none.

    `paths(params, inventory)` names the files that it looks at and may touch, `facts` what else has to be known;
    `plan(params, known)` gives the changes for one node, or raises NoPlan. Where a path or a fact is not known, plan is
    not called. `parts` says what of these files is one step's alone: all of them, unless told otherwise.
    `wrong(params)` yields a key and what is wrong with it, beyond what the schema can say; `variables` are the
    parameters that may hold `{{ name }}`; `live(params)` says why a node whose root is not / cannot have it.
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
        """What becomes of it, in messages."""
        return "written"

    def owned(self, params: Params, inventory: Inventory) -> tuple[Part, ...]:
        """The parts of files that belong to a step with these parameters."""
        if self.parts is not None:
            return self.parts(params, inventory)
        return tuple((path, "") for path in self.paths(params, inventory))


def _live(params: Params) -> str:
    return "it is about the running system"


def _same(params: Params) -> Params:
    return params


@dataclass(frozen=True)
class StepResource:
    """A kind of wanted state that cannot be all or none: it is done step by step, and undone where it can be.

    `plan(params, known)` compares and gives a `StepAction` for each thing that the step is about, without operations where it
    is as wanted already; or it raises NoPlan. It is called again after the step has been done, from facts that were
    read again, and must then find nothing to do, or the step has failed. `facts` say what has to be known, as fresh
    Facts of its own; `paths` which files, which then are in `known.files`. None of them is absent when plan is called,
    but for a fact that is lenient by itself. Facts are asked of the step's nodes, whatever its `when` says.

    `parts` names what the step has for itself, such as («service chrony», ""): two steps that want the same are an
    error. `wrong(params)` yields a key and what is wrong with it, `variables` are the parameters that may hold
    `{{ name }}`, `facts` and `paths` see them as written. `normal(params)` gives the parameters as plan is to have
    them, before variables are put in. `texts` says which scalars are text as written, so that `on` stays "on": True for
    all, or a mapping of parameters. `live(params)` says why a root other than / cannot have it.
    `handles`: it may be a handler; plan then is called with `known.notified` when its turn has come. `only_handles`
    says why a step with these parameters has to be one, if it has.
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
    only_handles: Callable[[Params], str] = lambda params: ""

    @property
    def verb(self) -> str:
        """What becomes of it, in messages."""
        return "done"

    def owned(self, params: Params, inventory: Inventory) -> tuple[Part, ...]:
        """What belongs to a step with these parameters."""
        return self.parts(params, inventory)


def target(path: str) -> Fact:
    """The state of a file that may be rewritten, as a fact named after its path."""
    return Fact(
        f"target:{path}",
        lambda node, inventory: (
            Read("target", (under(node, path), *((node.root,) if node.root != "/" else ()))),
        ),
        lambda answer: parse_target(path, answer),
    )


LIVE = ("/proc", "/sys", "/dev")
STATE = "/var/lib/clusterprep"


def misplaced(path: str) -> str | None:
    """Why no step may write a file at this path, which is under no node's root yet; None where one may."""
    if any(path == top or path.startswith(f"{top}/") for top in LIVE):
        return f"expected the path of a file; {path} is a part of the running system (sysctl sets values of the kernel)"
    if path == STATE or path.startswith(f"{STATE}/"):
        return f"expected a file of yours; {STATE} holds what undoes a run"
    return None


def parse_target(path: str, answer: dict[str, Any] | None) -> FileState:
    """None (no such file) and the agent's answer as one kind of value."""
    if answer is None:
        return FileState(path, None)
    content = base64.b64decode(answer["data"], validate=True)
    return FileState(path, content, int(answer["mode"]), int(answer["uid"]), int(answer["gid"]))


def file_change(
    node: Node,
    resource: str,
    state: FileState,
    wanted: bytes | None,
    mode: int,
    access: Access | None = None,
) -> FileChange:
    """The change from a state to wanted bytes. A file that exists keeps its mode, unless `access` says otherwise."""
    kept = mode if state.content is None else state.mode
    return FileChange(
        node.name, resource, state.path, state.content, wanted, kept, access, state.access
    )


def known(states: Mapping[str, FileState | Absent]) -> dict[str, FileState] | Absent:
    """The states, or the first reason why one is not known."""
    found = {}
    for path, state in states.items():
        if isinstance(state, Absent):
            return Absent(state.reason, f"{path}: {state.detail}")
        found[path] = state
    return found
