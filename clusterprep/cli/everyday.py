"""The commands for daily work: `exec`, `copy` and `fetch`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from clusterprep.cli import completion, options
from clusterprep.cli.inventory_argument import InventoryCommand, load_given
from clusterprep.errors import InputError

if TYPE_CHECKING:
    from clusterprep.cli.commands.everyday import Errand
    from clusterprep.fabric.fleet import Fleet
    from clusterprep.model import Report


class _CommandForNodes(InventoryCommand):
    """A command whose last words are for the nodes, and may look like options of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words. Raises UsageError that says where the nodes' own options go."""
        has_separator = "--" in args
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if has_separator:
                raise
            hint = "options of the command for the nodes go behind --"
            raise click.UsageError(f"{error.format_message()} ({hint})", ctx) from None


@click.command("exec", cls=_CommandForNodes)
@options.inventory
@click.argument("command", nargs=-1, metavar="-- CMD…", type=click.UNPROCESSED)
@click.option(
    "--script", metavar="FILE", help="Run this file of yours there, by its first line, or by sh."
)
@click.option("--task", metavar="FABFILE:NAME", help="Call this Fabric task with each node.")
@click.option("--compare", is_flag=True, help="Show how others differ from the most frequent.")
@click.option("--stream", is_flag=True, help="Show lines as they come, with their nodes.")
@options.fleet
@options.reporting
def exec_(**params: Any) -> None:
    """Run a command on all nodes at once, and show equal outputs once.

    The command is started as it stands here; for pipes and variables write a shell:
    exec INVENTORY -- sh -c 'dmesg | tail -3'
    """
    given = [bool(params["command"]), params["script"] is not None, params["task"] is not None]
    if sum(given) != 1:
        raise click.UsageError("give one of: -- CMD…, --script FILE, --task FABFILE:NAME")
    if params["task"] is not None and params["stream"]:
        raise click.UsageError("--stream is for commands; a task prints by itself")
    _run("exec", params)


@click.command(cls=InventoryCommand)
@options.inventory
@click.argument("source", metavar="SRC", shell_complete=completion.files)
@click.argument("destination", metavar="DEST")
@click.option("--mode", metavar="MODE", help="Such as 0644; default: as the file has it here.")
@click.option("--owner", metavar="USER[:GROUP]", help="Default: as the file there, else the user.")
@options.fleet
@options.reporting
def copy(**params: Any) -> None:
    """Copy a file to all nodes. Nodes that have it already are sent nothing.

    DEST begins with /, and names a folder if it ends with /. The file is replaced at once: readers
    see the old one or the new one.
    """
    _run("copy", params)


@click.command(cls=InventoryCommand)
@options.inventory
@click.argument("source", metavar="SRC")
@click.argument("folder", metavar="DIR", shell_complete=completion.folders)
@options.fleet
@options.reporting
def fetch(**params: Any) -> None:
    """Fetch a file, or those of a pattern, from all nodes into DIR/NODE/.

    `{node}` in DIR is the name of the node: logs/{node}/today. Files that are here already are not
    sent again.
    """
    _run("fetch", params)


commands = (exec_, copy, fetch)


# ---------------------------------------------------------------- running one command


def _run(command: str, params: dict[str, Any]) -> None:
    """Load the inventory, run the command, report and exit."""
    from clusterprep.cli.terminal import progress
    from clusterprep.reports.files import check
    from clusterprep.runtime.deadline import Deadline

    check(params["fmt"], params["output"])
    options.refuse_empty(params)
    work = _work(command, params)
    with Deadline.of(options.seconds(params["timeout"]), None) as deadline:
        watch = progress(params)
        try:
            report = work(_errand(command, params, deadline, watch))
        finally:
            watch.close()
    _finish(report, params)


def _work(command: str, params: dict[str, Any]) -> Callable[[Errand], Report]:
    """Return the command as a function, once its own options are known to be right."""
    from clusterprep.cli.commands import everyday
    from clusterprep.cli.output import say_line

    if command == "copy":
        request = everyday.copy_request(
            params["source"], params["destination"], params["mode"], params["owner"]
        )
        return lambda errand: everyday.copy(errand, request)
    if command == "fetch":
        return lambda errand: everyday.fetch(errand, params["source"], params["folder"])
    if params["task"] is not None:
        return lambda errand: everyday.run_task(errand, params["task"], say_line)
    program = everyday.program_of(params["command"], params["script"])

    def run(errand: Errand) -> Report:
        hear = _screen(params, errand.fleet) if params["stream"] else None
        return everyday.run_program(errand, program, hear)

    return run


def _errand(command: str, params: dict[str, Any], deadline: Any, watch: Any) -> Errand:
    from datetime import datetime, timezone

    from clusterprep.cli.commands.everyday import Errand
    from clusterprep.cli.terminal import passphrases, password
    from clusterprep.fabric.fleet import Fleet
    from clusterprep.inventory.limit import limit_to
    from clusterprep.remote.transports import transports_for

    inventory = load_given(params)
    if params["limit"]:
        inventory = limit_to(inventory, params["limit"])
    _refuse_transports(command, params, inventory.nodes)
    fleet = Fleet(
        nodes=inventory.nodes,
        transports=transports_for(inventory, passphrases()),
        password=password(params, inventory.nodes),
        forks=params["forks"],
        watch=watch,
        deadline=deadline,
    )
    return Errand(command, inventory, fleet, datetime.now(timezone.utc))


def _refuse_transports(command: str, params: dict[str, Any], nodes: Iterable[Any]) -> None:
    """Raise InputError where Fabric is needed and a node is not reached over SSH."""
    from clusterprep.model.nodeset import fold

    if command == "exec" and params["task"] is None:
        return
    others = [node.name for node in nodes if node.transport != "ssh"]
    if others:
        what = "--task" if command == "exec" else command
        raise InputError.of(
            f"{fold(others)}: {what} needs SSH to the nodes",
            key="transport",
            hint="--limit to others, or exec -- CMD…",
        )


def _screen(params: dict[str, Any], fleet: Fleet) -> Callable[[str, str, str], None]:
    """Return what shows lines of nodes as they come: on stdout, unless a report goes there."""
    from clusterprep.cli.output import print_line, say_line
    from clusterprep.fabric.printed import Screen, unchanged

    show = print_line if params["fmt"] == "console" else say_line
    secret = fleet.password(fleet.nodes[0])  # one password is for all nodes
    return Screen(show, unchanged if secret is None else secret.filter.line).hear


def _finish(report: Report, params: dict[str, Any]) -> NoReturn:
    from clusterprep.cli.commands.everyday import with_differences
    from clusterprep.cli.terminal import show
    from clusterprep.reports import exit_code, pieces

    def render(fmt: str, **page: Any) -> Iterable[str]:
        # Programs get each output whole.
        is_compared = params.get("compare") and fmt == "console"
        return pieces(with_differences(report) if is_compared else report, fmt, **page)

    show(params, exit_code(report, params["fmt"]), render)
