"""Names: those that nobody reads, that this version does not read, and that do nothing where they stand."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clusterprep.model import Severity
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.lint import LintEntry, Remark, Text, Versions
from clusterprep.nccl.variables.variables import registry

# The NCCL of the oldest torch that people still run, 2.0: what was gone by then is gone for everybody.
OLDEST = (2, 14)

# Unknown names of one text: a file with more is no environment, and the nearest name is dear to find.
MOST_STRANGE = 100

# Families of plug-ins that are not in the registry: Google's, and what builds and packages look for.
_OF_PLUG_INS = ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_SHIMNET_", "NCCL_GPUDIRECTTCPXO_")
_OF_BUILDS = re.compile(
    r"NCCL_(?:ROOT|HOME|DIR|PATH|BUILD|LIB|INCLUDE|INSTALL|SRC|SOURCE|MAJOR|PKG)(?:_\w+)?|NCCL_LIBRAR\w+"
)
_PREFIXES = ("NCCL_", "TORCH_NCCL_", "OFI_NCCL_")
# Others read names that begin so too: only one that is nearly a known name is taken for a slip.
_SHARED = ("TORCH_", "GLOO_", "TP_", "MASTER_", "PET_", "CUDA_")
_MISSPELT = re.compile(
    r"(?:NCLL|NCL|NCC|NNCL|NCCCL|NCCLL|NNCCL|NLCC|NCCI|NCLC|NCCl)_+", re.IGNORECASE
)
_LABEL = "NCCL_VERSION"  # of container images


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    strange: set[str] = set()
    for entry in text.entries:
        known = registry().get(entry.name)
        if known is None and len(strange) < MOST_STRANGE:
            unknown = list(_unknown(entry))
            strange.update(remark.name for remark in unknown)
            yield from unknown
        elif known is None:
            continue
        elif entry.name == _LABEL:
            yield _label(entry)
        else:
            yield from _of_version(entry, known, versions) or _in_place(entry, known, text)
    yield from _kept(
        [entry for entry in text.entries if entry.bare and entry.name.startswith(_PREFIXES)]
    )


def _kept(bare: Sequence[LintEntry]) -> Iterator[Remark]:
    """One remark for all of them: who forgets the word forgets it everywhere."""
    if bare:
        names = list(dict.fromkeys(entry.name for entry in bare))
        seen = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        message = "without export the shell keeps it for itself, and no program gets it"
        yield _no_effect(bare[0], message, seen, "export in front", f"export {' '.join(names[:4])}")


def _unknown(entry: LintEntry) -> Iterator[Remark]:
    name = entry.name
    if of_others(name):
        return
    upper = name.upper().replace("-", "_")
    mended = _MISSPELT.sub("NCCL_", upper) if _MISSPELT.match(upper) else upper
    shared = mended.startswith(_SHARED) and not mended.startswith(_PREFIXES)
    if not mended.startswith((*_PREFIXES, *_SHARED)) and registry().get(mended) is None:
        return
    near = nearest_name(mended, 0.95 if shared else 0.8)
    if near is None and (shared or name != upper):
        return
    if name != upper and mended == near:
        message = f"nobody reads this name: names have capital letters, as {near} does"
    else:
        message = "no NCCL, torch or plug-in known here reads this name" + (
            f"; did you mean {near}?" if near else ""
        )
    remedy = (
        f"write {near}, or drop the line"
        if near
        else "drop the line, or see clusterprep explain NCCL_DEBUG"
    )
    yield Remark(
        "env.nccl_unknown", entry.line, name, message, name, near or "a name that is read", remedy
    )


def of_others(name: str) -> bool:
    """Whether plug-ins that are not in the registry, or builds, read a name that looks like NCCL's."""
    return name.startswith(_OF_PLUG_INS) or bool(_OF_BUILDS.fullmatch(name))


@functools.lru_cache(1024)
def nearest_name(name: str, likeness: float = 0.8) -> str | None:
    """The known name that looks most like this one."""
    if name in registry():
        return name
    close = difflib.get_close_matches(name, registry(), 1, likeness)
    return close[0] if close else None


def _label(entry: LintEntry) -> Remark:
    message = "NCCL does not read it: container images carry it as a label, and the library that is loaded decides"
    wanted = "the NCCL of that version installed"
    remedy = "python3 -c 'import torch; print(torch.cuda.nccl.version())'   # which one is loaded"
    return _no_effect(entry, message, f"{entry.name}={entry.value}", wanted, remedy)


def _of_version(entry: LintEntry, known: Mapping[str, Any], versions: Versions) -> list[Remark]:
    """What the reader's version does not read any more, not yet, or only with a warning."""
    owner = known["owner"]
    reader = {"nccl": versions.nccl, "torch": versions.torch}.get(owner)
    title = {"nccl": "NCCL", "torch": "torch", "ofi": "aws-ofi-nccl"}.get(owner, owner)
    installed = ".".join(map(str, reader)) if reader else ""
    new = known["replaced_by"]
    remedy = f"use {new}" if new else "drop the line"
    removed, since, old = (_numbers(known[key]) for key in ("removed_in", "since", "deprecated_in"))
    wanted = str(new or "no such line")
    if removed and (reader >= removed if reader else owner == "nccl"):
        sure = bool(reader) or removed <= OLDEST
        tail = (
            "without effect"
            if sure
            else f"without effect from then on; {title}'s version is not known here"
        )
        message = f"removed in {title} {known['removed_in']}: {tail}"
        severity: Severity = "error" if sure else "warning"
        return [
            Remark(
                "env.deprecated",
                entry.line,
                entry.name,
                message,
                entry.name,
                wanted,
                remedy,
                severity,
            )
        ]
    if since and reader and reader < since:
        message = f"came with {title} {known['since']}, and {title} {installed} ignores it"
        return [
            _no_effect(
                entry,
                message,
                entry.name,
                f"{title} {known['since']} or later",
                "drop the line, or update",
            )
        ]
    if old and (reader is None or reader >= old):
        why = (
            f"renamed in {title} {known['deprecated_in']}"
            if new
            else f"deprecated since {title} {known['deprecated_in']}"
        )
        message = f"{why}: still read" + (
            ", with a warning in every log" if owner == "torch" else ""
        )
        return [
            Remark("env.deprecated", entry.line, entry.name, message, entry.name, wanted, remedy)
        ]
    return []


def _in_place(entry: LintEntry, known: Mapping[str, Any], text: Text) -> Iterator[Remark]:
    """Names that are read before NCCL opens its file."""
    if text.dialect == "nccl.conf" and not known["readable_from_conf_file"]:
        reader = (
            "NCCL"
            if entry.name == "NCCL_CONF_FILE"
            else {"torch": "torch"}.get(known["owner"], "its reader")
        )
        message = f"no effect in nccl.conf: {reader} has read it by the time NCCL opens this file"
        remedy = "set it in the environment of the job: /etc/profile.d, the unit, or --env-file"
        yield _no_effect(entry, message, entry.name, "in the environment of the process", remedy)


def _no_effect(entry: LintEntry, message: str, seen: str, wanted: str, remedy: str) -> Remark:
    return Remark("env.no_effect", entry.line, entry.name, message, seen, wanted, remedy)


def _numbers(text: str | None) -> tuple[int, ...]:
    """(2, 30) of «2.30», «<=2.30» or «2.30-2.32»; empty where the registry cannot tell."""
    if not text or text.startswith(("<=", "-", "after")):
        return ()
    numbers = leading_numbers(text)
    return numbers if len(numbers) > 1 else ()
