"""The clock: chrony with sources of the site's own, and each node following one of them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.changes.resources import (
    NoPlan,
    Params,
    Part,
    PlanContext,
    StepResource,
    time_limit,
)
from clusterprep.changes.resources.line import Marks, with_block
from clusterprep.changes.resources.service import restart
from clusterprep.facts import Fact
from clusterprep.facts.clock import FOLLOWING
from clusterprep.model import Absent, Inventory, Json, Read
from clusterprep.model.operations import Operation, RunCommand, StepAction, Write

WAIT = 60.0  # seconds until a clock follows; with `iburst` it takes about five
LIMIT = 60.0  # seconds for a restart
# Debian's file and that of all other distributions, each with its service.
CONFS = {
    "/etc/chrony/chrony.conf": "chrony.service",
    "/etc/chrony.conf": "chronyd.service",
}
# Files in folders that chrony.conf may name. A running chronyd reads the first again, and the
# second only when it starts.
SOURCES = "/etc/chrony/sources.d/clusterprep.sources"
MORE = "/etc/chrony/conf.d/clusterprep.conf"
HEAD = (
    b"# Written by clusterprep apply, which overwrites this file: put sources into the playbook.\n"
)
MARKS = Marks.of("clusterprep clock")
BRINGERS = ("package", "service", "command")  # resources whose steps may bring chrony, or start it
RELOAD = RunCommand(("chronyc", "reload", "sources"), 10.0)
# Wait until chronyd has selected a source («*», see chronyc(1)) that is one of the arguments $2…,
# at most $1 seconds.
FOLLOWED = r"""# until chronyd follows one of these
left=$1; shift
while [ "$left" -gt 0 ]; do
    seen=$(chronyc -c -N sources -a 2>&1)
    for name; do
        case "
$seen" in *"
^,*,$name,"*) exit 0 ;; esac
    done
    left=$((left - 1))
    sleep 1
done
echo 'the clock follows none of these; chronyc says:'
chronyc -N sources
exit 1
"""

_NAME = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:_-]{0,253}")
_FOLDERS = re.compile(rb"^[ \t]*(sourcedir|confdir)[ \t]+([^\r\n]*)", re.MULTILINE | re.IGNORECASE)
_SERVER = re.compile(rb"^server (\S+)", re.MULTILINE)
# How a chronyc before 4.0 answers the option -N.
_UNKNOWN_OPTION = re.compile(r"invalid option|usage:", re.IGNORECASE)
# Reference ids of chronyd without a source: none at all, and its own clock.
_NO_REFERENCE = ("00000000", "7F7F0101")


class Chrony(Struct, frozen=True):
    """What chronyc reports: whether chronyd runs and follows a source, and each source's state.

    `old`: chronyc is older than 4.0.
    """

    runs: bool
    follows: bool = False
    sources: tuple[tuple[str, str], ...] = ()
    old: bool = False

    def has(self, names: Iterable[str]) -> bool:
        """Return whether all these sources are among those of chronyd."""
        return set(names) <= {name for name, _ in self.sources}

    def follows_one(self, names: tuple[str, ...]) -> bool:
        """Return whether the clock follows one of these sources, or any if none is named."""
        if not self.follows or not names:
            return self.follows
        selected = {name for name, state in self.sources if state == "*"}
        return not selected.isdisjoint(names)


class Place(Struct, frozen=True):
    """The file that holds the sources: its content before and after, and the servers in it before.

    `activation` makes chronyd use the new content.
    """

    path: str
    before: bytes | None
    after: bytes | None
    activation: RunCommand
    former: tuple[str, ...]


def parse_chrony(sources: Json, tracking: Json) -> Chrony | Absent | None:
    """Parse the answers to CHRONY's two commands; None if there is no chronyc."""
    for answer in (sources, tracking):
        if isinstance(answer, Absent):
            return None if answer.reason == "missing_tool" else answer
    if sources["code"] != 0:
        return _chrony_after_error(sources)
    if tracking["code"] != 0:
        error = str(tracking["err"]).strip()
        raise ValueError(f"chronyc ended with {tracking['code']}: {error[:200]}")
    states = []
    for line in str(sources["out"]).splitlines():
        row = line.split(",")
        states.append((row[2], row[1]))
    return Chrony(True, _follows(str(tracking["out"])), tuple(states))


def _follows(tracking: str) -> bool:
    """Return whether chronyd follows a source, by its first and last field of `tracking`."""
    fields = tracking.strip().split(",")
    if fields[0] in _NO_REFERENCE:
        return False
    return fields[-1] in FOLLOWING


def _chrony_after_error(answer: Json) -> Chrony:
    """Return what a failed `chronyc sources` says of chrony: it is too old, or does not run.

    Raises ValueError for any other error.
    """
    output = f"{answer['out']}\n{answer['err']}"
    if _UNKNOWN_OPTION.search(output):
        return Chrony(runs=True, old=True)
    if "506 " in output:  # Cannot talk to daemon
        return Chrony(runs=False)
    raise ValueError(f"chronyc ended with {answer['code']}: {output.strip()[:200]}")


CHRONY = Fact(
    "clock:chrony",
    lambda node, inventory: (
        Read("command", ("chronyc", "-c", "-N", "sources", "-a"), 5.0),
        Read("command", ("chronyc", "-n", "-c", "tracking"), 5.0),
    ),
    parse_chrony,
    lenient=True,
)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    return (CHRONY,)


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    if not params.get("sources"):
        return ()
    return (*CONFS, SOURCES, MORE)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    if not params.get("sources"):
        return ()
    return (("clock", ""),)


def source_names(sources: Iterable[object]) -> tuple[str, ...]:
    """Return each source once, with addresses as chronyc prints them.

    Raises ValueError for what is neither a name nor an address.
    """
    names = []
    for source in sources:
        name = str(source)
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"expected names or addresses of time servers; seen '{name}'")
        if ":" in name:
            name = str(ipaddress.ip_address(name))
        names.append(name)
    return tuple(dict.fromkeys(names))


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    sources = [source for source in params.get("sources", ()) if "{{" not in str(source)]
    try:
        source_names(sources)
    except ValueError as error:
        yield "sources", str(error)
    try:
        if time_limit(params, WAIT) < 1:
            yield "limit", f"expected a second at least; seen '{params['limit']}'"
    except ValueError as error:
        yield "limit", str(error)


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    chrony: Chrony | None = context.facts[CHRONY.name]
    try:
        wanted = source_names(params.get("sources", ()))
    except ValueError as error:
        raise NoPlan("cannot", str(error)) from None
    _refuse(context, chrony, wanted)
    operations: list[Operation] = []
    diff = f"follows {' or '.join(wanted) or 'a source'}"
    if wanted:
        place = place_of(context, wanted)
        if place.after != place.before:
            operations.append(Write(place.path, place.before, place.after))
            diff = _difference(place.former, wanted)
        if operations or _has_to_read(chrony, wanted):
            operations.append(place.activation)
    if operations or chrony is None or not chrony.follows_one(wanted):
        operations.append(_wait(wanted, params))
    if not operations:
        diff = ""
    node = context.node.name
    yield StepAction(
        node,
        "clock",
        "chrony",
        "update",
        tuple(operations),
        diff,
    )


def _difference(former: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    """Return the servers that go and those that come, or that their options change."""
    removed = [f"- server {name}" for name in former if name not in wanted]
    added = [f"+ server {name}" for name in wanted if name not in former]
    if not added:
        added = ["the options of a source"]
    return "\n".join(removed + added)


def _has_to_read(chrony: Chrony | None, wanted: tuple[str, ...]) -> bool:
    """Return whether chronyd lacks sources that its files may already hold."""
    if chrony is None:
        return True
    return chrony.runs and not chrony.has(wanted)


def _refuse(context: PlanContext, chrony: Chrony | None, wanted: tuple[str, ...]) -> None:
    """Raise NoPlan if this node cannot follow these sources."""
    node = context.node
    own = {node.name, node.address} & set(wanted)
    if own:
        message = f"{node.name} cannot be its own source {own.pop()}: say `nodes:` without it"
        raise NoPlan("cannot", message)
    if chrony is not None and chrony.old:
        message = "chronyc here is older than 4.0 and cannot tell its sources by name"
        raise NoPlan("cannot", message)
    runs = chrony is not None and chrony.runs
    if runs or context.awaits(*BRINGERS):
        return
    if chrony is None:
        lack = "there is no chronyc"
        cure = "a step `package: {name: chrony}` before this one may bring it"
    else:
        lack = "chronyd does not run"
        cure = "a step `service: {name: chrony, running: true}` before this one may start it"
    raise NoPlan("cannot", f"{lack}: {cure}")


def place_of(context: PlanContext, wanted: tuple[str, ...]) -> Place:
    """Return where chronyd reads these sources from.

    Nearest first: a file in the folder for sources, one in the folder for any settings, or a block
    in chrony.conf itself.
    """
    lines = b""
    for name in wanted:
        lines += f"server {name} iburst prefer\n".encode()
    reload = replace(RELOAD, again=(RELOAD,))
    conf = _conf_path(context)
    if conf is None:
        if not context.awaits(*BRINGERS):
            message = f"there is neither {' nor '.join(CONFS)}; it is not known what chronyd reads"
            raise NoPlan("cannot", message)
        return _file_of_our_own(SOURCES, context, lines, reload)
    folders = _folders(context.files[conf].content or b"")
    if (b"sourcedir", _parent(SOURCES)) in folders:
        return _file_of_our_own(SOURCES, context, lines, reload)
    if (b"confdir", _parent(MORE)) in folders:
        activation = restart("restart", CONFS[conf], LIMIT)
        return _file_of_our_own(MORE, context, lines, activation)
    return _block_in(conf, context, lines)


def _conf_path(context: PlanContext) -> str | None:
    for path in CONFS:
        if context.files[path].content is not None:
            return path
    return None


def _folders(conf: bytes) -> set[tuple[bytes, bytes]]:
    """Return the folders that chrony.conf names, each with its keyword in small letters."""
    folders = set()
    for key, values in _FOLDERS.findall(conf):
        for folder in values.split():
            folders.add((key.lower(), folder.rstrip(b"/")))
    return folders


def _parent(path: str) -> bytes:
    folder, _, _ = path.rpartition("/")
    return folder.encode()


def _file_of_our_own(
    path: str, context: PlanContext, lines: bytes, activation: RunCommand
) -> Place:
    """Return a file that only clusterprep writes as the place; its whole content is ours."""
    before = context.files[path].content
    former = _servers(before or b"")
    return Place(
        path,
        before,
        HEAD + lines,
        activation,
        former,
    )


def _block_in(conf: str, context: PlanContext, lines: bytes) -> Place:
    """Return chrony.conf as the place, with our sources in a marked block."""
    state = context.files[conf]
    before = state.content or b""
    try:
        bare = with_block(before, MARKS, None)
        after = with_block(before, MARKS, lines)
    except ValueError as error:
        raise NoPlan("broken_block", f"{conf}: {error}; mend it by hand") from None
    others = _servers(bare)
    former = tuple(name for name in _servers(before) if name not in others)
    activation = restart("restart", CONFS[conf], LIMIT)
    return Place(
        conf,
        before,
        after,
        activation,
        former,
    )


def _servers(text: bytes) -> tuple[str, ...]:
    return tuple(name.decode("ascii", "replace") for name in _SERVER.findall(text))


def _wait(wanted: tuple[str, ...], params: Params) -> RunCommand:
    """Return the command that waits until the clock follows one of these, or any if none is named.

    There is nothing to undo.
    """
    seconds = int(time_limit(params, WAIT))
    limit = seconds * 2 + 10.0  # each try asks chronyd, too
    tries = str(seconds)
    argv: tuple[str, ...] = ("chronyc", "waitsync", tries, "0", "0", "1")
    if wanted:
        argv = ("sh", "-c", FOLLOWED, "sh", tries, *wanted)
    return RunCommand(argv, limit, undo=())


RESOURCE = StepResource(
    "clock",
    plan,
    facts=facts,
    paths=paths,
    parts=parts,
    wrong=wrong,
    variables=("sources",),
    texts=True,
)
