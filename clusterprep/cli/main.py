"""The command line: every command with its options, and how it is run and shown.

click is used and not typer, and libraries are imported where they are needed: `--help` takes 0.06 s
and `check --local` 0.6 s, which counts in a Slurm prolog. The price: imports inside functions,
which a rule of ruff would forbid.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from clusterprep import __version__
from clusterprep.cli import completion, everyday, options
from clusterprep.cli.certificate import certificate
from clusterprep.cli.exit import ending, run_supervised
from clusterprep.cli.exit_codes import OK
from clusterprep.cli.history import compare, history, report
from clusterprep.cli.init.command import init
from clusterprep.cli.inventory_argument import DEFAULT, InventoryCommand, load_given
from clusterprep.cli.mcp.command import mcp
from clusterprep.cli.output import print_result, say, say_line, shown_text
from clusterprep.errors import InputError, Problem
from clusterprep.runtime import cycles
from clusterprep.runtime.signals import SignalPipe

if TYPE_CHECKING:
    from clusterprep.cli.commands.bundle import BundleRequest
    from clusterprep.cli.commands.session import Invocation
    from clusterprep.jobs.diagnose.model import Diagnosis
    from clusterprep.model import Inventory, Report
    from clusterprep.model.extensions import Broken, Extensions

QUIET = {"quiet": True, "no_color": True}  # a watch shows no progress: it has no end


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(__version__, prog_name="clusterprep")
@click.pass_context
def cli(context: click.Context) -> None:
    """Find and remove what would break a multi-GPU job, before the job starts.

    Logs in to every node over SSH, checks it, writes one uniform NCCL environment on all nodes
    or on none, runs a cross-node all-reduce and names the node, link or rank at fault.
    """
    # click calls a missing command an error, and how it shows the help then depends on its release.
    if context.invoked_subcommand is None:
        raise SystemExit(print_result((context.get_help(), "\n"), OK))


@cli.command(cls=InventoryCommand)
@options.inventory
@options.fleet
@options.selecting
@options.reporting
@options.playbook
@options.ranks
@click.option("--dry-run", is_flag=True, help="Plan only; the same as `clusterprep plan`.")
@click.option("--diff", is_flag=True, help="Show the whole difference.")
@click.option("--ask", is_flag=True, help="Confirm before writing.")
@click.option("--no-verify", is_flag=True, help="Skip the all-reduce.")
@click.option("--partial", is_flag=True, help="Continue without unreachable or unknown nodes.")
@click.option("--on-busy", is_flag=True, help="Verify even if GPUs are in use.")
@options.rollout
@options.retry
@click.option(
    "--detailed-exitcode", is_flag=True, help="With --dry-run: 5 when changes are pending."
)
def apply(**params: Any) -> None:
    """Check, write on all nodes or on none, check again, verify."""
    options.refuse_rollout(params)
    command = "plan" if params.get("dry_run") else "apply"
    _run(command, params)


@cli.command(cls=InventoryCommand)
@options.inventory
@options.fleet
@options.selecting
@options.reporting
@options.playbook
@options.ranks
@click.option("--diff", is_flag=True, help="Show the whole difference.")
@click.option("--partial", is_flag=True, help="Continue without unreachable or unknown nodes.")
@click.option("--detailed-exitcode", is_flag=True, help="5 when changes are pending.")
def plan(**params: Any) -> None:
    """What apply would change, as a difference; writes nothing."""
    _run("plan", params)


@cli.command(cls=InventoryCommand)
@options.optional_inventory
@click.option("--local", is_flag=True, help="This machine, without an inventory and without SSH.")
@options.fleet
@options.selecting
@options.prolog
@options.stress
@options.against
@options.retry
@options.choosing
@options.reporting
def check(**params: Any) -> None:
    """Check every node; writes nothing there, or with --store the findings that --budget reads."""
    options.refuse_mix(params)
    has_inventory = params["inventory"] is not None
    if params["local"] == has_inventory:
        raise click.UsageError("give either INVENTORY or --local, not both")
    _run("check", params)


@cli.command(cls=InventoryCommand)
@options.inventory
@options.fleet
@options.retry
@options.choosing
@options.reporting
@options.ranks
@click.option("--strict", is_flag=True, help="A failed or unknown warning counts too.")
@click.option("--on-busy", is_flag=True, help="Verify even if GPUs are in use.")
@click.option(
    "--try-workarounds",
    is_flag=True,
    help="When it fails: which settings would help, and their cost.",
)
@click.option(
    "--incident-sizes",
    is_flag=True,
    help="Also try 1 GiB per rank: jobs are known to hang at this size.",
)
@click.option(
    "--baseline",
    is_flag=True,
    help="Record the speeds of this run as what is normal here.",
)
@options.accepting
def verify(**params: Any) -> None:
    """All-reduce over all ranks; names the culprit when it fails or hangs."""
    options.refuse_certificate(params)
    _run("verify", params)


@cli.command(cls=InventoryCommand)
@options.inventory
@options.fleet
@options.reporting
@click.option(
    "--target",
    metavar="T",
    help="Print this file: profile.d, nccl.conf, env-file, slurm-task-prolog.",
)
@click.option("--node", metavar="N", help="Of this node; a file by default of the first.")
@click.option("--from-run", metavar="ID", help="As that apply had it; no node is asked.")
def env(**params: Any) -> None:
    """The NCCL environment that apply would write, each value with its reason."""
    _run("env", params)


@cli.command(cls=InventoryCommand)
@options.inventory
@options.fleet
@options.selecting
@options.reporting
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--diff", is_flag=True, help="Show the whole difference.")
@click.option("--partial", is_flag=True, help="Continue without unreachable nodes.")
def fix(**params: Any) -> None:
    """Do what cures the findings: show it, ask, do it, check again."""
    asks = not (params["yes"] or params["dry_run"])
    if asks and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask at; --yes does it without asking")
    _run("fix", {**params, "ask": asks, "no_verify": True})


@cli.command(cls=InventoryCommand)
@options.inventory
@options.fleet
@options.reporting
@click.option(
    "--run",
    "undo",
    metavar="ID",
    shell_complete=completion.runs,
    help="Undo this run; default: the last that changed something.",
)
@click.option(
    "--force", is_flag=True, help="Even if files were edited since; moves damaged records aside."
)
@click.option("--partial", is_flag=True, help="Continue without unreachable nodes.")
def rollback(**params: Any) -> None:
    """Restore, byte for byte, the files that an apply replaced."""
    _run("rollback", params)


@cli.command(cls=InventoryCommand)
@options.inventory
@options.fleet
@options.selecting
@options.watching
def watch(**params: Any) -> None:
    """Look again and again with the cheap checks, and tell only what changes, until Ctrl-C."""
    _watch(params)


@cli.command(cls=InventoryCommand)
@options.inventory
@options.launching
@options.fleet
@options.retry
@options.reporting
@options.ranks
def launch(**params: Any) -> None:
    """Run a command on all nodes with ranks assigned, interactively."""
    _run("launch", params)


@cli.command(cls=InventoryCommand)
@options.inventory
@options.bisecting
@options.connections
@options.reporting
@options.ranks
def bisect(**params: Any) -> None:
    """Find the nodes with which a command fails, hangs or is slow.

    It is started as launch starts it, on all nodes and then on some of them, until the nodes or
    pairs at fault are known. To find slow nodes, give a command that ends after some steps.
    """
    _run("bisect", params)


@cli.command(cls=InventoryCommand)
@options.inventory
@options.reporting
def validate(**params: Any) -> None:
    """Check the inventory file alone, without the network."""
    _run("validate", params)


@cli.command()
@click.argument(
    "source", metavar="FILE|-", type=options.Content("rb"), shell_complete=completion.files
)
@options.readers
@options.naming
@options.reporting
def lint(source: tuple[str, bytes], **params: Any) -> None:
    """Judge an environment file or nccl.conf, without an inventory."""
    from datetime import datetime, timezone

    from clusterprep.cli.arguments import named_checks
    from clusterprep.cli.commands import lint as linting

    _check_formats(params)
    checks = named_checks(linting.CHECKS, params)
    name, content = source
    report = linting.lint(
        name,
        content,
        datetime.now(timezone.utc),
        dialect=params["dialect"],
        nccl=params["nccl"],
        torch=params["torch"],
        strict=params["strict"],
    )
    _finish(linting.limited_to(report, checks), params)


@cli.command()
@click.argument("logs", nargs=-1, metavar="LOG…|-", shell_complete=completion.files)
@click.option(
    "--live",
    metavar="INVENTORY",
    help="Instead of logs: why a job that runs on these nodes now does not go on.",
)
@click.option(
    "--inventory",
    metavar="I",
    shell_complete=completion.files,
    help="Name the nodes of ranks, and run the related checks on them now.",
)
@click.option(
    "--redact", is_flag=True, help="Replace names, addresses, paths and users, to post the report."
)
@options.fleet
@options.diagnosing
def diagnose(logs: tuple[str, ...], redact: bool, live: str | None, **params: Any) -> None:
    """Explain failure logs of NCCL and torch.distributed, or with --live a job that hangs now."""
    if bool(logs) == (live is not None):
        raise click.UsageError("give either LOGs or --live INVENTORY")
    if live is not None:
        options.refuse_with_live(params, redact)
        _diagnose_live({**params, "inventory": live})
    options.refuse_fleet_without_inventory(params)
    from clusterprep.cli.terminal import show
    from clusterprep.jobs.diagnose import command as diagnose_command
    from clusterprep.reports import diagnosis as pages
    from clusterprep.reports import select_format

    _check_formats(params)
    pages.check_formats(params["fmt"], *map(select_format, params["output"]))
    diagnosis, hosts = diagnose_command.diagnose(logs)
    if params["inventory"]:
        diagnosis = _with_nodes(diagnosis, params)
    if redact:
        diagnosis = diagnose_command.without_names(diagnosis, hosts)
    if params["fmt"] == "json":
        for notice in diagnosis.notices:
            say(f"clusterprep: {notice}")

    def render(fmt: str, **page: Any) -> list[str]:
        return [pages.render(diagnosis, fmt, **page)]

    show(params, diagnosis.code, render)


@cli.command()
@click.argument(
    "topic",
    metavar="CHECK|VARIABLE|CAUSE",
    required=False,
    shell_complete=completion.topics,
)
@click.option("--list", "listed", is_flag=True, help="All names there are pages for.")
@click.option(
    "--run",
    metavar="RUN",
    shell_complete=completion.runs,
    help="What CHECK found in an earlier run: its name, or `last`.",
)
@options.site
@options.reporting
def explain(
    topic: str | None, listed: bool, run: str | None, inventory: str | None, **params: Any
) -> None:
    """What a check, a variable or a cause means, why it matters, how to fix it."""
    if listed == (topic is not None):
        raise click.UsageError("give either a CHECK, VARIABLE or CAUSE, or --list")
    _check_formats(params)
    if run is not None:
        if topic is None:
            raise click.UsageError("--run shows what one CHECK found; leave --list out")
        from clusterprep.cli.history import show_findings

        show_findings(run, topic, params)
    from clusterprep.cli.commands import explain as pages
    from clusterprep.cli.terminal import show

    pages.check_formats(params["fmt"], params["output"])
    extensions = _site_extensions(inventory)

    def render(fmt: str, **page: Any) -> list[str]:
        return [pages.render(topic, extensions, fmt, page["verbose"])]

    render(params["fmt"], verbose=0)  # a wrong name is refused before a file is written
    show(params, OK, render)


@cli.command(cls=InventoryCommand)
@click.argument("inventory", metavar="INVENTORY|RUN", shell_complete=completion.files_or_runs)
@click.option(
    "--redact",
    is_flag=True,
    help="Replace names, addresses, paths, users and serial numbers, to hand it to others.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    metavar="FILE",
    shell_complete=completion.files,
    help="With the end of this log of a job; repeats.",
)
@options.fleet
@options.bundling
def bundle(**params: Any) -> None:
    """One archive of evidence, to hand over: of nodes as they are now, or of an earlier run.

    Opens with tar and a browser. Each node is checked and asked for its logs, GPUs, network
    cards and versions; nothing is left there.
    """
    from clusterprep.cli.commands import bundle as bundling

    params["output"] = ()  # of reports; the archive is no such file
    _check_formats(params)
    options.refuse_empty(params)
    request = bundling.request_of(params)
    if bundling.names_inventory(request.source):
        _finish(_bundle_of_nodes(params, request), params)
    options.refuse_fleet_for_run(params)
    _finish(_bundle_of_run(request), params)


@cli.command()
@options.site
@options.naming
@options.reporting
def selftest(inventory: str | None, **params: Any) -> None:
    """Show that every check fires on its fault, on recorded machines."""
    from clusterprep.cli.arguments import named_checks
    from clusterprep.cli.commands import selftest as proving
    from clusterprep.survey import registry

    _check_formats(params)
    extensions = _site_extensions(inventory)
    known = registry.extended(extensions).checks
    chosen = {name: known[name] for name in named_checks(known, params)}
    _finish(proving.selftest(chosen, extensions), params)


for _command in (init, history, compare, report, certificate, mcp, *everyday.commands):
    cli.add_command(_command)


# ---------------------------------------------------------------- running one command


def _run(command: str, params: dict[str, Any]) -> None:
    """Load the inventory, run a command, report and exit. `params` are the options of click."""
    from clusterprep.runtime.budget import budget_of
    from clusterprep.runtime.deadline import Deadline

    _check_formats(params)
    options.refuse_empty(params)
    budget = budget_of(options.seconds(params.get("budget"), "--budget"))
    timeout = options.seconds(params.get("timeout"))
    with Deadline.of(timeout, budget) as deadline:
        inventory = _load_inventory(params)
        if command == "validate":
            _finish(_validation_report(inventory), params)
        from clusterprep.cli.commands import record
        from clusterprep.cli.commands.opening import failure_noted, opened
        from clusterprep.cli.terminal import attendance

        opening = opened(
            command,
            params,
            inventory,
            attendance(params),
            deadline,
            budget,
        )
        with opening as invocation, failure_noted(invocation):
            cycles.expect_nodes()
            report = _dispatch(invocation, params)
    _finish(record.recorded(invocation, report), params)


def _with_nodes(diagnosis: Diagnosis, params: dict[str, Any]) -> Diagnosis:
    """Return the diagnosis with the nodes of its ranks, and the related checks' results of now."""
    from clusterprep.cli.commands import check
    from clusterprep.cli.commands.opening import opened
    from clusterprep.cli.terminal import attendance
    from clusterprep.jobs.diagnose import command as diagnose_command
    from clusterprep.runtime.deadline import Deadline

    inventory = _load_inventory(params)
    diagnosis = diagnose_command.with_nodes(diagnosis, inventory)
    names = diagnose_command.checks_of(diagnosis)
    if not names:
        return diagnosis
    only_these = {
        **params,
        "only": ",".join(names),
    }
    with Deadline.of(options.seconds(params["timeout"]), None) as deadline:
        opening = opened(
            "check",
            only_these,
            inventory,
            attendance(params),
            deadline,
        )
        with opening as invocation:
            report = check.run(invocation)
    lost = [node.node for node in report.nodes or () if not node.reached]
    return diagnose_command.with_live_checks(diagnosis, report.findings or (), lost)


def _diagnose_live(params: dict[str, Any]) -> NoReturn:
    """Look at the jobs that run now, show what was found and exit."""
    from clusterprep.cli.commands.opening import opened
    from clusterprep.cli.exit_codes import live_code
    from clusterprep.cli.terminal import attendance, show
    from clusterprep.jobs.live import command as live_command
    from clusterprep.reports import diagnosis as pages
    from clusterprep.reports import live_job, select_format
    from clusterprep.runtime.deadline import Deadline

    _check_formats(params)
    options.refuse_empty(params)
    pages.check_formats(params["fmt"], *map(select_format, params["output"]))
    with Deadline.of(options.seconds(params["timeout"]), None) as deadline:
        inventory = _load_inventory(params)
        opening = opened(
            "check",
            params,
            inventory,
            attendance(params),
            deadline,
        )
        with opening as invocation, invocation.fanout() as fanout:
            found = live_command.diagnose(fanout)

    def render(fmt: str, **page: Any) -> list[str]:
        return [live_job.render(found, fmt, **page)]

    show(params, live_code(found.state), render)


def _watch(params: dict[str, Any]) -> NoReturn:
    """Watch the nodes of an inventory until a signal, --timeout or the end of its job ends it."""
    from clusterprep.cli import watching
    from clusterprep.cli.commands import watch as watch_command
    from clusterprep.cli.commands.opening import opened
    from clusterprep.cli.terminal import attendance
    from clusterprep.runtime.deadline import Deadline
    from clusterprep.survey.watch.schedule import clipped_logins

    options.refuse_empty(params)
    every = watching.interval(params["every"])
    channels = watching.channels(params)
    with Deadline.of(options.seconds(params["timeout"]), None) as deadline:
        inventory = clipped_logins(_load_inventory(params), every)
        quiet = {**params, **QUIET}
        opening = opened(
            "watch",
            quiet,
            inventory,
            attendance(quiet),
            deadline,
        )
        with opening as invocation:
            cycles.expect_nodes()
            target = watching.target(params, invocation.inventory)
            plan = watch_command.plan_watch(invocation, with_log=target is not None)
            with watching.Telling(channels, invocation, every, len(plan.checks)) as telling:
                watch_command.run(invocation, every, plan, telling.tell, target)
    raise SystemExit(OK)


def _bundle_of_nodes(params: dict[str, Any], request: BundleRequest) -> Report:
    """Write the bundle of the nodes of an inventory and return the report about it."""
    from clusterprep.cli.commands import bundle as bundling
    from clusterprep.cli.commands.opening import opened
    from clusterprep.cli.terminal import attendance
    from clusterprep.runtime.deadline import Deadline

    with Deadline.of(options.seconds(params["timeout"]), None) as deadline:
        opening = opened(
            "check",
            params,
            _load_inventory(params),
            attendance(params),
            deadline,
            cores=1,
        )
        with opening as invocation:
            gathered = bundling.gather(request, invocation)
    # What has come by the end of --timeout is written all the same.
    return bundling.of_nodes(request, gathered)


def _bundle_of_run(request: BundleRequest) -> Report:
    """Write the bundle of an earlier run and return the report about it. Raises InputError."""
    from clusterprep.cli.commands import bundle as bundling
    from clusterprep.history import state_folder
    from clusterprep.history.database import Unusable
    from clusterprep.history.runs import Runs

    try:
        return bundling.of_run(request, Runs(state_folder()))
    except Unusable as error:
        raise InputError.of(str(error)) from None


def _dispatch(invocation: Invocation, params: dict[str, Any]) -> Report:
    """Run the command. Each imports only its own module."""
    from clusterprep.reports import preload_format

    preload_format(params["fmt"])
    command = invocation.settings.command
    if command == "check":
        from clusterprep.cli.commands import check

        return check.run(invocation)
    if command == "env":
        return _environment(invocation, params)
    if command == "verify":
        from clusterprep.cli.commands import verify

        return verify.run(invocation)
    if command == "launch":
        return _launch(invocation, params)
    if command == "bisect":
        return _bisect(invocation, params)
    return _dispatch_writing(invocation, params)


def _dispatch_writing(invocation: Invocation, params: dict[str, Any]) -> Report:
    """Run a command that changes nodes, or says what one would change."""
    command = invocation.settings.command
    if command == "plan":
        from clusterprep.cli.commands import plan

        return plan.run(invocation)
    if command == "apply":
        from clusterprep.cli.commands import apply

        return apply.run(invocation)
    if command == "fix":
        from clusterprep.cli.commands import fix

        return fix.run(invocation, dry=params["dry_run"])
    from clusterprep.cli.commands import rollback

    return rollback.run(invocation)


def _environment(invocation: Invocation, params: dict[str, Any]) -> Report:
    """Return the environment as a report. With --target, print that file and exit."""
    from clusterprep.cli.commands import env
    from clusterprep.cli.commands import explain as pages

    inventory, target, node = invocation.inventory, params["target"], params["node"]
    pages.check_choice(inventory, target, node)
    if params["from_run"]:
        report, environment = env.recall(invocation, params["from_run"])
    else:
        report, environment = env.run(invocation)
    if target:
        text = shown_text(pages.target_text(inventory, environment, target, node))
        raise SystemExit(print_result((text,), report.code))
    return pages.limited_to_node(report, node) if node else report


def _launch(invocation: Invocation, params: dict[str, Any]) -> Report:
    """Return the launch as a report. With --print, print its text and exit."""
    from clusterprep.cli import arguments
    from clusterprep.cli.commands import launch

    request = arguments.launch_request(params)
    if params["form"]:
        code, text = launch.print_launch(invocation, request, params["form"])
        for notice in invocation.notices:
            say(f"clusterprep: {notice}")
        raise SystemExit(print_result((shown_text(text),), code))
    screen = arguments.launch_screen(params, invocation.run, say_line)
    return launch.run(invocation, request, screen)


def _bisect(invocation: Invocation, params: dict[str, Any]) -> Report:
    from clusterprep.cli import arguments
    from clusterprep.cli.commands import bisect

    request = arguments.process_request(params)
    limits = arguments.bisect_limits(params)
    chosen = bisect.Choice(limits, params["min_nodes"], params["resume"])
    return bisect.run(invocation, request, params["command"], chosen, say_line)


def _check_formats(params: dict[str, Any]) -> None:
    """Raise InputError for an unknown format or a file that cannot be written."""
    from clusterprep.reports.files import check, check_folder

    check(params["fmt"], params["output"])
    if params.get("write_lists") is not None:
        check_folder(params["write_lists"], "--write-lists")


def _load_inventory(params: dict[str, Any]) -> Inventory:
    if params.get("local"):
        from clusterprep.inventory.local import local_inventory

        return local_inventory()
    return load_given(params)


def _site_extensions(given: str | None) -> Extensions:
    """Return what the site of an inventory adds, by default that of ./inventory.yaml.

    Raises InputError for an inventory that was given. One that was not is left out if it cannot be
    used, or if another user could have put it there: an inventory may be a program. Both is said.
    """
    from pathlib import Path

    from clusterprep.inventory.extensions import installed_extensions
    from clusterprep.inventory.load import load_inventory
    from clusterprep.inventory.site.trust import Distrusted, trusted_file

    if given is not None:
        return load_inventory(given).extensions
    path = Path(DEFAULT)
    if not path.is_file():
        return installed_extensions()
    try:
        trusted_file(path)
        extensions = load_inventory(path).extensions
    except (InputError, Distrusted, OSError) as error:
        say(f"clusterprep: without the checks of ./{path}: {error}")
        return installed_extensions()
    if extensions:
        say(f"clusterprep: with the checks of ./{path}")
    return extensions


# ---------------------------------------------------------------- showing


def _validation_report(inventory: Inventory) -> Report:
    from clusterprep.cli.commands.report import new_report
    from clusterprep.cli.exit_codes import OK
    from clusterprep.model.units import pluralize

    problems = [_problem_of(broken) for broken in inventory.extensions.broken]
    if problems:
        raise InputError(tuple(problems))
    notice = f"{inventory.path} is valid: {pluralize(len(inventory.nodes), 'node')}"
    notices = (notice, *inventory.warnings)
    return new_report("validate", OK, cluster=inventory.cluster, notices=notices)


def _problem_of(broken: Broken) -> Problem:
    """Return what is wrong with a file of the site as a mistake of the input."""
    file, _, line = broken.place.rpartition(":")
    if line.isdigit():
        return Problem(broken.why, file, int(line))
    return Problem(broken.why, broken.place)


def _finish(report: Report, params: dict[str, Any]) -> NoReturn:
    """Print the report, write the files of --output and exit with the code of the report."""
    from clusterprep.cli.terminal import show
    from clusterprep.reports import exit_code, pieces

    def render(fmt: str, **page: Any) -> Iterable[str]:
        return pieces(report, fmt, **page)

    show(params, exit_code(report, params["fmt"]), render)


# ---------------------------------------------------------------- exiting


def run(arguments: Sequence[str]) -> int:
    """Run the command line in this thread and return its exit code."""
    cycles.expect_modules()
    commands = [argument for argument in arguments if argument in cli.commands]
    command = commands[0] if commands else "clusterprep"

    def invoke() -> None:
        cli.main(args=list(arguments), prog_name="clusterprep", standalone_mode=False)

    return ending(invoke, arguments, command)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    run_supervised(SignalPipe(), arguments, lambda: run(arguments))
