"""`clusterprep bundle`: an archive of evidence, of nodes as they are now or of an earlier run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep import __version__
from clusterprep.cli import exit_codes
from clusterprep.cli.commands import check
from clusterprep.cli.commands.evidence import ask_nodes
from clusterprep.cli.commands.report import new_report
from clusterprep.cli.commands.session import Invocation
from clusterprep.errors import ClusterprepError, InputError
from clusterprep.fabric.printed import unchanged
from clusterprep.fabric.results import snapshots
from clusterprep.history.runs import Runs
from clusterprep.inventory.ansible_signs import is_dynamic
from clusterprep.inventory.load import MAX_BYTES, STDIN, load_inventory
from clusterprep.inventory.site.trust import Distrusted, trusted_file
from clusterprep.model import Inventory, NodeSnapshot, Report
from clusterprep.model.nodeset import fold
from clusterprep.model.units import pluralize
from clusterprep.reports.bundle import archive
from clusterprep.reports.bundle.contents import (
    Contents,
    Material,
    NodeEvidence,
    Text,
    chosen_nodes,
    contents_of,
)
from clusterprep.reports.bundle.index_page import missing, with_index
from clusterprep.reports.bundle.node_answers import Evidence, rough_size
from clusterprep.reports.bundle.sources import sources_for
from clusterprep.reports.files import check_places

SUFFIXES = (".tar.gz", ".tgz")
MOST_LOG = 8 << 20  # bytes of each log, its end
MOST_LOGS = 64


class BundleRequest(Struct, frozen=True):
    """What the command line wants. `archive` is None for the default name."""

    source: str
    redact: bool
    archive: str | None
    logs: tuple[Text, ...]
    started: datetime
    clock: float


def request_of(params: Mapping[str, Any]) -> BundleRequest:
    """Return what the options of click say. Raises InputError."""
    target = params["archive"]
    if target is not None:
        if not target.endswith(SUFFIXES):
            suffixes = " or ".join(SUFFIXES)
            raise InputError.of(
                "a bundle is a packed archive",
                file=target,
                key="--output",
                hint=f"end with {suffixes}",
            )
        check_places([target])
    logs = params["logs"]
    if len(logs) > MOST_LOGS:
        raise InputError.of(f"more than {MOST_LOGS} logs", key="--log")
    texts = []
    for name in logs:
        try:
            texts.append(_log(Path(name)))
        except OSError as error:
            raise InputError.of(f"{error.strerror}", file=name, key="--log") from None
    return BundleRequest(
        source=params["inventory"],
        redact=params["redact"],
        archive=target,
        logs=tuple(texts),
        started=datetime.now(timezone.utc),
        clock=time.monotonic(),
    )


def names_inventory(source: str) -> bool:
    """Return whether INVENTORY|RUN is an inventory: a file or a folder that is there, or `-`."""
    return source == STDIN or Path(source).exists()


# ---------------------------------------------------------------- an earlier run


def of_run(request: BundleRequest, runs: Runs) -> Report:
    """Write the bundle of an earlier run and return the report about it. Raises InputError."""
    recorded = runs.named(request.source, key="INVENTORY|RUN")
    report = runs.whole(recorded.run)
    inventory, text, note = _inventory_of_run(recorded.inventory, report)
    logs = request.logs
    logs_note = ""
    if report.launch is not None and report.launch.logs:
        of_launch, logs_note = _logs_of(Path(report.launch.logs))
        logs = (*logs, *of_launch)
    material = Material(
        report=report,
        tool=recorded.tool,
        inventory=inventory,
        inventory_text=text,
        inventory_note=note,
        logs=logs,
        logs_note=logs_note,
    )
    return _written(request, material, exit_codes.OK)


def _inventory_of_run(name: str, report: Report) -> tuple[Inventory | None, Text | None, str]:
    """Return the inventory of a run as it is now and as text, and what is wrong with it.

    The history keeps its path alone. A file that another user could have put there is not read, and
    no program that lists nodes is run.
    """
    if not name or name == STDIN:
        return None, None, "the run had no file"
    path = Path(name)
    try:
        if path.is_dir() or is_dynamic(path):
            return None, None, f"{name} is no file of its own"
        trusted_file(path)
        inventory = load_inventory(path)
        text = _text_of(path)
    except (ClusterprepError, Distrusted, OSError) as error:
        return None, None, f"{name} is not read: {error}"
    names = {node.name for node in inventory.nodes}
    others = [node.node for node in report.nodes or () if node.node not in names]
    if inventory.cluster != report.cluster or others:
        return None, None, f"{name} is of other nodes now"
    changed = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    note = "as it is now"
    if f"{changed:%Y-%m-%dT%H:%M:%SZ}" > report.started:
        note = "as it is now; it was changed after the run began"
    return inventory, text, note


# ---------------------------------------------------------------- nodes as they are now


class Gathered(Struct, frozen=True):
    """What a bundle of nodes is made of, which nodes answered, and the exit code of that."""

    material: Material
    nodes: tuple[NodeSnapshot, ...]
    code: int
    timed_out: bool


def gather(request: BundleRequest, invocation: Invocation) -> Gathered:
    """Check all nodes and ask them for evidence."""
    report = check.run(invocation)
    inventory = invocation.inventory
    sources = sources_for(inventory, names=request.redact)
    names = [node.name for node in inventory.nodes]
    chosen, not_asked = chosen_nodes(report, names)
    evidence, outcomes, timed_out = ask_nodes(invocation, chosen, sources)
    text = None
    if request.source != STDIN:
        text = _text_of(Path(request.source))
    secret = invocation.password(inventory.nodes[0])  # one password is for all nodes
    material = Material(
        report=replace(report, run=invocation.run),
        tool=__version__,
        inventory=inventory,
        inventory_text=text,
        logs=request.logs,
        evidence=evidence,
        not_asked=tuple(not_asked),
        without_password=unchanged if secret is None else secret.filter.text,
    )
    by_name = {node.name: node for node in inventory.nodes}
    nodes = snapshots([by_name[name] for name in chosen], outcomes)
    codes = [exit_codes.reached_code(nodes), _answered_code(evidence)]
    if timed_out:
        codes.append(exit_codes.UNKNOWN)
    return Gathered(material, nodes, exit_codes.worst(*codes), timed_out)


def of_nodes(request: BundleRequest, gathered: Gathered) -> Report:
    """Write the bundle of nodes and return the report about it. Raises InputError."""
    report = _written(request, gathered.material, gathered.code)
    notices = report.notices
    if gathered.timed_out:
        notices = (*notices, "the time was over before all nodes had answered all questions")
    return replace(report, nodes=gathered.nodes, notices=notices)


def _answered_code(evidence: Sequence[NodeEvidence]) -> int:
    """Return 3 if a node did not answer at all to what it was asked, else 0."""
    for one in evidence:
        if not any(_is_answer(answer) for answer in one.answers):
            return exit_codes.UNKNOWN
    return exit_codes.OK


def _is_answer(answer: Evidence) -> bool:
    return answer.state != "unknown" or bool(answer.packed)


# ---------------------------------------------------------------- files


def _text_of(path: Path) -> Text | None:
    """Return a file as text, None for a folder and for a program that lists nodes."""
    if path.is_dir() or is_dynamic(path):
        return None
    with path.open("rb") as source:
        content = source.read(MAX_BYTES)
    return Text(path.name, content.decode("utf-8", "backslashreplace"))


def _log(path: Path) -> Text:
    """Return the end of a log. Raises OSError."""
    with path.open("rb") as source:
        size = os.fstat(source.fileno()).st_size
        note = ""
        if size > MOST_LOG:
            note = f"the last {rough_size(MOST_LOG)} of {rough_size(size)}"
            source.seek(size - MOST_LOG)
        content = source.read(MOST_LOG)
    return Text(path.name, content.decode("utf-8", "backslashreplace"), note)


def _logs_of(folder: Path) -> tuple[tuple[Text, ...], str]:
    """Return the logs of a launch, and what is missing of them."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file())
        logs = tuple(_log(path) for path in paths[:MOST_LOGS])
    except OSError as error:
        return (), f"{folder}: {error.strerror}"
    if len(paths) > MOST_LOGS:
        return logs, f"{MOST_LOGS} of {len(paths)} in {folder}"
    return logs, ""


def _written(request: BundleRequest, material: Material, code: int) -> Report:
    """Write the archive and return the report about it. Raises InputError where that fails."""
    contents = contents_of(material, redact=request.redact)
    moment = datetime.fromisoformat(material.report.started.replace("Z", "+00:00"))
    seconds = int(moment.timestamp())
    path = Path(request.archive or f"{contents.name}.tar.gz")
    problem = archive.write(path, contents.name, with_index(contents), seconds)
    if problem:
        raise InputError.of(problem, key="--output")
    return new_report(
        "bundle",
        code,
        cluster=material.report.cluster,
        run=material.report.run,
        started=request.started,
        seconds=round(time.monotonic() - request.clock, 3),
        notices=tuple(_notices(path, contents, material, request)),
    )


def _notices(
    path: Path, contents: Contents, material: Material, request: BundleRequest
) -> Iterator[str]:
    """Yield what the user should know of the archive."""
    count = pluralize(len(contents.members), "file")
    total = rough_size(sum(member.size for member in contents.members))
    packed = rough_size(path.stat().st_size)
    yield f"{path} is written: {count}, {total} unpacked, {packed} packed. Begin with index.html"
    if request.redact:
        yield "names are replaced where they are known to be names: look at it before you post it"
    else:
        yield "names, addresses and serial numbers are in it; --redact replaces them"
    lacking = list(missing(contents))
    if lacking:
        count = pluralize(len(lacking), "gap")
        yield f"{count}: what is missing or not whole, and why, is in index.html"
    if material.not_asked:
        yield f"not asked: {fold(material.not_asked)}; --limit chooses others"
    yield from material.report.notices
