"""Turn the options of click into what the stages of a command take."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from clusterprep.cli.options import listed, seconds
from clusterprep.errors import InputError
from clusterprep.model.nodeset import nearest
from clusterprep.survey import registry
from clusterprep.survey.selection import Selection, matches, refuse_unknown_tags
from clusterprep.survey.settings import FORKS, RunSettings

if TYPE_CHECKING:
    from clusterprep.changes.playbook.steps import Step
    from clusterprep.jobs.bisection.stage import Limits
    from clusterprep.jobs.launch.plan import LaunchRequest
    from clusterprep.jobs.launch.stage import Screen
    from clusterprep.model import Inventory

# Fields of RunSettings that are true if the option of the same name is given.
SWITCHES = (
    "strict",
    "partial",
    "on_busy",
    "incident_sizes",
    "baseline",
    "force",
    "deep",
    "stress",
    "store",
    "detailed_exitcode",
)


def _run_to_undo(params: Mapping[str, Any]) -> str | None:
    """Return the run that --run names; None for the last one, which the nodes know."""
    run: str | None = params.get("undo")
    return None if run == "last" else run


def _certificate_before(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the certificate that --against names, None without one. Raises InputError."""
    if not params.get("against"):
        return None
    from clusterprep.cli.commands.certificate import read_certificate

    return read_certificate(params["against"])


def named_checks(names: Iterable[str], params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names that --only and --skip leave. Raises InputError for what names none."""
    names = tuple(names)
    patterns: dict[str, tuple[str, ...]] = {}
    for option in ("only", "skip"):
        patterns[option] = listed(params[option])
        for pattern in patterns[option]:
            if not any(matches(pattern, name) for name in names):
                message = f"this command has no check {pattern!r}"
                raise InputError.of(message, key=f"--{option}", hint=nearest(pattern, names))
    wanted = []
    for name in names:
        is_asked = not patterns["only"] or any(matches(one, name) for one in patterns["only"])
        if is_asked and not any(matches(one, name) for one in patterns["skip"]):
            wanted.append(name)
    if not wanted:
        raise InputError.of("no check is left", key="--skip")
    return tuple(wanted)


def launch_request(params: Mapping[str, Any]) -> LaunchRequest:
    """Return what `launch` is to start.

    Raises InputError for options that contradict each other, and for values that name no folder.
    """
    if params["direct"] and params["form"] not in (None, "torchrun", "hostfile"):
        raise InputError.of(
            f"{params['form']} says by itself how ranks are started; leave out --direct",
            key="--print",
        )
    if params["image"] is not None and params["form"] != "k8s":
        raise InputError.of("only --print k8s names an image", key="--image")
    if params["form"] == "k8s" and not params["image"]:
        hint = "--image REGISTRY/IMAGE:TAG"
        raise InputError.of("a pod needs the image of the job", key="--print", hint=hint)
    if params["log_dir"] == "":
        raise InputError.of(
            "an empty value names no folder",
            key="--log-dir",
            hint="give a folder on this machine, or leave the option out",
        )
    limit = seconds(params["timeout"])
    request = process_request(params)
    return replace(request, limit=limit, image=params["image"] or "")


def process_request(params: Mapping[str, Any]) -> LaunchRequest:
    """Return which processes are to be started. Raises InputError for wrong values."""
    from clusterprep.jobs.launch.command import program_of
    from clusterprep.jobs.launch.plan import LaunchRequest, parse_env_options

    folder = params["chdir"]
    if folder is not None and not folder.startswith("/"):
        raise InputError.of(
            f"'{folder}' is not the same folder on all nodes", key="--chdir", hint="begin with /"
        )
    program = program_of(params["command"])
    env = parse_env_options(params["variables"], os.environ)
    return LaunchRequest(
        program=program,
        direct=params["direct"],
        env=env,
        folder=folder,
        here=_current_folder(is_needed=folder is None),
        seed=params["seed"],
        preflight=params["preflight"],
    )


def _current_folder(*, is_needed: bool) -> str:
    """Return the folder that the command runs in. Raises InputError if it was removed."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        if not is_needed:
            return "/"
        message = "the folder that this command runs in is no longer there"
        hint = "cd to one that is there, or name one of the nodes with --chdir"
        raise InputError.of(message, key="--chdir", hint=hint) from None


def bisect_limits(params: Mapping[str, Any]) -> Limits:
    """Return how many runs a bisect may make, and how long. Raises InputError."""
    from clusterprep.jobs.bisection.stage import Limits

    return Limits(
        runs=params["max_runs"],
        seconds=seconds(params["max_time"], "--max-time"),
        one_run=seconds(params["run_timeout"], "--run-timeout"),
    )


def launch_screen(params: Mapping[str, Any], run: str, say: Callable[[str], None]) -> Screen:
    """Return where the lines of ranks go: to `say`, and to a file per rank."""
    from clusterprep.history import state_folder
    from clusterprep.jobs.launch.logs import forget_old
    from clusterprep.jobs.launch.stage import Screen

    if params["log_dir"] is not None:
        return Screen(say, params["fold"], Path(params["log_dir"]))
    runs = state_folder() / "launch"
    try:
        # What jobs print is not for all users of this machine.
        runs.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        message = f"{runs}, for what the ranks print, cannot be made: {error.strerror}"
        raise InputError.of(message, hint="--log-dir names another folder") from None
    forget_old(runs)
    return Screen(say, params["fold"], runs / run)


def chosen_steps(
    params: Mapping[str, Any], inventory: Inventory
) -> tuple[tuple[Step, ...], Selection]:
    """Return the selected steps of the playbook, and the selection of checks. Raises InputError.

    Commands without a playbook have no steps.
    """
    selection = Selection(
        only=listed(params.get("only")),
        skip=listed(params.get("skip")),
        tags=listed(params.get("tags")),
        skip_tags=listed(params.get("skip_tags")),
    )
    check_tags: set[str] = set()
    for check in registry.of(inventory).checks.values():
        area = check.name.split(".")[0]
        check_tags.update(check.tags, [area])
    if "playbook" not in params:
        refuse_unknown_tags(selection, check_tags)
        return (), selection
    from clusterprep.changes.playbook.reading import load_playbook
    from clusterprep.changes.playbook.tags import select_steps

    playbook = load_playbook(params["playbook"], inventory)
    return select_steps(playbook, selection, check_tags)


def settings_of(
    command: str,
    params: Mapping[str, Any],
    selection: Selection,
    check_names: tuple[str, ...],
    left_out: tuple[str, ...],
) -> RunSettings:
    """Return the settings of a command; an option that it does not have is off.

    `check_names` has all checks that an inventory may require, also planned ones. `left_out` has
    the names of the nodes that --limit excludes.
    """
    switches: dict[str, bool] = {}
    for name in SWITCHES:
        switches[name] = bool(params.get(name))
    not_built = tuple(name for name in check_names if name not in registry.checks())
    forks = params.get("forks", FORKS)
    has_budget = params.get("budget") is not None
    skips_verify = bool(params.get("no_verify"))
    tries_workarounds = bool(params.get("try_workarounds"))
    return RunSettings(
        command=command,
        forks=forks,
        selection=selection,
        verify=not skips_verify,
        workarounds=tries_workarounds,
        budget=has_budget,
        left_out=left_out,
        run=_run_to_undo(params),
        write_lists=params.get("write_lists"),
        pick=params.get("pick"),
        spares=params.get("spares") or 0,
        not_built=not_built,
        canary=params.get("canary") or "",
        batches=listed(params.get("batches")),
        gate=params.get("gate") or "",
        rollback_all=params.get("on_failure") == "rollback-all",
        accept_for=seconds(params.get("accept_for"), "--for"),
        certificate=params.get("certificate") or "",
        sign_key=params.get("sign_key") or "",
        certificate_before=_certificate_before(params),
        **switches,
    )
