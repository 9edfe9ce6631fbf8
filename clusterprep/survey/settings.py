"""The options of a command, as the stages want them."""

from __future__ import annotations

from clusterprep.runtime.lazy_dataclass import dataclass
from clusterprep.survey.queries import Selection


@dataclass(frozen=True)
class RunSettings:
    """The options of a command that change what its stages do."""

    command: str
    forks: int = 64
    selection: Selection = Selection()
    strict: bool = False
    write: bool = True  # apply without --dry-run
    verify: bool = True
    partial: bool = False
    on_busy: bool = False
    incident_sizes: bool = False
    force: bool = False
    workarounds: bool = False  # try settings that may help when verify fails
    detailed_exitcode: bool = False
    budget: bool = False  # deep checks are answered from what the nodes keep
    deep: bool = False  # these alone
    store: bool = False  # and the nodes keep their findings
    left_out: tuple[str, ...] = ()  # names of the nodes that --limit leaves alone
    run: str | None = None  # the run that rollback undoes
    catalogue: tuple[str, ...] = ()  # checks that are planned and not built
