"""The options of a command that change what its stages do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.survey.selection import Selection

FORKS = 64  # nodes that are talked to at once, unless the command says otherwise
MOST_FORKS = 4096


class RunSettings(Struct, frozen=True):
    """The options of one command. Most fields are named after the option."""

    command: str
    forks: int = FORKS
    selection: Selection = Selection()
    strict: bool = False
    write: bool = True  # apply without --dry-run
    verify: bool = True
    partial: bool = False
    on_busy: bool = False
    incident_sizes: bool = False
    baseline: bool = False  # record the speeds of this verify as normal
    force: bool = False
    accept_for: float | None = None  # seconds for which a trial that passed is repeated
    certificate: str = ""  # the file for the certificate, by default one in the state folder
    sign_key: str = ""  # the private key that signs it, by default that of the site
    certificate_before: Mapping[str, Any] | None = None  # with which check compares the nodes
    workarounds: bool = False  # try settings that may help when verify fails
    detailed_exitcode: bool = False
    budget: bool = False  # stored findings answer the deep checks
    deep: bool = False  # run the deep checks alone
    store: bool = False  # store the findings on the nodes
    stress: bool = False  # run also the checks that load GPUs and memory
    left_out: tuple[str, ...] = ()  # names of the nodes that --limit excludes
    canary: str = ""  # the nodes of the first batch: how many, or which
    batches: tuple[str, ...] = ()  # sizes: 4, 10%, rest
    gate: str = ""  # check, verify, or a command: what each batch has to pass
    rollback_all: bool = False  # a batch that fails takes back those before it as well
    run: str | None = None  # the run that rollback undoes
    write_lists: str | None = None  # folder for the lists of nodes that pass and fail
    pick: int | None = None  # how many of the nodes that pass are chosen
    spares: int = 0  # nodes of a launch that are there to stand in for others
    not_built: tuple[str, ...] = ()  # names of checks that are planned

    @property
    def in_batches(self) -> bool:
        """Whether apply writes one batch of nodes after the other."""
        return bool(self.canary or self.batches)

    @property
    def sorts_nodes(self) -> bool:
        """Return whether good nodes are told from others, so that a job can do without these."""
        return self.write_lists is not None or self.pick is not None or self.spares > 0
