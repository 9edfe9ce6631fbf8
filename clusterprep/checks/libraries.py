"""Judges what else the job's processes load: the system's NCCL, NCCL's plug-ins, and Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    failed,
    passed,
    uniform,
    uniform_by_kind,
)
from clusterprep.facts.torch import Libraries, NotStarting, Plugin, Plugins, Python
from clusterprep.model import Node
from clusterprep.model.versions import conditions_of, satisfies
from clusterprep.remedies import Remedy, sentence, shell_line

NONE = "none"


def system_nccl(context: CheckContext) -> Iterable[Outcome]:
    """Compare the versions of all nodes; a failure is an error only if a job's torch loads one."""
    libraries: dict[str, Libraries] = context.values("nccl.libraries")
    versions = {name: _system_version(found) for name, found in libraries.items()}
    is_absent = set(versions.values()) <= {NONE}
    if is_absent and not _any_declared(context):
        message = "no node has an NCCL of the system; programs bring their own"
        yield Outcome("skip", tuple(versions), message, reason="not_applicable")
        return
    exempt = _without_need(context, versions)
    if exempt:
        yield Outcome("skip", tuple(exempt), "no NCCL and no GPU here", reason="not_applicable")
    silent = sorted(name for name, version in versions.items() if not version)
    for name in silent:
        yield _version_not_known(name, libraries[name])
    known = {}
    for name, version in versions.items():
        if version and name not in exempt:
            known[name] = version
    is_used = any(_torch_loads_system(libraries[name]) for name in known)
    for outcome in _judge_system_versions(context, known, exempt):
        yield replace(outcome, severity="error") if is_used else outcome


def _without_need(context: CheckContext, versions: Mapping[str, str]) -> set[str]:
    """Return the nodes that have no NCCL of the system and are declared to have no GPU."""
    names = set()
    for node in context.nodes:
        if _declares_no_gpus(node) and versions[node.name] == NONE:
            names.add(node.name)
    return names


def _version_not_known(name: str, libraries: Libraries) -> Outcome:
    message = "the system's NCCL does not say its version"
    seen = libraries.system or ""
    return Outcome("unknown", (name,), message, seen, reason="garbled")


def _any_declared(context: CheckContext) -> bool:
    """Return whether the inventory requires something of this check on any node."""
    return any(context.wanted(node) for node in context.nodes)


def _torch_loads_system(libraries: Libraries) -> bool:
    return libraries.loaded is not None and libraries.loaded == libraries.system


def _judge_system_versions(
    context: CheckContext, versions: dict[str, str], exempt: set[str]
) -> Iterable[Outcome]:
    """Judge versions by `require:`, and compare those of the other nodes within their kind."""
    what = "the system's NCCL"
    undeclared = set()
    for node in context.nodes:
        seen = versions.get(node.name)
        wanted = context.wanted(node)
        if seen is None:
            continue
        if wanted is None:
            undeclared.add(node.name)
        elif satisfies(seen, wanted):
            yield passed(node, f"{what} is as required", seen, wanted)
        else:
            message = f"{what} is not what the inventory requires"
            yield failed(node, message, seen, wanted, _install(wanted))
    if undeclared:
        for outcome in uniform_by_kind(
            context,
            versions,
            what,
            about=undeclared,
            exempt=exempt,
        ):
            remedy = _install(outcome.wanted) or outcome.remedy
            yield replace(outcome, remedy=remedy)


def _install(version: str) -> Remedy | None:
    """Return the command for one version, None for conditions, for none and for no majority."""
    if not version[:1].isdigit():
        return None
    return shell_line(
        "apt-get install --allow-change-held-packages {package}",
        package=f"libnccl2={version}*",
    )


def _system_version(libraries: Libraries) -> str:
    """Return the version, «none», or an empty text where a file exists that could not be asked."""
    if libraries.system is None:
        return NONE
    return libraries.system_version or ""


def _declares_no_gpus(node: Node) -> bool:
    return node.gpus is not None and node.gpus.count == 0


def plugins(context: CheckContext) -> Iterable[Outcome]:
    """Compare the plug-ins of all nodes, and look for the one that NCCL_NET_PLUGIN names."""
    plugins_by_node: dict[str, Plugins] = context.values("nccl.plugins")
    nodes_without_missing: list[str] = []
    for node in context.nodes:
        found = plugins_by_node[node.name]
        missing = _missing_plugin(found)
        if missing is None:
            nodes_without_missing.append(node.name)
        else:
            yield _judge_missing_plugin(node, found, missing)
    any_files = any(found.files for found in plugins_by_node.values())
    if any_files or _any_declared(context):
        yield from _judge_files(context, plugins_by_node)
    elif nodes_without_missing:
        message = "no plug-in on any node: NCCL's own transports are used"
        yield Outcome("skip", tuple(nodes_without_missing), message, reason="not_applicable")


def _judge_missing_plugin(node: Node, found: Plugins, missing: str) -> Outcome:
    effect = "NCCL falls back to its own transports"
    message = f"NCCL_NET_PLUGIN names a plug-in that is not there; {effect}"
    cure = sentence(
        "unset NCCL_NET_PLUGIN, or put the folder of {missing} into LD_LIBRARY_PATH",
        missing=missing,
    )
    return failed(
        node,
        message,
        _describe_files(found.files),
        missing,
        cure,
    )


def _judge_files(context: CheckContext, plugins_by_node: dict[str, Plugins]) -> Iterable[Outcome]:
    """Judge files by `require:`, and compare those of the other nodes within their kind."""
    exempt = set()
    unreadable = set()
    for node in context.nodes:
        files = plugins_by_node[node.name].files
        if not files and _declares_no_gpus(node):
            exempt.add(node.name)
        if any(plugin.size is None for plugin in files):
            unreadable.add(node.name)
    if exempt:
        message = "no plug-in and no GPU here"
        yield Outcome("skip", tuple(exempt), message, reason="not_applicable")
    if unreadable:
        message = "a plug-in is there and could not be read"
        yield Outcome("unknown", tuple(sorted(unreadable)), message, reason="denied")
    undeclared = set()
    values = {}
    for node in context.nodes:
        if node.name in exempt or node.name in unreadable:
            continue
        files = plugins_by_node[node.name].files
        values[node.name] = _describe_files(files)
        wanted = context.wanted(node)
        if wanted is None:
            undeclared.add(node.name)
        else:
            yield _judge_file_names(node, files, wanted)
    if undeclared:
        what = "the set of NCCL's plug-ins"
        yield from uniform_by_kind(
            context,
            values,
            what,
            about=undeclared,
            exempt=exempt,
        )


def _judge_file_names(node: Node, files: tuple[Plugin, ...], wanted: str) -> Outcome:
    names = {plugin.name for plugin in files}
    seen = ", ".join(sorted(names)) or NONE
    if parse_names(wanted) == names:
        return passed(node, "the plug-ins of NCCL are as required", seen, wanted)
    message = "the plug-ins of NCCL are not what the inventory requires"
    return failed(node, message, seen, wanted)


def _describe_files(files: tuple[Plugin, ...]) -> str:
    """Return the names with the start of their SHA-256, or the size where a file was too large."""
    texts = set()
    for plugin in files:
        identity = plugin.sha256[:12] if plugin.sha256 else f"{plugin.size} bytes"
        texts.add(f"{plugin.name} {identity}")
    return ", ".join(sorted(texts)) or NONE


def _missing_plugin(plugins: Plugins) -> str | None:
    """Return the value of NCCL_NET_PLUGIN if no file is meant by it. «none» asks for no plug-in."""
    candidates = set()
    for plugin in plugins.files:
        candidates |= {plugin.path, plugin.name}
    names = []
    for name in (plugins.wanted or "").split(","):
        if not name or name == NONE:
            continue
        names.append(name)
        if name in candidates or f"libnccl-net-{name}.so" in candidates:
            return None
    return ",".join(names) or None


def parse_names(text: str) -> set[str]:
    """Return the file names of plug-ins in `require: nccl.plugin`; no names for «none».

    Raises ValueError for other text.
    """
    names = {name.strip() for name in text.split(",") if name.strip()}
    if names == {NONE}:
        return set()
    if not names or not all(_is_plugin_name(name) for name in names):
        raise ValueError(f"expected file names such as libnccl-net.so, or none; seen '{text}'")
    return names


def _is_plugin_name(name: str) -> bool:
    return name.startswith("libnccl-") and ".so" in name


def python(context: CheckContext) -> Iterable[Outcome]:
    """Compare version and place; only the version if the inventory names several interpreters.

    An interpreter that does not start fails by itself, and is compared with no other.
    """
    nodes = context.inventory.nodes
    pythons: dict[str, Python | NotStarting] = context.values("python.env")
    one_path = len({(node.python, node.runtime) for node in nodes}) == 1
    values = {}
    undeclared = set()
    for node in context.nodes:
        interpreter = pythons[node.name]
        if isinstance(interpreter, NotStarting):
            yield _not_starting(node, interpreter.words)
            continue
        seen = _describe_python(interpreter)
        values[node.name] = seen if one_path else interpreter.version
        wanted = context.wanted(node)
        if wanted is None:
            undeclared.add(node.name)
        elif _is_wanted(interpreter, wanted):
            yield passed(node, "the job's Python is as required", seen, wanted)
        else:
            yield failed(node, "the job's Python is not what the inventory requires", seen, wanted)
    if undeclared:
        yield from uniform(values, "the job's Python", len(nodes), about=undeclared)


def _not_starting(node: Node, words: str) -> Outcome:
    message = f"{node.python} does not start, and so no rank does"
    cure = _start_cure(node, words)
    return failed(
        node,
        message,
        words,
        "an interpreter that starts",
        cure,
        "error",
    )


def _start_cure(node: Node, words: str) -> Remedy:
    """Return what helps an interpreter to start, by what its loader says."""
    if "version `" in words and "not found" in words:
        return sentence(
            "its libraries are newer than the node's: give these nodes an environment that was "
            "made on their distribution (python: in a group of the inventory), or a container "
            "(runtime:)"
        )
    user = node.job_user or node.ssh.user or "the job's user"
    if "is closed to" in words:
        return shell_line(
            "namei -l {python}   # on the node: open what is closed to {user}, or set `python:` to "
            "an interpreter that this user may run",
            python=node.python,
            user=user,
        )
    if "shared librar" in words:
        return shell_line(
            "ldd {python} | grep 'not found'   # as {user}: install that library, or correct "
            "LD_LIBRARY_PATH",
            python=node.python,
            user=user,
        )
    return shell_line(
        "{python} -c pass   # as {user}, on the node: it has to end without an error",
        python=node.python,
        user=user,
    )


def _describe_python(python: Python) -> str:
    text = f"{python.version} {python.executable} in {python.prefix}"
    if python.base == python.prefix:
        return text
    return f"{text}, made from {python.base}"


def _is_wanted(python: Python, wanted: str) -> bool:
    if not wanted.startswith("/"):
        return satisfies(python.version, wanted)
    path = wanted.rstrip("/")
    return path in (python.executable, python.prefix.rstrip("/"))


def parse_python_wanted(text: str) -> object:
    """Parse a path of an interpreter or environment, else conditions on the version."""
    return text if text.startswith("/") else conditions_of(text)


SYSTEM = Check(
    "nccl.system",
    facts=("nccl.libraries",),
    judge=system_nccl,
    severity="warning",
    follows=("env.ld_path",),
    title="The system's NCCL",
    why="nccl-tests, MPI programs and torch builds without an NCCL of their own load the system's: "
    "two versions in one job hang or end with «internal error».",
    how="ncclGetVersion of the libnccl.so.2 that the loader finds for the job's user "
    "(LD_LIBRARY_PATH, ld.so.cache, the system's folders), equal on nodes of a kind. An error "
    "where the job's torch would load it, else a warning, for wheels bring their own: see "
    "nccl.torch. `require: {nccl.system: 2.21.5}` wants a version.",
    remedy=sentence("install the system's NCCL of the other nodes"),
    wants=conditions_of,
    proof=Proof("nccl.libraries", lambda found: replace(found, system_version="2.22.3")),
)
PLUGIN = Check(
    "nccl.plugin",
    facts=("nccl.plugins",),
    judge=plugins,
    severity="warning",
    title="NCCL's network and tuner plug-ins",
    why="A node without the plug-in of the others falls back to NCCL's own transports: slow, or no "
    "connection at all.",
    how="libnccl-net*.so and libnccl-tuner*.so where NCCL's loader looks (LD_LIBRARY_PATH, "
    "ld.so.cache, the system's folders) and NCCL_NET_PLUGIN of a session without a terminal; same "
    "names and SHA-256 on nodes of a kind. `require: {nccl.plugin: libnccl-net.so}` names the "
    "files, or none.",
    remedy=shell_line(
        "find / -xdev -name 'libnccl-net*.so*' -o -xdev -name 'libnccl-tuner*.so*'   # install "
        "the others' version"
    ),
    wants=parse_names,
    proof=Proof("nccl.plugins", lambda found: replace(found, files=())),
)
PYTHON = Check(
    "python.env",
    facts=("python.env",),
    judge=python,
    severity="warning",
    grade="an error where the interpreter does not start, else a warning",
    title="The job's Python",
    why="Another interpreter or environment on one node brings other packages: ranks differ in "
    "ways that no NCCL setting shows. One that was built for a newer glibc does not start at all.",
    how="sys.executable, version, prefix and base prefix of `python:`, equal on all nodes; only "
    "the version where the inventory gives nodes different interpreters. `require: {python.env: "
    "==3.11.*}` wants a version, or a path.",
    remedy=shell_line(
        "ls -l $(command -v python3)   # use one environment, on a shared file system or from "
        "one image"
    ),
    wants=parse_python_wanted,
    proof=Proof("python.env", lambda found: replace(found, version="3.8.10")),
)
