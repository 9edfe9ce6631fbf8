"""What else the job's processes load: the system's NCCL, NCCL's plug-ins, and the interpreter itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, uniform, uniform_by_kind
from clusterprep.facts.torch import Libraries, Plugin, Plugins, Python
from clusterprep.model import Node
from clusterprep.model.versions import conditions_of, satisfies

NONE = "none"


def system_nccl(context: CheckContext) -> Iterable[Outcome]:
    """Equal on all nodes; an error only where a job's torch would load it."""
    found: dict[str, Libraries] = context.values("nccl.libraries")
    versions = {name: _system_version(libraries) for name, libraries in found.items()}
    if all(version == NONE for version in versions.values()) and not any(
        map(context.wanted, context.nodes)
    ):
        message = "no node has an NCCL of the system; programs bring their own"
        yield Outcome("skip", tuple(versions), message, reason="not_applicable")
        return
    exempt = {
        node.name for node in context.nodes if _without_gpus(node) and versions[node.name] == NONE
    }
    if exempt:
        yield Outcome("skip", tuple(exempt), "no NCCL and no GPU here", reason="not_applicable")
    silent = {name for name, version in versions.items() if version == ""}
    for name in sorted(silent - exempt):
        message = "the system's NCCL does not say its version"
        yield Outcome("unknown", (name,), message, found[name].system or "", reason="garbled")
    known = {name: version for name, version in versions.items() if name not in silent | exempt}
    used = any(
        found[node].loaded is not None and found[node].loaded == found[node].system
        for node in known
    )
    for outcome in _as_required(context, known, exempt):
        yield replace(outcome, severity="error") if used else outcome


def _as_required(
    context: CheckContext, versions: dict[str, str], exempt: set[str]
) -> Iterable[Outcome]:
    undeclared = set()
    for node in context.nodes:
        seen, wanted = versions.get(node.name), context.wanted(node)
        if seen is None:
            continue
        if wanted is None:
            undeclared.add(node.name)
        elif satisfies(seen, wanted):
            yield Outcome("pass", (node.name,), "the system's NCCL is as required", seen, wanted)
        else:
            message = "the system's NCCL is not what the inventory requires"
            yield Outcome("fail", (node.name,), message, seen, wanted)
    if undeclared:
        yield from uniform_by_kind(
            context, versions, "the system's NCCL", about=undeclared, exempt=exempt
        )


def _system_version(libraries: Libraries) -> str:
    """The version, «none», or nothing where there is a file that could not be asked."""
    if libraries.system is None:
        return NONE
    return libraries.system_version or ""


def _without_gpus(node: Node) -> bool:
    return node.gpus is not None and node.gpus.count == 0


def plugins(context: CheckContext) -> Iterable[Outcome]:
    """The same files everywhere, and the one that NCCL_NET_PLUGIN names is there."""
    found: dict[str, Plugins] = context.values("nccl.plugins")
    for node in context.nodes:
        if (wanted := _not_found(found[node.name])) is not None:
            message = "NCCL_NET_PLUGIN names a plug-in that is not there; NCCL falls back to its own transports"
            cure = f"unset NCCL_NET_PLUGIN, or put the folder of {wanted} into LD_LIBRARY_PATH"
            there = _files(found[node.name].files)
            yield Outcome("fail", (node.name,), message, there, wanted, cure)
    if not any(plugins.files for plugins in found.values()) and not any(
        map(context.wanted, context.nodes)
    ):
        message = "no plug-in on any node: NCCL's own transports are used"
        if none := tuple(name for name, plugins in found.items() if _not_found(plugins) is None):
            yield Outcome("skip", none, message, reason="not_applicable")
        return
    yield from _same_plugins(context, found)


def _same_plugins(context: CheckContext, found: dict[str, Plugins]) -> Iterable[Outcome]:
    exempt = {
        node.name for node in context.nodes if _without_gpus(node) and not found[node.name].files
    }
    if exempt:
        yield Outcome("skip", tuple(exempt), "no plug-in and no GPU here", reason="not_applicable")
    unread = {
        name
        for name, plugins in found.items()
        if any(plugin.size is None for plugin in plugins.files)
    }
    if unread:
        message = "a plug-in is there and could not be read"
        yield Outcome("unknown", tuple(sorted(unread)), message, reason="denied")
    undeclared = set()
    for node in context.nodes:
        if node.name in exempt | unread:
            continue
        wanted = context.wanted(node)
        if wanted is None:
            undeclared.add(node.name)
            continue
        names = {plugin.name for plugin in found[node.name].files}
        good = parse_names(wanted) == names
        message = f"the plug-ins of NCCL are {'as required' if good else 'not what the inventory requires'}"
        yield Outcome(
            "pass" if good else "fail",
            (node.name,),
            message,
            ", ".join(sorted(names)) or NONE,
            wanted,
        )
    values = {
        name: _files(plugins.files)
        for name, plugins in found.items()
        if name not in exempt | unread
    }
    if undeclared:
        what = "the set of NCCL's plug-ins"
        yield from uniform_by_kind(context, values, what, about=undeclared, exempt=exempt)


def _files(files: tuple[Plugin, ...]) -> str:
    """Names with the start of their checksum, or their size where that was too large to read."""
    words = {f"{p.name} {p.sha256[:12] if p.sha256 else f'{p.size} bytes'}" for p in files}
    return ", ".join(sorted(words)) or NONE


def _not_found(plugins: Plugins) -> str | None:
    """The name that NCCL_NET_PLUGIN has and no file answers to. «none» asks for no plug-in."""
    names = [name for name in (plugins.wanted or "").split(",") if name and name != NONE]
    paths = {plugin.path for plugin in plugins.files}
    files = {plugin.name for plugin in plugins.files}
    there = any(
        name in paths or name in files or f"libnccl-net-{name}.so" in files for name in names
    )
    return ",".join(names) if names and not there else None


def parse_names(text: str) -> set[str]:
    """File names of plug-ins that `require: nccl.plugin` lists, or «none»."""
    names = {name.strip() for name in text.split(",") if name.strip()}
    if names == {NONE}:
        return set()
    if not names or not all(name.startswith("libnccl-") and ".so" in name for name in names):
        raise ValueError(f"expected file names such as libnccl-net.so, or none; seen '{text}'")
    return names


def python(context: CheckContext) -> Iterable[Outcome]:
    """Version and place; only the version where the inventory itself names different interpreters."""
    found: dict[str, Python] = context.values("python.env")
    one_path = len({node.python for node in context.inventory.nodes}) == 1
    values = {
        name: _place(python) if one_path else python.version for name, python in found.items()
    }
    undeclared = set()
    for node in context.nodes:
        wanted, mine = context.wanted(node), found[node.name]
        if wanted is None:
            undeclared.add(node.name)
        elif _is_wanted(mine, wanted):
            yield Outcome(
                "pass", (node.name,), "the job's Python is as required", _place(mine), wanted
            )
        else:
            message = "the job's Python is not what the inventory requires"
            yield Outcome("fail", (node.name,), message, _place(mine), wanted)
    if undeclared:
        yield from uniform(
            values, "the job's Python", len(context.inventory.nodes), about=undeclared
        )


def _place(python: Python) -> str:
    base = f", made from {python.base}" if python.base != python.prefix else ""
    return f"{python.version} {python.executable} in {python.prefix}{base}"


def _is_wanted(python: Python, wanted: str) -> bool:
    if wanted.startswith("/"):
        return wanted.rstrip("/") in (python.executable, python.prefix.rstrip("/"))
    return satisfies(python.version, wanted)


def parse_python_wanted(text: str) -> object:
    """An interpreter or the folder of an environment, else conditions on the version."""
    return text if text.startswith("/") else conditions_of(text)


SYSTEM = Check(
    "nccl.system",
    facts=("nccl.libraries",),
    judge=system_nccl,
    severity="warning",
    title="The system's NCCL",
    why="nccl-tests, MPI programs and torch builds without an NCCL of their own load the system's: two versions in one "
    "job hang or end with «internal error».",
    how="ncclGetVersion of the libnccl.so.2 that the loader finds for the job's user (LD_LIBRARY_PATH, ld.so.cache, "
    "the system's folders), equal on nodes of a kind. An error where the job's torch would load it, else a warning, "
    "for wheels bring their own: see nccl.torch. `require: {nccl.system: 2.21.5}` wants a version.",
    remedy="apt-get install --allow-change-held-packages libnccl2=VERSION   # the version of the other nodes",
    wants=conditions_of,
    proof=Proof("nccl.libraries", lambda found: replace(found, system_version="2.18.5")),
)
PLUGIN = Check(
    "nccl.plugin",
    facts=("nccl.plugins",),
    judge=plugins,
    severity="warning",
    title="NCCL's network and tuner plug-ins",
    why="A node without the plug-in of the others falls back to NCCL's own transports: slow, or no connection at all.",
    how="libnccl-net*.so and libnccl-tuner*.so where NCCL's loader looks (LD_LIBRARY_PATH, ld.so.cache, the system's "
    "folders) and NCCL_NET_PLUGIN of a session without a terminal; same names and SHA-256 on nodes of a kind. "
    "`require: {nccl.plugin: libnccl-net.so}` names the files, or none.",
    remedy="find / -xdev -name 'libnccl-net*.so*' -o -xdev -name 'libnccl-tuner*.so*'   # install the others' version",
    wants=parse_names,
    proof=Proof("nccl.plugins", lambda found: replace(found, files=())),
)
PYTHON = Check(
    "python.env",
    facts=("python.env",),
    judge=python,
    severity="warning",
    title="The job's Python",
    why="Another interpreter or environment on one node brings other packages: ranks differ in ways that no NCCL "
    "setting shows.",
    how="sys.executable, version, prefix and base prefix of `python:`, equal on all nodes; only the version where the "
    "inventory gives nodes different interpreters. `require: {python.env: 3.11}` wants a version, or a path.",
    remedy="ls -l $(command -v python3)   # use one environment, on a shared file system or from one image",
    wants=parse_python_wanted,
    proof=Proof("python.env", lambda found: replace(found, version="3.8.10")),
)
