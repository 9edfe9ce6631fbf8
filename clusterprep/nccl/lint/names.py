"""Names that no program reads, that this version does not read, or that do nothing in this file."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from clusterprep.model import Severity
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.lint import DROP, LintEntry, Remark, Text, Versions
from clusterprep.nccl.variables.variables import registry
from clusterprep.remedies import Remedy, sentence, shell_line

# The NCCL of torch 2.0, the oldest that is still in use: what was removed by then is gone.
OLDEST = (2, 14)

# Unknown names reported of one text: a file with more is no environment, and finding the nearest
# name takes long.
MOST_UNKNOWN = 100

# Families of plug-ins that are not in the registry: Google's, and what builds and packages look
# for.
_OF_PLUG_INS = ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_SHIMNET_", "NCCL_GPUDIRECTTCPXO_")
_OF_BUILDS = re.compile(
    r"NCCL_(?:ROOT|HOME|DIR|PATH|BUILD|LIB|INCLUDE|INSTALL|SRC|SOURCE|MAJOR|PKG)(?:_\w+)?"
    r"|NCCL_LIBRAR\w+"
)
_PREFIXES = ("NCCL_", "TORCH_NCCL_", "OFI_NCCL_")
# Other programs read names that begin so too: only one that is nearly a known name is taken for a
# slip.
_SHARED = ("TORCH_", "GLOO_", "TP_", "MASTER_", "PET_", "CUDA_")
_MISSPELT = re.compile(
    r"(?:NCLL|NCL|NCC|NNCL|NCCCL|NCCLL|NNCCL|NLCC|NCCI|NCLC|NCCl)_+", re.IGNORECASE
)
_LABEL = "NCCL_VERSION"  # of container images
_TITLES = {"nccl": "NCCL", "torch": "torch", "ofi": "aws-ofi-nccl"}  # by owner in the registry

Variable = Mapping[str, Any]  # an entry of the registry


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    """Yield a remark for each name without effect."""
    unknown_names: set[str] = set()
    for entry in text.entries:
        variable = registry().get(entry.name)
        remark = None
        if variable is not None:
            remark = _about_known(entry, variable, text, versions)
        elif len(unknown_names) < MOST_UNKNOWN:
            remark = _unknown(entry)
            if remark is not None:
                unknown_names.add(remark.name)
        if remark is not None:
            yield remark
    bare = [entry for entry in text.entries if entry.bare and entry.name.startswith(_PREFIXES)]
    if bare:
        yield _not_exported(bare)


def _about_known(
    entry: LintEntry, variable: Variable, text: Text, versions: Versions
) -> Remark | None:
    """Return the first remark about a variable of the registry, or None."""
    if entry.name == _LABEL:
        return _label(entry)
    remark = _of_version(entry, variable, versions)
    if remark is None:
        remark = _read_earlier(entry, variable, text)
    return remark


def _not_exported(bare: Sequence[LintEntry]) -> Remark:
    """Return one remark about all names without export: usually all of a file lack it."""
    names = list(dict.fromkeys(entry.name for entry in bare))
    seen = ", ".join(names[:4])
    if len(names) > 4:
        seen += f" and {len(names) - 4} more"
    message = "without export the shell keeps it for itself, and no program gets it"
    remedy = shell_line("export {names}", names=names[:4])
    return _no_effect(
        bare[0],
        message,
        seen,
        "export in front",
        remedy,
    )


# ---------------------------------------------------------------- unknown names


def _unknown(entry: LintEntry) -> Remark | None:
    """Return a remark about a name that looks like one of NCCL or torch, else None."""
    name = entry.name
    if of_others(name):
        return None
    upper = name.upper().replace("-", "_")
    mended = upper
    if _MISSPELT.match(upper):
        mended = _MISSPELT.sub("NCCL_", upper)
    is_ours = mended.startswith(_PREFIXES)
    is_shared = mended.startswith(_SHARED) and not is_ours
    if not is_ours and not is_shared and mended not in registry():
        return None
    near = nearest_name(mended, 0.95 if is_shared else 0.8)
    if near is None:
        if is_shared or name != upper:
            return None
        message = "no NCCL, torch or plug-in known here reads this name"
        remedy = sentence("drop the line, or see clusterprep explain NCCL_DEBUG")
        wanted = "a name that is read"
    else:
        message = f"no NCCL, torch or plug-in known here reads this name; did you mean {near}?"
        if name != upper and mended == near:
            message = f"no program reads this name: names have capital letters, as {near} does"
        remedy = sentence("write {near}, or drop the line", near=near)
        wanted = near
    return Remark(
        "env.nccl_unknown",
        entry.line,
        name,
        message,
        name,
        wanted,
        remedy,
    )


def of_others(name: str) -> bool:
    """Return whether builds, or plug-ins that are not in the registry, read such a name."""
    return name.startswith(_OF_PLUG_INS) or bool(_OF_BUILDS.fullmatch(name))


@functools.lru_cache(1024)
def nearest_name(name: str, likeness: float = 0.8) -> str | None:
    """Return the known name that looks most like this one, or None.

    >>> nearest_name("NCCL_DEBG")
    'NCCL_DEBUG'
    """
    if name in registry():
        return name
    close = difflib.get_close_matches(name, registry(), 1, likeness)
    return close[0] if close else None


# ---------------------------------------------------------------- known names


def _label(entry: LintEntry) -> Remark:
    """Return the remark about NCCL_VERSION, which only looks like a setting."""
    message = (
        "NCCL does not read it: container images carry it as a label, "
        "and the library that is loaded decides"
    )
    seen = f"{entry.name}={entry.value}"
    wanted = "the NCCL of that version installed"
    remedy = shell_line(
        "python3 -c 'import torch; print(torch.cuda.nccl.version())'   # which one is loaded"
    )
    return _no_effect(
        entry,
        message,
        seen,
        wanted,
        remedy,
    )


class _Reader(Struct, frozen=True):
    """The program that reads a variable, and its version; None: not known."""

    owner: str
    title: str
    version: tuple[int, ...] | None


def _of_version(entry: LintEntry, variable: Variable, versions: Versions) -> Remark | None:
    """Return a remark if the reader's version does not read it any more, not yet, or warns."""
    owner: str = variable["owner"]
    version = None
    if owner == "nccl":
        version = versions.nccl
    elif owner == "torch":
        version = versions.torch
    reader = _Reader(owner, _TITLES.get(owner, owner), version)
    return (
        _removed(entry, variable, reader)
        or _too_new(entry, variable, reader)
        or _deprecated(entry, variable, reader)
    )


def _removed(entry: LintEntry, variable: Variable, reader: _Reader) -> Remark | None:
    """Return a remark if the reader does not read the variable any more, or may not."""
    removed = _numbers(variable["removed_in"])
    if not removed:
        return None
    if reader.version:
        if reader.version < removed:
            return None
    elif reader.owner != "nccl":
        return None
    since = f"removed in {reader.title} {variable['removed_in']}"
    if reader.version or removed <= OLDEST:
        message = f"{since}: without effect"
        return _outdated(entry, variable, message, "error")
    message = f"{since}: without effect from then on; {reader.title}'s version is not known here"
    return _outdated(entry, variable, message)


def _too_new(entry: LintEntry, variable: Variable, reader: _Reader) -> Remark | None:
    """Return a remark if the reader's version does not have the variable yet."""
    since = _numbers(variable["since"])
    if not since or not reader.version or reader.version >= since:
        return None
    installed = ".".join(map(str, reader.version))
    required = f"{reader.title} {variable['since']}"
    message = f"came with {required}, and {reader.title} {installed} ignores it"
    wanted = f"{required} or later"
    return _no_effect(
        entry,
        message,
        entry.name,
        wanted,
        sentence("drop the line, or update"),
    )


def _deprecated(entry: LintEntry, variable: Variable, reader: _Reader) -> Remark | None:
    """Return a remark if the reader's version, or a version that is not known, deprecates it."""
    deprecated = _numbers(variable["deprecated_in"])
    if not deprecated:
        return None
    if reader.version is not None and reader.version < deprecated:
        return None
    release = f"{reader.title} {variable['deprecated_in']}"
    why = f"deprecated since {release}"
    if variable["replaced_by"]:
        why = f"renamed in {release}"
    message = f"{why}: still read"
    if reader.owner == "torch":
        message = f"{why}: still read, with a warning in every log"
    return _outdated(entry, variable, message)


def _outdated(
    entry: LintEntry, variable: Variable, message: str, severity: Severity = "warning"
) -> Remark:
    """Return the remark that recommends the new name, or to drop the line if there is none."""
    new_name = variable["replaced_by"]
    wanted, remedy = "no such line", DROP
    if new_name:
        wanted = str(new_name)
        remedy = sentence("use {name}", name=wanted)
    name = entry.name
    return Remark(
        "env.deprecated",
        entry.line,
        name,
        message,
        name,
        wanted,
        remedy,
        severity,
    )


def _read_earlier(entry: LintEntry, variable: Variable, text: Text) -> Remark | None:
    """Return a remark about a name in nccl.conf that is read before NCCL opens the file."""
    if text.dialect != "nccl.conf" or variable["readable_from_conf_file"]:
        return None
    reader = "its reader"
    if entry.name == "NCCL_CONF_FILE":
        reader = "NCCL"
    elif variable["owner"] == "torch":
        reader = "torch"
    message = f"no effect in nccl.conf: {reader} has read it by the time NCCL opens this file"
    wanted = "in the environment of the process"
    remedy = sentence(
        "set it in the environment of the job: /etc/profile.d, the unit, or --env-file"
    )
    return _no_effect(
        entry,
        message,
        entry.name,
        wanted,
        remedy,
    )


def _no_effect(entry: LintEntry, message: str, seen: str, wanted: str, remedy: Remedy) -> Remark:
    return Remark(
        "env.no_effect",
        entry.line,
        entry.name,
        message,
        seen,
        wanted,
        remedy,
    )


def _numbers(text: str | None) -> tuple[int, ...]:
    """Return (2, 30) for «2.30» and for «2.30-2.32»; empty if the registry has no release."""
    if not text or text.startswith(("<=", "-", "after")):
        return ()
    numbers = leading_numbers(text)
    return numbers if len(numbers) > 1 else ()
