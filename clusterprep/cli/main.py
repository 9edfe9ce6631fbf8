"""The command line: the only module that reads options, prints, asks and exits."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from clusterprep import __version__
from clusterprep.cli import options
from clusterprep.cli.exit import ending, leave
from clusterprep.cli.history import compare, history, report
from clusterprep.cli.init.command import init
from clusterprep.errors import ClusterprepError

if TYPE_CHECKING:
    from clusterprep.cli.commands.session import Invocation
    from clusterprep.jobs.diagnose.model import Diagnosis
    from clusterprep.model import Inventory, Report

# Nearly all that is made here stays: looking for cycles in it as often as usual was a fifth of a large check.
CYCLES = (50_000, 20, 50)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="clusterprep")
def cli() -> None:
    """Find and remove what would break a multi-GPU job, before the job starts.

    Logs in to every node over SSH, checks it, writes one uniform NCCL environment on all nodes or on none, runs a
    cross-node all-reduce and names the node, link or rank at fault.
    """


@cli.command()
@options.inventory
@options.fleet
@options.selecting
@options.reporting
@options.playbook
@options.ranks
@click.option("--dry-run", is_flag=True, help="Plan only; the same as `clusterprep plan`.")
@click.option("--diff", is_flag=True, help="Show the whole difference.")
@click.option("--ask", is_flag=True, help="Confirm before writing.")
@click.option("--no-verify", is_flag=True, help="Without the all-reduce.")
@click.option("--partial", is_flag=True, help="Go on without unreachable nodes.")
@click.option("--on-busy", is_flag=True, help="Verify although GPUs are in use.")
@click.option("--retry-failed", metavar="RUN", help="Only what failed in that run.")
@click.option(
    "--detailed-exitcode", is_flag=True, help="With --dry-run: 5 when changes are pending."
)
def apply(**words: Any) -> None:
    """Check, write on all nodes or on none, check again, verify."""
    _run("plan" if words.get("dry_run") else "apply", words)


@cli.command()
@options.inventory
@options.fleet
@options.selecting
@options.reporting
@options.playbook
@options.ranks
@click.option("--diff", is_flag=True, help="Show the whole difference.")
@click.option("--partial", is_flag=True, help="Go on without unreachable nodes.")
@click.option("--detailed-exitcode", is_flag=True, help="5 when changes are pending.")
def plan(**words: Any) -> None:
    """What apply would change, as a difference; writes nothing."""
    _run("plan", words)


@cli.command()
@click.argument("inventory", metavar="INVENTORY", required=False)
@click.option("--local", is_flag=True, help="This machine, without an inventory and without SSH.")
@options.fleet
@options.selecting
@options.prolog
@options.reporting
def check(**words: Any) -> None:
    """Look at every node and judge; writes nothing, but with --store what --budget reads."""
    options.refuse_mix(words)
    if bool(words["local"]) == (words["inventory"] is not None):
        raise click.UsageError("give an INVENTORY or --local")
    _run("check", words)


@cli.command()
@options.inventory
@options.fleet
@options.reporting
@options.ranks
@click.option("--strict", is_flag=True, help="A failed or unknown warning counts too.")
@click.option("--on-busy", is_flag=True, help="Verify although GPUs are in use.")
@click.option(
    "--try-workarounds",
    is_flag=True,
    help="When it fails: which settings would help, and their cost.",
)
@click.option(
    "--incident-sizes",
    is_flag=True,
    help="Also a gigabyte per rank, as in jobs that are known to have hung.",
)
def verify(**words: Any) -> None:
    """All-reduce over all ranks; names the culprit when it fails or hangs."""
    _run("verify", words)


@cli.command()
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
def env(**words: Any) -> None:
    """The NCCL environment that apply would write, each value with its reason."""
    _run("env", words)


@cli.command()
@options.inventory
@options.fleet
@options.reporting
@click.option(
    "--run", "undo", metavar="ID", help="Undo this run; default: the last that changed something."
)
@click.option("--force", is_flag=True, help="Although the files were edited since.")
@click.option("--partial", is_flag=True, help="Go on without unreachable nodes.")
def rollback(**words: Any) -> None:
    """Put back, byte for byte, what an apply replaced."""
    _run("rollback", words)


@cli.command()
@options.inventory
@options.launching
@options.fleet
@options.reporting
@options.ranks
def launch(**words: Any) -> None:
    """The same command on every node with ranks assigned, for runs that one sits beside."""
    _run("launch", words)


@cli.command()
@options.inventory
@options.reporting
def validate(**words: Any) -> None:
    """Check the inventory file alone, without the network."""
    _run("validate", words)


@cli.command()
@click.argument("source", metavar="FILE|-", type=options.Content("rb"))
@options.readers
@options.reporting
def lint(source: tuple[str, bytes], **words: Any) -> None:
    """Judge an environment file or nccl.conf, without an inventory."""
    from datetime import datetime, timezone

    from clusterprep.cli.commands.lint import lint as judged

    _check_formats(words)
    given = {key: words[key] for key in ("dialect", "nccl", "torch", "strict")}
    _finish(judged(*source, datetime.now(timezone.utc), **given), words)


@cli.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG…|-")
@click.option(
    "--inventory",
    metavar="I",
    help="Name the nodes of ranks, and run the related checks on them now.",
)
@click.option(
    "--redact", is_flag=True, help="Replace names, addresses, paths and users, to post the report."
)
@options.reporting
def diagnose(logs: tuple[str, ...], redact: bool, **words: Any) -> None:
    """Explain failure logs of NCCL and torch.distributed."""
    from clusterprep.cli.terminal import show
    from clusterprep.jobs.diagnose import command as diagnosed
    from clusterprep.reports import diagnosis as shown
    from clusterprep.reports import select_format

    _check_formats(words)
    shown.check_formats(words["fmt"], *map(select_format, words["output"]))
    diagnosis, hosts = diagnosed.diagnose(logs)
    if words["inventory"]:
        diagnosis = _with_nodes(diagnosis, words)
    if redact:
        diagnosis = diagnosed.without_names(diagnosis, hosts)
    if words["fmt"] == "json":
        for notice in diagnosis.notices:
            click.echo(f"clusterprep: {notice}", err=True)
    show(words, diagnosis.code, lambda fmt, **page: [shown.render(diagnosis, fmt, **page)])


@cli.command()
@click.argument("topic", metavar="CHECK|VARIABLE|CAUSE")
def explain(topic: str) -> None:
    """What a check, a variable or a cause means, why it matters, how to fix it."""
    from clusterprep.cli.commands.explain import page

    click.echo(page(topic))


@cli.command()
@options.reporting
def selftest(**words: Any) -> None:
    """Show that every check fires on its fault, on recorded machines."""
    from clusterprep.cli.commands.selftest import selftest as prove

    _check_formats(words)
    _finish(prove(), words)


for _command in (init, history, compare, report):
    cli.add_command(_command)


# ---------------------------------------------------------------- running one command


def _run(command: str, words: dict[str, Any]) -> None:
    """Load, run, report, exit. `words` are the options as click gives them."""
    from clusterprep.runtime.budget import budget_of
    from clusterprep.runtime.deadline import Deadline

    _check_formats(words)
    budget = budget_of(options.seconds(words.get("budget"), "--budget"))
    with Deadline.of(options.seconds(words.get("timeout")), budget) as deadline:
        whole = _inventory(words)
        if command == "validate":
            _finish(_valid(whole), words)
        from clusterprep.cli.commands import record as recorded

        job = _job(command, words, whole, deadline, budget)
        try:
            report = _dispatch(job, words)
        except ClusterprepError as error:
            recorded.note_failure(job, error)
            raise
        finally:
            job.watch.close()  # type: ignore[attr-defined]
    _finish(recorded.recorded(job, report), words)


def _with_nodes(diagnosis: Diagnosis, words: dict[str, Any]) -> Diagnosis:
    """The nodes of ranks, and what the checks of the causes say now."""
    from clusterprep.cli.commands import flows as run
    from clusterprep.jobs.diagnose import command as diagnosed
    from clusterprep.runtime.deadline import Deadline

    inventory = _inventory(words)
    diagnosis = diagnosed.with_nodes(diagnosis, inventory)
    names = diagnosed.checks_of(diagnosis)
    if not names:
        return diagnosis
    with Deadline(None) as deadline:
        job = _job("check", {**words, "only": ",".join(names)}, inventory, deadline)
        try:
            report = run.check(job)
        finally:
            job.watch.close()  # type: ignore[attr-defined]
    lost = [node.node for node in report.nodes or () if not node.reached]
    return diagnosed.with_live_checks(diagnosis, report.findings or (), lost)


def _dispatch(job: Invocation, words: dict[str, Any]) -> Report:
    from clusterprep.cli.commands import flows as run
    from clusterprep.reports import preload_format

    preload_format(words["fmt"])
    if job.settings.command == "env":
        return _environment(job, words)
    if job.settings.command == "launch":
        return _launch(job, words)
    stages: dict[str, Callable[[Invocation], Report]] = {
        "check": run.check,
        "plan": run.plan_changes,
        "apply": run.apply,
        "verify": run.verify,
        "rollback": run.rollback,
    }
    return stages[job.settings.command](job)


def _environment(job: Invocation, words: dict[str, Any]) -> Report:
    """The environment as a report; with --target a file as it would be written, which ends the command."""
    from clusterprep.cli.commands import flows as run
    from clusterprep.cli.commands.explain import check_choice, of_node, target_text
    from clusterprep.history import recall as recalled

    check_choice(job.inventory, words["target"], words["node"])
    if words["from_run"]:
        report, environment = recalled.report_of(
            job.given, job.inventory, words["from_run"], job.started
        )
    else:
        report, environment = run.show_env(job)
    if words["target"]:
        click.echo(
            target_text(job.inventory, environment, words["target"], words["node"]), nl=False
        )
        raise SystemExit(report.code)
    return of_node(report, words["node"]) if words["node"] else report


def _launch(job: Invocation, words: dict[str, Any]) -> Report:
    """The launch as a report; with --print its text, which ends the command."""
    from clusterprep.cli import arguments as said
    from clusterprep.cli.commands import flows as run
    from clusterprep.cli.terminal import line_on_stderr

    wanted = said.wanted(words)
    if words["form"]:
        code, text = run.print_launch(job, wanted, words["form"])
        click.echo(text, nl=False)
        raise SystemExit(code)
    return run.launch(job, wanted, said.screen(words, job.run, line_on_stderr))


def _check_formats(words: dict[str, Any]) -> None:
    """Refuse a format that cannot be rendered, and a file that cannot be written, before anything is touched."""
    from clusterprep.reports.files import check

    check(words["fmt"], words["output"])


def _inventory(words: dict[str, Any]) -> Inventory:
    if words.get("local"):
        from clusterprep.inventory.local import local_inventory

        return local_inventory()
    from clusterprep.inventory.load import Overrides, load_inventory

    overrides = Overrides(
        become=words.get("become"),
        nproc_per_node=words.get("nproc_per_node"),
        master_port=words.get("master_port"),
    )
    return load_inventory(words["inventory"], overrides)


def _job(
    command: str, words: dict[str, Any], whole: Inventory, deadline: Any, budget: Any = None
) -> Invocation:
    from datetime import datetime, timezone

    from clusterprep.cli.arguments import chosen_steps, settings_of
    from clusterprep.cli.commands.session import Invocation, new_run_name
    from clusterprep.cli.terminal import confirm, passphrases, password, progress
    from clusterprep.history import state_folder
    from clusterprep.history.given import AppliedEnvironments
    from clusterprep.history.runs import Runs
    from clusterprep.inventory.demands import check_names
    from clusterprep.inventory.limit import limit_to, limit_to_failed
    from clusterprep.model.colocation import refuse_writing
    from clusterprep.remote.transports import transports_for

    if command in ("apply", "plan", "rollback"):
        refuse_writing(whole)
    now = datetime.now(timezone.utc)
    steps, selection = chosen_steps(words, whole)
    inventory = limit_to(whole, words["limit"]) if words.get("limit") else whole
    given, runs = AppliedEnvironments(state_folder()), Runs(state_folder())
    if run_failed := words.get("retry_failed"):
        from clusterprep.history.recall import failed_in

        inventory = limit_to_failed(
            inventory, failed_in(given, runs, whole.cluster, run_failed), run_failed
        )
    kept = {node.name for node in inventory.nodes}
    left_out = tuple(node.name for node in whole.nodes if node.name not in kept)
    return Invocation(
        settings=settings_of(command, words, selection, tuple(check_names()), left_out),
        inventory=inventory,
        steps=steps,
        transports=transports_for(inventory, passphrases()),
        password=password(words),
        watch=progress(words),
        deadline=deadline,
        confirm=confirm if words.get("ask") else lambda rows: True,
        given=given,
        runs=runs,
        run=new_run_name(now),
        started=now,
        budget=budget,
    )


# ---------------------------------------------------------------- showing


def _valid(inventory: Inventory) -> Report:
    from datetime import datetime, timezone

    from clusterprep.model import Report

    now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    notice = f"{inventory.path} is valid: {len(inventory.nodes)} nodes"
    notices = (notice, *inventory.warnings)
    return Report("validate", "", inventory.cluster, now, 0.0, "pass", 0, notices=notices)


def _finish(report: Report, words: dict[str, Any]) -> None:
    """Print the report, write the asked-for files, leave with its code."""
    from clusterprep.cli.terminal import show
    from clusterprep.reports import exit_code, pieces

    show(words, exit_code(report, words["fmt"]), lambda fmt, **page: pieces(report, fmt, **page))


# ---------------------------------------------------------------- ending


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Exits with a code of the contract."""
    gc.set_threshold(*CYCLES)
    words = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in words if word in cli.commands), "clusterprep")
    leave(
        ending(
            lambda: cli.main(args=words, prog_name="clusterprep", standalone_mode=False),
            words,
            command,
        )
    )
