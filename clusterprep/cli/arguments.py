"""The words of a command as the stages want them: its settings, and what to launch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterprep.cli.options import listed, seconds
from clusterprep.errors import InputError
from clusterprep.survey.queries import Selection
from clusterprep.survey.registry import checks
from clusterprep.survey.settings import RunSettings

if TYPE_CHECKING:
    from clusterprep.changes.playbook.steps import Step
    from clusterprep.jobs.launch.plan import LaunchRequest
    from clusterprep.jobs.launch.stage import Screen
    from clusterprep.model import Inventory


def wanted(words: Mapping[str, Any]) -> LaunchRequest:
    """InputError for what cannot be meant, before any node is asked."""
    from clusterprep.jobs.launch.command import program_of
    from clusterprep.jobs.launch.plan import LaunchRequest, given_env

    if words["direct"] and words["form"] == "sbatch":
        raise InputError.of(
            "a script for Slurm starts torchrun on each node; leave out --direct", key="--print"
        )
    folder = words["chdir"]
    if folder is not None and not folder.startswith("/"):
        raise InputError.of(
            f"'{folder}' is not the same folder on all nodes", key="--chdir", hint="begin with /"
        )
    return LaunchRequest(
        program=program_of(words["command"]),
        direct=words["direct"],
        env=given_env(words["variables"], os.environ),
        folder=folder,
        here=str(Path.cwd()),
        seed=words["seed"],
        preflight=words["preflight"],
        limit=seconds(words["timeout"]),
    )


def screen(words: Mapping[str, Any], run: str, say: Callable[[str], None]) -> Screen:
    """Lines go to stderr, as stdout is the report's, and to a file per rank."""
    from clusterprep.history import state_folder
    from clusterprep.jobs.launch.logs import forget_old
    from clusterprep.jobs.launch.stage import Screen

    runs = state_folder() / "launch"
    if words["log_dir"] is None:
        runs.mkdir(
            parents=True, exist_ok=True, mode=0o700
        )  # what jobs print is not for everybody here
        forget_old(runs)
    return Screen(say, words["fold"], Path(words["log_dir"]) if words["log_dir"] else runs / run)


def chosen_steps(
    words: Mapping[str, Any], inventory: Inventory
) -> tuple[tuple[Step, ...], Selection]:
    """The steps of a command's playbook that it is to do, and which checks it selects. InputError for a wrong one."""
    selection = Selection(
        *(listed(words.get(key)) for key in ("only", "skip", "tags", "skip_tags"))
    )
    if "playbook" not in words:
        return (), selection
    from clusterprep.changes.playbook.reading import load_playbook
    from clusterprep.changes.playbook.tags import chosen

    known = {tag for check in checks().values() for tag in (*check.tags, check.name.split(".")[0])}
    return chosen(load_playbook(words["playbook"], inventory), selection, known)


def settings_of(
    command: str,
    words: Mapping[str, Any],
    selection: Selection,
    catalogue: tuple[str, ...],
    left_out: tuple[str, ...],
) -> RunSettings:
    return RunSettings(
        command=command,
        forks=words.get("forks", 64),
        selection=selection,
        strict=bool(words.get("strict")),
        verify=not words.get("no_verify"),
        partial=bool(words.get("partial")),
        on_busy=bool(words.get("on_busy")),
        incident_sizes=bool(words.get("incident_sizes")),
        force=bool(words.get("force")),
        workarounds=bool(words.get("try_workarounds")),
        budget=words.get("budget") is not None,
        deep=bool(words.get("deep")),
        store=bool(words.get("store")),
        detailed_exitcode=bool(words.get("detailed_exitcode")),
        left_out=left_out,
        run=words.get("undo"),
        catalogue=tuple(name for name in catalogue if name not in checks()),
    )
