"""Tell what a watch saw: on stdout, to a webhook, and in a file for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from clusterprep.cli import webhook
from clusterprep.cli.options import seconds
from clusterprep.cli.output import print_line, say
from clusterprep.errors import InputError
from clusterprep.model.units import format_duration, pluralize

if TYPE_CHECKING:
    from clusterprep.cli.commands.session import Invocation
    from clusterprep.cli.commands.watch import Look
    from clusterprep.jobs.live.target import Target
    from clusterprep.model import Inventory

SHORTEST, LONGEST = 1.0, 86400.0  # seconds from one look to the next
TEXTFILE = "--textfile"
SUFFIX = ".prom"  # node_exporter reads no other files


class Channels(Struct, frozen=True):
    """Where changes go, as the options say: the format of stdout, a URL, a file."""

    fmt: str
    url: str | None = None
    signer: webhook.Signer | None = None
    textfile: str | None = None


def interval(text: str) -> float:
    """Return the seconds of --every. Raises InputError for none, and for one that is no use."""
    every = seconds(text, "--every") or 0.0
    if not SHORTEST <= every <= LONGEST:
        raise InputError.of(f"'{text}' is not between 1s and 24h", key="--every")
    return every


def target(params: Mapping[str, Any], inventory: Inventory) -> Target | None:
    """Return the job that is followed. Raises InputError for one that cannot be."""
    from clusterprep.jobs.live.target import target_of

    if params["job"] is None:
        return None
    return target_of(params["job"], [node.name for node in inventory.nodes])


def channels(params: Mapping[str, Any]) -> Channels:
    """Return where changes go. Raises InputError for what nothing can be sent or written to."""
    url, textfile = params["webhook"], params["textfile"]
    signer = None
    if url is not None:
        url = webhook.checked_url(url)
        signer = webhook.read_secret(params["webhook_secret"])
    elif params["webhook_secret"] is not None:
        raise InputError.of("it signs what goes to a webhook; add --webhook URL", key="--webhook")
    if textfile is not None:
        _check_textfile(textfile)
    return Channels(params["fmt"], url, signer, textfile)


def _check_textfile(name: str) -> None:
    from clusterprep.reports.files import check_places

    if not name.endswith(SUFFIX):
        raise InputError.of(f"its name has to end in {SUFFIX}", file=name, key=TEXTFILE)
    check_places([name])


class Telling:
    """Tells each look on all channels. Leaving it sends what waits."""

    def __init__(
        self, channels: Channels, invocation: Invocation, every: float, checks: int
    ) -> None:
        self._channels = channels
        self._invocation = invocation
        self._cluster = invocation.inventory.cluster
        self._every = every
        self._has_begun = False
        self._was_slow = False
        self._webhook: webhook.Webhook | None = None
        self._unwritten = ""  # why the file for Prometheus could not be written
        nodes = pluralize(len(invocation.inventory.nodes), "node")
        rhythm = format_duration(every)
        say(
            f"clusterprep: watching {nodes} every {rhythm} with {pluralize(checks, 'check')}; "
            "only changes are told, Ctrl-C ends it"
        )

    def __enter__(self) -> Telling:
        url, signer = self._channels.url, self._channels.signer
        if url is not None and signer is not None:
            self._webhook = webhook.Webhook(url, signer, say)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._webhook is not None:
            self._webhook.close()

    def tell(self, look: Look) -> None:
        """Tell what one look brought."""
        self._print(look)
        if self._webhook is not None and look.changes:
            self._webhook.put(_body(look, self._cluster))
        if self._channels.textfile is not None:
            self._write(look, self._channels.textfile)
        self._say_once(look)

    def _print(self, look: Look) -> None:
        from clusterprep.reports import watch_lines

        if self._channels.fmt == "jsonl":
            rows = watch_lines.json_rows(look.changes, look.at, self._cluster)
        else:
            rows = watch_lines.console_lines(look.changes, look.at.astimezone())
        for row in rows:
            print_line(row)

    def _write(self, look: Look, name: str) -> None:
        """Write the state of all nodes for Prometheus, and say once if that fails."""
        from clusterprep.cli.commands.watch import report_of
        from clusterprep.reports import render
        from clusterprep.reports.files import write

        report = report_of(self._invocation, look)
        problem = write(name, (render(report, "prometheus"),))
        if problem and not self._unwritten:
            say(f"clusterprep: {TEXTFILE}: {problem}")
        self._unwritten = problem

    def _say_once(self, look: Look) -> None:
        """Say on stderr that the first look is done, and that looks take longer than they may."""
        took = format_duration(round(look.seconds, 1))
        if not self._has_begun:
            self._has_begun = True
            number, total = len(look.fleet.reached), len(look.fleet.inventory.nodes)
            say(f"clusterprep: {number} of {total} nodes reached, the first look took {took}")
        is_slow = look.seconds > self._every
        if is_slow and not self._was_slow:
            say(f"clusterprep: a look takes {took}, which is longer than --every")
        self._was_slow = is_slow


def _body(look: Look, cluster: str) -> Mapping[str, Any]:
    """Return what a webhook is sent of a look."""
    from clusterprep.reports.watch_lines import SCHEMA, object_of

    return {
        "schema": SCHEMA,
        "time": f"{look.at:%Y-%m-%dT%H:%M:%SZ}",
        "cluster": cluster,
        "changes": [object_of(change) for change in look.changes],
    }
