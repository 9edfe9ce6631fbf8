"""The clock: chrony with sources of the site's own, and each node following one of them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.changes.resources.line import Marks, with_block
from clusterprep.facts import Fact
from clusterprep.facts.clock import FOLLOWING
from clusterprep.model import Absent, Inventory, Json, Read
from clusterprep.model.operations import Operation, RunCommand, StepAction, Write
from clusterprep.model.units import parse_duration

WAIT = 60.0  # seconds until a clock follows; with `iburst` it takes about five
LIMIT = 60.0  # seconds for a restart
CONFS = {
    "/etc/chrony/chrony.conf": "chrony.service",
    "/etc/chrony.conf": "chronyd.service",
}  # Debian's, and all others'
# Folders that chrony.conf may name: one is read again by a running chronyd, the other when it starts.
SOURCES, MORE = "/etc/chrony/sources.d/clusterprep.sources", "/etc/chrony/conf.d/clusterprep.conf"
HEAD = (
    b"# Written by clusterprep apply, which overwrites this file: put sources into the playbook.\n"
)
MARKS = Marks.of("clusterprep clock")
BRINGERS = ("package", "service", "command")  # resources whose deeds may bring chrony, or start it
RELOAD = RunCommand(("chronyc", "reload", "sources"), 10.0)
# Until one of the names $2… is the source that chronyd has selected («*», see chronyc(1)), $1 seconds at most.
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
_OLD = re.compile(r"invalid option|usage:", re.IGNORECASE)


@dataclass(frozen=True)
class Chrony:
    """What chronyc says: its `sources` by name with their states, whether the clock follows any; `old`: before 4.0."""

    runs: bool
    follows: bool = False
    sources: tuple[tuple[str, str], ...] = ()
    old: bool = False

    def has(self, names: Iterable[str]) -> bool:
        return set(names) <= {name for name, _ in self.sources}

    def follows_one(self, names: tuple[str, ...]) -> bool:
        return self.follows and (
            not names or any(name in names and state == "*" for name, state in self.sources)
        )


@dataclass(frozen=True)
class Place:
    """Where the sources stand: what they are now and are to be, and what makes chronyd take them."""

    path: str
    before: bytes | None
    after: bytes | None
    take: RunCommand
    former: tuple[str, ...]


def parse_chrony(sources: Json, tracking: Json) -> Chrony | Absent | None:
    """`chronyc -c -N sources -a` and `chronyc -n -c tracking`; None where there is no chronyc."""
    for answer in (sources, tracking):
        if isinstance(answer, Absent):
            return None if answer.reason == "missing_tool" else answer
    said = f"{sources['out']}\n{sources['err']}"
    if sources["code"] != 0:
        if _OLD.search(said):
            return Chrony(runs=True, old=True)
        if "506 " in said:  # Cannot talk to daemon
            return Chrony(runs=False)
        raise ValueError(f"chronyc ended with {sources['code']}: {said.strip()[:200]}")
    if tracking["code"] != 0:
        raise ValueError(
            f"chronyc ended with {tracking['code']}: {str(tracking['err']).strip()[:200]}"
        )
    rows = [line.split(",") for line in str(sources["out"]).splitlines()]
    fields = str(tracking["out"]).strip().split(",")
    follows = fields[-1] in FOLLOWING and fields[0] not in (
        "00000000",
        "7F7F0101",
    )  # no source, and the clock itself
    return Chrony(True, follows, tuple((row[2], row[1]) for row in rows))


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
    return (*CONFS, SOURCES, MORE) if params.get("sources") else ()


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return (("clock", ""),) if params.get("sources") else ()


def names(params: Params) -> tuple[str, ...]:
    """The sources, addresses as chronyc shows them. ValueError for what is neither a name nor an address."""
    found = []
    for text in map(str, params.get("sources", ())):
        if _NAME.fullmatch(text) is None:
            raise ValueError(f"expected names or addresses of time servers; seen '{text}'")
        found.append(str(ipaddress.ip_address(text)) if ":" in text else text)
    return tuple(dict.fromkeys(found))


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    try:
        names({"sources": [text for text in params.get("sources", ()) if "{{" not in str(text)]})
    except ValueError as error:
        yield "sources", str(error)
    try:
        if "limit" in params and parse_duration(str(params["limit"])) < 1:
            yield "limit", f"expected a second at least; seen '{params['limit']}'"
    except ValueError as error:
        yield "limit", str(error)


def plan(params: Params, known: PlanContext) -> Iterable[StepAction]:
    chrony: Chrony | None = known.facts[CHRONY.name]
    try:
        wanted = names(params)
    except ValueError as error:
        raise NoPlan("cannot", str(error)) from None
    _refuse(known, chrony, wanted)
    operations: list[Operation] = []
    words = [f"follows {' or '.join(wanted)}" if wanted else "follows a source"]
    if wanted:
        place = place_of(known, wanted)
        if place.after != place.before:
            operations.append(Write(place.path, place.before, place.after))
            words = [f"- server {name}" for name in place.former if name not in wanted]
            words += [f"+ server {name}" for name in wanted if name not in place.former] or [
                "the options of a source"
            ]
        if operations or chrony is None or (chrony.runs and not chrony.has(wanted)):
            operations.append(place.take)
    if operations or chrony is None or not chrony.follows_one(wanted):
        operations.append(_wait(wanted, params))
    yield StepAction(
        known.node.name,
        "clock",
        "chrony",
        "update",
        tuple(operations),
        "\n".join(words) if operations else "",
    )


def _refuse(known: PlanContext, chrony: Chrony | None, wanted: tuple[str, ...]) -> None:
    """Raise NoPlan for what cannot be."""
    if own := {known.node.name, known.node.address} & set(wanted):
        why = f"{known.node.name} cannot be its own source {own.pop()}: say `nodes:` without it"
    elif chrony is not None and chrony.old:
        why = "chronyc here is older than 4.0 and cannot tell its sources by name"
    elif (chrony is not None and chrony.runs) or known.awaits(*BRINGERS):
        return
    elif chrony is None:
        why = "there is no chronyc: a step `package: {name: chrony}` before this one may bring it"
    else:
        why = "chronyd does not run: a step `service: {name: chrony, running: true}` before this one may start it"
    raise NoPlan("cannot", why)


def place_of(known: PlanContext, wanted: tuple[str, ...]) -> Place:
    """Where chrony.conf has sources read from: a folder of its own for them, one for more of it, or itself."""
    conf = next((path for path in CONFS if known.files[path].content is not None), None)
    if conf is None and not known.awaits(*BRINGERS):
        raise NoPlan(
            "cannot", f"there is neither {' nor '.join(CONFS)}, so nobody knows what chronyd reads"
        )
    path = SOURCES if conf is None else _folder(known.files[conf].content or b"")
    lines = b"".join(f"server {name} iburst prefer\n".encode() for name in wanted)
    at = path or str(conf)
    before = known.files[at].content
    take = replace(RELOAD, again=(RELOAD,)) if at == SOURCES else _restart(str(conf))
    if path is not None:
        return Place(at, before, HEAD + lines, take, _servers(before or b""))
    try:
        bare = with_block(before or b"", MARKS, None)
        after = with_block(before or b"", MARKS, lines)
    except ValueError as error:
        raise NoPlan("broken_block", f"{at}: {error}; mend it by hand") from None
    return Place(
        at,
        before,
        after,
        take,
        tuple(name for name in _servers(before or b"") if name not in _servers(bare)),
    )


def _restart(conf: str) -> RunCommand:
    again = RunCommand(("systemctl", "try-restart", "--", CONFS[conf]), LIMIT)
    return RunCommand(("systemctl", "restart", "--", CONFS[conf]), LIMIT, again=(again,))


def _folder(conf: bytes) -> str | None:
    named = {
        (key.lower(), word.rstrip(b"/"))
        for key, words in _FOLDERS.findall(conf)
        for word in words.split()
    }
    if (b"sourcedir", SOURCES.rpartition("/")[0].encode()) in named:
        return SOURCES
    return MORE if (b"confdir", MORE.rpartition("/")[0].encode()) in named else None


def _servers(text: bytes) -> tuple[str, ...]:
    return tuple(
        name.decode("ascii", "replace")
        for name in re.findall(rb"^server (\S+)", text, re.MULTILINE)
    )


def _wait(wanted: tuple[str, ...], params: Params) -> RunCommand:
    """Wait until the clock follows one of these, or any where none is named; there is nothing to take back."""
    seconds = int(parse_duration(str(params["limit"])) if "limit" in params else WAIT)
    limit = seconds * 2 + 10.0  # each try asks chronyd, too
    if wanted:
        return RunCommand(("sh", "-c", FOLLOWED, "sh", str(seconds), *wanted), limit, undo=())
    return RunCommand(("chronyc", "waitsync", str(seconds), "0", "0", "1"), limit, undo=())


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
