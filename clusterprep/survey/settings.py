"""The options of a command that change what its stages do."""

from __future__ import annotations

from clusterprep.runtime.lazy_dataclass import dataclass
from clusterprep.survey.selection import Selection


@dataclass(frozen=True)
class RunSettings:
    """The options of one command. Most fields are named after the option."""

    command: str
    forks: int = 64
    selection: Selection = Selection()
    strict: bool = False
    write: bool = True  # apply without --dry-run
    verify: bool = True
    partial: bool = False
    on_busy: bool = False
    incident_sizes: bool = False
    baseline: bool = False  # record the speeds of this verify as normal
    force: bool = False
    workarounds: bool = False  # try settings that may help when verify fails
    detailed_exitcode: bool = False
    budget: bool = False  # stored findings answer the deep checks
    deep: bool = False  # run the deep checks alone
    store: bool = False  # store the findings on the nodes
    stress: bool = False  # run also the checks that load GPUs and memory
    left_out: tuple[str, ...] = ()  # names of the nodes that --limit excludes
    run: str | None = None  # the run that rollback undoes
    not_built: tuple[str, ...] = ()  # names of checks that are planned
