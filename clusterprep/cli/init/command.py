"""The command `clusterprep init`: its options, the file it writes, and what it says."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterprep.cli import completion, options
from clusterprep.cli.output import print_result, say_line, shown_text
from clusterprep.errors import Refused

if TYPE_CHECKING:
    from clusterprep.cli.init.draft import Draft
    from clusterprep.cli.init.sources import LoginOptions, Source
    from clusterprep.model import Fleet, Node
    from clusterprep.runtime.deadline import Deadline

DEFAULT = "inventory.yaml"
SOURCE_OPTIONS = ("--from-ansible", "--from-slurm", "--from-ssh-config")


@click.command()
@click.argument("hosts", nargs=-1, metavar="[HOST|NAME=ADDRESS]…")
@click.option(
    "--from-ansible", metavar="FILE", help="The hosts of an Ansible inventory, INI or YAML."
)
@click.option("--from-slurm", is_flag=True, help="The nodes that `scontrol show nodes` lists here.")
@click.option(
    "--from-ssh-config",
    metavar="PATTERN",
    help="The hosts of ssh_config whose names fit, such as 'gpu*'.",
)
@click.option("--user", metavar="U", help="The user that logs in; default: ssh_config's.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of SSH; default: ssh_config's.")
@click.option("-i", "--identity-file", metavar="FILE", help="The key to log in with.")
@click.option("--ssh-config", "config", metavar="FILE", help="Instead of ~/.ssh/config.")
@click.option("--known-hosts", metavar="FILE", help="Instead of ~/.ssh/known_hosts.")
@click.option(
    "--connect-timeout",
    type=click.FloatRange(0.1, 600),
    metavar="S",
    help="For TCP and login together.",
)
@click.option(
    "--python", metavar="PATH", help="The job's interpreter on the nodes, in which torch is."
)
@click.option(
    "--job-user", metavar="U", help="The user that runs the job; default: the one that logs in."
)
@click.option(
    "--cluster",
    metavar="NAME",
    help="Name of the cluster; default: the common beginning of the nodes' names.",
)
@click.option(
    "--accept-new", is_flag=True, help="Learn host keys that are not known yet, after showing them."
)
@click.option(
    "--output",
    default=DEFAULT,
    show_default=True,
    metavar="FILE",
    shell_complete=completion.files,
    help="What to write; - is stdout.",
)
@click.option("--force", is_flag=True, help="Overwrite that file.")
@click.option(
    "--forks", default=64, show_default=True, type=click.IntRange(1, 4096), help="Hosts at once."
)
@click.option("--timeout", metavar="S", help="Limit of the whole command: 90, 2m.")
@click.option("-b", "--become/--no-become", default=None, help="sudo on the nodes.")
@click.option("-K", "--ask-become-pass", is_flag=True, help="Ask for sudo's password.")
@click.option(
    "--format",
    "fmt",
    type=click.Choice(["console", "json"]),
    default="console",
    help="On stdout: a sentence, or a report.",
)
@click.option("--no-color", is_flag=True, help="Do not use colours.")
def init(**params: Any) -> None:
    """Write a commented inventory by looking at the hosts."""
    from clusterprep.runtime.deadline import Deadline

    if params["fmt"] == "json" and params["output"] == "-":
        raise click.UsageError("--output - prints the inventory; with --format json name a file")
    _refuse_to_overwrite(params)
    with Deadline(options.seconds(params["timeout"])) as deadline:
        source = _source(params)
        fleet = _look(params, source, deadline)
    raise SystemExit(_write(params, source, fleet))


def _source(params: dict[str, Any]) -> Source:
    """Return the hosts with the login options. Raises UsageError unless one source is given.

    Only a source that is the only one is read.
    """
    from clusterprep.cli.init import sources

    collect: dict[str, Callable[[], Source]] = {}
    if params["hosts"]:
        collect["HOST"] = lambda: sources.from_hosts(params["hosts"])
    if params["from_ansible"]:
        collect["--from-ansible"] = lambda: sources.from_ansible(params["from_ansible"])
    if params["from_slurm"]:
        collect["--from-slurm"] = sources.from_slurm
    if params["from_ssh_config"]:
        path = params["config"] or "~/.ssh/config"
        collect["--from-ssh-config"] = lambda: sources.from_ssh_config(
            params["from_ssh_config"], path
        )
    if len(collect) != 1:
        choices = ", ".join(SOURCE_OPTIONS)
        seen = f"; seen {' and '.join(collect)}" if collect else ""
        raise click.UsageError(f"give HOST… or one of {choices}{seen}")
    (collect_hosts,) = collect.values()
    return _login_options(params).over(collect_hosts())


def _login_options(params: dict[str, Any]) -> LoginOptions:
    """Return the options of click that LoginOptions has a field for."""
    from clusterprep.cli.init.sources import LoginOptions

    values: dict[str, Any] = {}
    for name in LoginOptions.__struct_fields__:
        values[name] = params[name]
    return LoginOptions(**values)


def _look(params: dict[str, Any], source: Source, deadline: Deadline) -> Fleet:
    """Return the facts of the hosts, and tell the user which of them could not be looked at."""
    from clusterprep.cli.init.look import UNKNOWN_KEY, Looker
    from clusterprep.cli.terminal import passphrases, password, progress

    watch = progress(params)
    looker = Looker(
        params["forks"],
        password(params),
        watch,
        passphrases(),
        _say,
        deadline,
    )
    nodes = tuple(node for node in source.nodes if node.name not in source.passed_over)
    try:
        fleet = looker.look(nodes, params["accept_new"])
    finally:
        watch.close()
    for snapshot in fleet.snapshots.values():
        # The looker has told about unknown keys.
        if snapshot.reached or snapshot.reason == UNKNOWN_KEY:
            continue
        remedy = f"; {snapshot.remedy}" if snapshot.remedy else ""
        _say(f"{snapshot.node}: {snapshot.reason}: {snapshot.detail}{remedy}")
    for name, why in source.passed_over.items():
        _say(f"{name}: {why}")
    return fleet


def _say(text: str) -> None:
    say_line(f"clusterprep: {text}")


def _write(params: dict[str, Any], source: Source, fleet: Fleet) -> int:
    """Write the inventory of the reached hosts and return the exit code."""
    from clusterprep.cli.init.draft import draft
    from clusterprep.cli.init.yaml_text import document
    from clusterprep.inventory.schema import schema_line
    from clusterprep.model.units import pluralize

    code = _exit_code(source, fleet)
    if not fleet.reached:
        nothing = "no host could be looked at, so nothing is written"
        if params["fmt"] == "json":
            return print_result((_as_json(code, nothing, fleet),), code)
        _say(nothing)
        return code
    now = datetime.now(timezone.utc)
    hosts = pluralize(len(fleet.reached), "host")
    by = f"Written by `clusterprep init` on {now:%Y-%m-%d} from what it saw on {hosts}."
    made = draft(source, fleet, params["cluster"] or _cluster_name(fleet), by)
    told = _save(params, schema_line("inventory") + document(made.parts), made)
    if params["fmt"] == "json":
        told = _as_json(code, told.strip(), fleet, params["output"])
    return print_result((told,), code)


def _as_json(code: int, told: str, fleet: Fleet, inventory: str = "") -> str:
    """Return the report of an `init`: which hosts were looked at, and what was written."""
    from msgspec.structs import replace

    from clusterprep.cli.commands.report import new_report
    from clusterprep.reports import render

    nodes = tuple(replace(snapshot, facts={}) for snapshot in fleet.snapshots.values())
    report = new_report("init", code, nodes=nodes, notices=(told,), inventory=inventory)
    return render(report, "json")


def _exit_code(source: Source, fleet: Fleet) -> int:
    """Return the code as `check` does: 1 if a host refuses the login, 3 if one gives no answer."""
    lost = [snapshot for snapshot in fleet.snapshots.values() if not snapshot.reached]
    if any(snapshot.answered for snapshot in lost):
        return 1
    return 3 if lost or source.passed_over else 0


def _cluster_name(fleet: Fleet) -> str:
    """Return what all names begin with before their first number, or `cluster`."""
    beginnings: set[str] = set()
    for node in fleet.reached:
        before_number, *_ = re.split(r"[0-9]", node.name)
        beginnings.add(before_number.strip("-_."))
    common = beginnings.pop() if len(beginnings) == 1 else ""
    return common or "cluster"


# ---------------------------------------------------------------- the file


def _refuse_to_overwrite(params: dict[str, Any]) -> None:
    target = params["output"]
    if target == "-" or params["force"] or not os.path.lexists(target):
        return
    raise Refused(
        f"{target} is there already and stays as it is; "
        "--output names another file, --force overwrites it"
    )


def _save(params: dict[str, Any], text: str, made: Draft) -> str:
    """Write the inventory and return what to print: a sentence, or for `-` the inventory.

    The file appears only after it was read as every command reads it.
    """
    target = params["output"]
    if target == "-":
        return shown_text(text)
    from clusterprep.model.units import pluralize
    from clusterprep.runtime import files

    fresh = files.draft_beside(Path(target))
    try:
        files.write_new(fresh, [text])
        _check_inventory(fresh, made)
        if params["force"]:
            fresh.replace(target)
        else:
            os.link(fresh, target)
    except FileExistsError:
        _refuse_to_overwrite(params)
        raise
    except OSError as error:
        from clusterprep.errors import InputError

        message = f"cannot be written: {error.strerror}"
        raise InputError.of(message, file=target, key="--output") from None
    finally:
        fresh.unlink(missing_ok=True)
    left_out = f", {len(made.left_out)} left out" if made.left_out else ""
    done = f"{target}: {pluralize(len(made.nodes), 'node')}{left_out}. "
    return shown_text(f"{done}Look it through, then: clusterprep check {target}\n")


def _check_inventory(path: Path, made: Draft) -> None:
    """Raise AssertionError if the file holds other nodes than the draft."""
    from clusterprep.inventory.load import load_inventory

    inventory = load_inventory(path)
    if _addresses(inventory.nodes) != _addresses(made.nodes):
        raise AssertionError("the inventory that was written holds other nodes than were meant")


def _addresses(nodes: Iterable[Node]) -> list[tuple[str, str]]:
    return [(node.name, node.address) for node in nodes]
