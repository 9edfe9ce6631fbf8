"""Options of the command line as click decorators, in groups that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from clusterprep.cli import completion
from clusterprep.errors import InputError

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]


def _all(*decorators: Any) -> Callable[[Command], Command]:
    """Return one decorator that applies all of these, the first one outermost."""

    def decorate(function: Command) -> Command:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


# Bytes read of a file to be judged. One more than lint.LARGEST, which tells a file that is too
# large.
MOST = (1 << 20) + 1


class Content(click.File):
    """Name and content of a file, or of standard input for `-`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        stream = super().convert(value, param, ctx)
        try:
            return stream.name, stream.read(MOST)
        except OSError as error:
            self.fail(f"'{stream.name}': {error.strerror}", param, ctx)


inventory = click.argument("inventory", metavar="INVENTORY", shell_complete=completion.files)
optional_inventory = click.argument(
    "inventory", metavar="INVENTORY", required=False, shell_complete=completion.files
)
site = click.option(
    "--inventory",
    metavar="I",
    shell_complete=completion.files,
    help="With the site's checks beside this inventory; default: ./inventory.yaml if it is there.",
)


_OUTPUT = click.option(
    "--output",
    multiple=True,
    metavar="FILE",
    shell_complete=completion.files,
    help="Also write this file, by suffix; repeats.",
)
_ARCHIVE = click.option(
    "--output",
    "archive",
    metavar="FILE.tar.gz",
    shell_complete=completion.files,
    help="Write this archive; default: a name with cluster and run, in this folder.",
)


def _reporting(formats: str, output: Any = _OUTPUT) -> Callable[[Command], Command]:
    """Return the options of a command that reports, in the formats that its help names."""
    return _all(
        click.option(
            "--format",
            "fmt",
            default="console",
            metavar="F",
            shell_complete=completion.formats,
            help=f"On stdout: {formats}",
        ),
        output,
        click.option("-v", "--verbose", count=True, help="Show more: passes, skips, facts."),
        click.option("-q", "--quiet", is_flag=True, help="One line and the exit code."),
        click.option("--no-color", is_flag=True, help="Do not use colours."),
    )


reporting = _reporting("console, json, html, markdown, junit, …")
diagnosing = _reporting("console or json.")
bundling = _reporting("console, json, …: what is written, and which nodes answered.", _ARCHIVE)

_chosen_nodes = _all(
    click.option(
        "--limit",
        metavar="NODESET|GROUP",
        shell_complete=completion.nodes,
        help="Contact only these nodes.",
    ),
    click.option(
        "--forks",
        default=64,
        show_default=True,
        type=click.IntRange(1, 4096),
        help="Nodes at once.",
    ),
)
_logins = _all(
    click.option("-b", "--become/--no-become", default=None, help="sudo on the nodes."),
    click.option("-K", "--ask-become-pass", is_flag=True, help="Ask for sudo's password."),
    click.option(
        "--known-hosts",
        metavar="FILE",
        shell_complete=completion.files,
        help="Instead of ~/.ssh/known_hosts.",
    ),
    click.option(
        "--host-keys",
        type=click.Choice(["strict", "accept-new"]),
        help="accept-new learns the keys of new hosts; changed keys are refused.",
    ),
)
connections = _all(_chosen_nodes, _logins)
fleet = _all(
    _chosen_nodes,
    click.option("--timeout", metavar="S", help="Limit of the whole command: 90, 2m."),
    _logins,
)

naming = _all(
    click.option(
        "--only",
        metavar="CHECK,…",
        shell_complete=completion.checks,
        help="Only these checks; `time.` takes the whole area.",
    ),
    click.option(
        "--skip", metavar="CHECK,…", shell_complete=completion.checks, help="Not these checks."
    ),
)

selecting = _all(
    naming,
    click.option(
        "--tags",
        metavar="TAG,…",
        help="Only checks with one of these tags or areas, or steps with one.",
    ),
    click.option(
        "--skip-tags",
        metavar="TAG,…",
        help="No check with one of these tags or areas, and no step with one.",
    ),
    click.option("--strict", is_flag=True, help="A failed or unknown warning counts too."),
)

prolog = _all(
    click.option(
        "--budget", metavar="S", help="Answer within S of the start: 8, 8s. Deep checks: as stored."
    ),
    click.option(
        "--deep",
        is_flag=True,
        help="Only checks that run the job's Python and shells; for a timer.",
    ),
    click.option(
        "--store", is_flag=True, help="With --deep: the nodes keep the findings, for --budget."
    ),
)

stress = _all(
    click.option(
        "--stress",
        is_flag=True,
        help="Also load GPUs and memory for some minutes, and time them.",
    ),
    click.option("--on-busy", is_flag=True, help="With --stress: even if GPUs are in use."),
)

retry = click.option(
    "--retry-failed",
    metavar="RUN",
    shell_complete=completion.runs,
    help="Only nodes that failed in that run; `last`.",
)
rollout = _all(
    click.option(
        "--canary", metavar="N|NODESET", help="Write these first; the others only if it goes well."
    ),
    click.option(
        "--batches",
        metavar="N,P%,rest",
        help="Write one batch after the other; the last size repeats.",
    ),
    click.option(
        "--gate",
        metavar="check|verify|CMD",
        help="What each batch has to pass; CMD runs here, for $CLUSTERPREP_NODES.",
    ),
    click.option(
        "--on-failure",
        type=click.Choice(["stop", "rollback-all"]),
        help="Take back the batch that fails, or all; default: stop.",
    ),
)
playbook = click.option(
    "--playbook",
    metavar="FILE|NAME",
    default="site",
    shell_complete=completion.playbooks,
    help="What to apply; default: site.",
)
ranks = _all(
    click.option(
        "--nproc-per-node",
        type=click.IntRange(1, 1024),
        help="Ranks per node, as torchrun calls it.",
    ),
    click.option(
        "--master-port",
        type=click.IntRange(1, 65535),
        help="Rendezvous port, as torchrun calls it.",
    ),
)

# What `launch --print` writes; those below jobs/launch/forms have a file there.
FORMS = (
    "torchrun",
    "sbatch",
    "hostfile",
    "accelerate",
    "deepspeed",
    "lightning",
    "mpirun",
    "k8s",
)
processes = _all(
    click.argument("command", nargs=-1, metavar="-- CMD…", type=click.UNPROCESSED),
    click.option(
        "--direct", is_flag=True, help="One process per rank, without torchrun in between."
    ),
    click.option(
        "--env",
        "variables",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="For the processes; repeats.",
    ),
    click.option(
        "--chdir",
        metavar="DIR",
        help="Working folder; default: this one if the node has it, else home.",
    ),
    click.option(
        "--seed", type=click.IntRange(0, (1 << 32) - 1), help="PYTHONHASHSEED and CLUSTERPREP_SEED."
    ),
    click.option(
        "--preflight/--no-preflight",
        default=True,
        help="Check first what it would hang at; default: yes.",
    ),
    click.option("--on-busy", is_flag=True, help="Even if GPUs are in use."),
)
launching = _all(
    processes,
    click.option("--fold", is_flag=True, help="Show equal lines of several ranks once."),
    click.option(
        "--log-dir", metavar="DIR", help="A file per rank there; default: in the state folder."
    ),
    click.option(
        "--print",
        "form",
        type=click.Choice(FORMS),
        help="Start nothing; print the launch for this program.",
    ),
    click.option("--image", metavar="IMAGE", help="Of the job, for --print k8s."),
    click.option(
        "--spares",
        type=click.IntRange(1, 100_000),
        metavar="K",
        help="The inventory has K nodes more than are needed; leave bad ones out.",
    ),
)

bisecting = _all(
    processes,
    click.option(
        "--max-runs",
        type=click.IntRange(1, 10_000),
        metavar="N",
        help="Make so many runs at most; default: as many as two faults take.",
    ),
    click.option(
        "--max-time", metavar="T", help="End after this time, also in the middle of a run: 90m, 8h."
    ),
    click.option(
        "--run-timeout",
        metavar="T",
        help="A run that takes longer hangs; default: 10m, then 4 times the longest good run.",
    ),
    click.option(
        "--min-nodes",
        type=click.IntRange(1, 100_000),
        metavar="N",
        help="The command needs so many nodes; default: 2.",
    ),
    click.option(
        "--resume",
        metavar="RUN",
        help="Go on behind the runs of an earlier bisect: its name, or `last`.",
    ),
)

choosing = _all(
    click.option(
        "--write-lists",
        metavar="DIR",
        help="Write passing.txt, failing.txt, unknown.txt, exclude.txt and a hostfile there.",
    ),
    click.option(
        "--pick",
        type=click.IntRange(1, 100_000),
        metavar="N",
        help="Choose N of the nodes that pass, whole groups first; with fewer: exit 1.",
    ),
)
accepting = _all(
    click.option(
        "--for",
        "accept_for",
        metavar="TIME",
        help="Acceptance: repeat it for so long, such as 30m, say what drifts, and certify.",
    ),
    click.option(
        "--certificate",
        metavar="FILE",
        shell_complete=completion.files,
        help="With --for: write the certificate there; default: in the state folder.",
    ),
    click.option(
        "--sign-key",
        metavar="KEY",
        shell_complete=completion.files,
        help="With --for: the SSH key that signs it; default: one of this site, made when needed.",
    ),
)
against = click.option(
    "--against",
    metavar="FILE",
    shell_complete=completion.files,
    help="Also compare parts and versions with this certificate of `verify --for`.",
)
watching = _all(
    click.option(
        "--every",
        metavar="TIME",
        default="60s",
        show_default=True,
        help="From one look to the next: 10s, 2m.",
    ),
    click.option(
        "--job",
        metavar="NODE:PID|slurm:ID",
        help="Follow the job of this process, too: whether it moves, and who holds it up.",
    ),
    click.option(
        "--format",
        "fmt",
        default="console",
        metavar="F",
        type=click.Choice(["console", "jsonl"]),
        help="On stdout: console, or jsonl: a JSON object on a line for each change.",
    ),
    click.option(
        "--webhook", metavar="URL", help="Also POST the changes of each look there, as signed JSON."
    ),
    click.option(
        "--webhook-secret",
        metavar="FILE",
        shell_complete=completion.files,
        help="The secret that signs them: the first line of a file of mode 0600.",
    ),
    click.option(
        "--textfile",
        metavar="FILE",
        shell_complete=completion.files,
        help="Also write this file after each look, for node_exporter's textfile collector.",
    ),
)

readers = _all(
    click.option("--nccl", metavar="V", help="Version that will read it, such as 2.21.5."),
    click.option("--torch", metavar="V", help="Version that will read it, such as 2.6.0."),
    click.option(
        "--dialect",
        metavar="D",
        help="nccl.conf, shell, env-file, environment or unit; default: by name.",
    ),
    click.option("--strict", is_flag=True, help="A warning counts too."),
)


def refuse_mix(params: dict[str, Any]) -> None:
    """Raise UsageError for options that contradict each other."""
    deep = params["deep"]
    stress = params["stress"]
    has_budget = params["budget"] is not None
    has_lists = params["write_lists"] is not None
    has_retry = params["retry_failed"] is not None
    contradictions = (
        (
            params["store"] and not deep,
            "--store keeps the findings of deep checks; add --deep",
        ),
        (
            deep and has_budget,
            "--deep asks what --budget has no time for; give one of them",
        ),
        (
            stress and (deep or has_budget),
            "--stress takes minutes; leave --deep and --budget out",
        ),
        (
            has_lists and has_budget,
            "--budget has no time for lists; leave --write-lists out",
        ),
        (
            params["on_busy"] and not stress,
            "--on-busy says that --stress may load GPUs in use; add --stress",
        ),
        (
            params["local"] and has_retry,
            "--retry-failed chooses nodes of an INVENTORY; leave --local out",
        ),
    )
    for is_given, message in contradictions:
        if is_given:
            raise click.UsageError(message)


def refuse_certificate(params: dict[str, Any]) -> None:
    """Raise UsageError for options of a certificate without the acceptance that it is of."""
    if params["accept_for"] is not None:
        return
    for parameter, key in {"certificate": "--certificate", "sign_key": "--sign-key"}.items():
        if params[parameter] is not None:
            raise click.UsageError(f"{key} is about the certificate of an acceptance; add --for")


def refuse_with_live(params: dict[str, Any], redact: bool) -> None:
    """Raise UsageError for options of `diagnose` that have no meaning with --live."""
    if params["inventory"] is not None:
        raise click.UsageError("--inventory names the nodes of a log; --live has its own INVENTORY")
    if redact:
        raise click.UsageError("--redact is for logs; a job that runs is shown as it is")


def refuse_fleet_without_inventory(params: dict[str, Any]) -> None:
    """Raise UsageError for options about nodes where `diagnose` reads logs alone."""
    keys = {
        "limit": "--limit",
        "timeout": "--timeout",
        "become": "--become",
        "ask_become_pass": "-K",
    }
    for parameter, key in keys.items():
        if params[parameter] not in (None, False) and params["inventory"] is None:
            raise click.UsageError(f"{key} is about nodes; add --inventory or --live INVENTORY")


def refuse_fleet_for_run(params: dict[str, Any]) -> None:
    """Raise UsageError for options about nodes where `bundle` is of an earlier run."""
    keys = {
        "limit": "--limit",
        "timeout": "--timeout",
        "become": "--become",
        "ask_become_pass": "-K",
    }
    for parameter, key in keys.items():
        if params[parameter] not in (None, False):
            raise click.UsageError(f"{key} is about nodes; an earlier RUN asks none")


def refuse_rollout(params: dict[str, Any]) -> None:
    """Raise UsageError for options of batches without a batch."""
    if params["canary"] is not None or params["batches"] is not None:
        return
    for parameter, key in {"gate": "--gate", "on_failure": "--on-failure"}.items():
        if params[parameter] is not None:
            raise click.UsageError(f"{key} is about batches; add --canary or --batches")


# Options that narrow down what a command works on, by their parameters.
_NARROWING = {
    "limit": "--limit",
    "tags": "--tags",
    "retry_failed": "--retry-failed",
    "canary": "--canary",
    "batches": "--batches",
    "gate": "--gate",
    "undo": "--run",
    "from_run": "--from-run",
    "node": "--node",
    "target": "--target",
}


def refuse_empty(params: dict[str, Any]) -> None:
    """Raise InputError for an empty text that would mean everything, such as `--limit "$NODES"`."""
    for parameter, key in _NARROWING.items():
        if params.get(parameter) == "":
            raise InputError.of("it is empty; leave it out to mean everything", key=key)


def seconds(text: str | None, key: str = "--timeout") -> float | None:
    """Return a limit in seconds. Raises InputError, which names the option `key`."""
    if text is None:
        return None
    from clusterprep.model.units import parse_duration

    is_number = text.replace(".", "", 1).isdigit()
    try:
        return float(text) if is_number else parse_duration(text)
    except ValueError as error:
        raise InputError.of(str(error), key=key) from None


def listed(text: str | None) -> tuple[str, ...]:
    """Return the items of a list with commas, without blanks around them."""
    items = [item.strip() for item in (text or "").split(",")]
    return tuple(item for item in items if item)
