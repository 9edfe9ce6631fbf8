"""The command `clusterprep init`: its options, the file it writes, and what it says."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterprep.cli import options
from clusterprep.errors import Refused

if TYPE_CHECKING:
    from clusterprep.cli.init.draft import Draft
    from clusterprep.cli.init.sources import Source
    from clusterprep.model import Fleet

DEFAULT = "inventory.yaml"


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
@click.option("--user", metavar="U", help="Who logs in; default: ssh_config's.")
@click.option("--port", type=click.IntRange(1, 65535), help="Of SSH; default: ssh_config's.")
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
@click.option("--job-user", metavar="U", help="As whom the job runs; default: who logs in.")
@click.option(
    "--cluster",
    metavar="NAME",
    help="Name of the cluster; default: what the nodes' names begin with.",
)
@click.option(
    "--accept-new", is_flag=True, help="Learn host keys that are not known yet, after showing them."
)
@click.option(
    "--output",
    default=DEFAULT,
    show_default=True,
    metavar="FILE",
    help="What to write; - is stdout.",
)
@click.option("--force", is_flag=True, help="Overwrite that file.")
@click.option(
    "--forks", default=64, show_default=True, type=click.IntRange(1, 4096), help="Hosts at once."
)
@click.option("--timeout", metavar="S", help="Limit of the whole command: 90, 2m.")
@click.option("-b", "--become/--no-become", default=None, help="sudo on the nodes.")
@click.option("-K", "--ask-become-pass", is_flag=True, help="Ask for sudo's password.")
@click.option("--no-color", is_flag=True, help="Words and no colours.")
def init(**words: Any) -> None:
    """Write a commented inventory by looking at the hosts."""
    from clusterprep.runtime.deadline import Deadline

    _refuse_to_overwrite(words)
    with Deadline(options.seconds(words["timeout"])):
        source = _source(words)
        fleet = _look(words, source)
    raise SystemExit(_write(words, source, fleet))


def _source(words: dict[str, Any]) -> Source:
    from clusterprep.cli.init import sources

    ways: dict[str, Callable[[], Source]] = {
        "HOST": lambda: sources.from_hosts(words["hosts"]),
        "--from-ansible": lambda: sources.from_ansible(words["from_ansible"]),
        "--from-slurm": sources.from_slurm,
        "--from-ssh-config": lambda: sources.from_ssh_config(
            words["from_ssh_config"], words["config"] or "~/.ssh/config"
        ),
    }
    keys = {"HOST": "hosts", **{way: way[2:].replace("-", "_") for way in ways if way != "HOST"}}
    asked = [way for way in ways if words[keys[way]]]
    if len(asked) != 1:
        seen = f"; seen {' and '.join(asked)}" if asked else ""
        raise click.UsageError(f"give HOST… or one of {', '.join(list(ways)[1:])}{seen}")
    login = sources.LoginOptions(
        **{key: words[key] for key in sources.LoginOptions.__dataclass_fields__}
    )
    return login.over(ways[asked[0]]())


def _look(words: dict[str, Any], source: Source) -> Fleet:
    from clusterprep.cli.init.look import UNKNOWN_KEY, Looker
    from clusterprep.cli.terminal import passphrases, password, progress

    watch = progress(words)
    looker = Looker(words["forks"], password(words), watch, passphrases(), _say)
    try:
        fleet = looker.look(
            tuple(n for n in source.nodes if n.name not in source.passed_over), words["accept_new"]
        )
    finally:
        watch.close()
    for snapshot in fleet.snapshots.values():
        if not snapshot.reached and snapshot.reason != UNKNOWN_KEY:
            remedy = f"; {snapshot.remedy}" if snapshot.remedy else ""
            _say(f"{snapshot.node}: {snapshot.reason}: {snapshot.detail}{remedy}")
    for name, why in source.passed_over.items():
        _say(f"{name}: {why}")
    return fleet


def _say(text: str) -> None:
    from clusterprep.reports.plain import clean

    click.echo(f"clusterprep: {clean(text)}", err=True)


def _write(words: dict[str, Any], source: Source, fleet: Fleet) -> int:
    from clusterprep.cli.init.draft import draft
    from clusterprep.cli.init.yaml_text import document

    code = _code(source, fleet)
    if not fleet.reached:
        click.echo("clusterprep: no host could be looked at, so nothing is written", err=True)
        return code
    now = datetime.now(timezone.utc)
    by = f"Written by `clusterprep init` on {now:%Y-%m-%d} from what it saw on {len(fleet.reached)} hosts."
    made = draft(source, fleet, words["cluster"] or _cluster(fleet), by)
    text = document(made.parts)
    _save(words, text, made)
    return code


def _code(source: Source, fleet: Fleet) -> int:
    """As check: a host that refuses us is a failure, one that gives no answer is not known."""
    lost = [snapshot for snapshot in fleet.snapshots.values() if not snapshot.reached]
    if any(snapshot.answered for snapshot in lost):
        return 1
    return 3 if lost or source.passed_over else 0


def _cluster(fleet: Fleet) -> str:
    """What all names begin with before their first number."""
    beginnings = {re.split(r"[0-9]", node.name)[0].strip("-_.") for node in fleet.reached}
    return (beginnings.pop() if len(beginnings) == 1 else "") or "cluster"


def _refuse_to_overwrite(words: dict[str, Any]) -> None:
    target = words["output"]
    if target != "-" and not words["force"] and os.path.lexists(target):
        raise Refused(
            f"{target} is there already and stays as it is; --output names another file, --force overwrites it"
        )


def _save(words: dict[str, Any], text: str, made: Draft) -> None:
    """Write beside the target, read it as every command does, and only then put it in place."""
    from clusterprep.inventory.load import load_inventory

    target = words["output"]
    if target == "-":
        sys.stdout.write(text)
        return
    fresh = Path(f"{target}.new-{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        inventory = load_inventory(fresh)
        meant = [(node.name, node.address) for node in made.nodes]
        if [(node.name, node.address) for node in inventory.nodes] != meant:
            raise AssertionError("the inventory that was written holds other nodes than were meant")
        if words["force"]:
            fresh.replace(target)
        else:
            os.link(fresh, target)
    except FileExistsError:
        _refuse_to_overwrite(words)
        raise
    except OSError as error:
        from clusterprep.errors import InputError

        raise InputError.of(
            f"cannot be written: {error.strerror}", file=target, key="--output"
        ) from None
    finally:
        fresh.unlink(missing_ok=True)
    left = f", {len(made.left_out)} left out" if made.left_out else ""
    click.echo(
        f"{target}: {len(made.nodes)} nodes{left}. Look it through, then: clusterprep check {target}"
    )
