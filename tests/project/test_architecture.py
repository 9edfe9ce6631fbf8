"""The rules of ARCHITECTURE.md, read off the syntax trees: who imports whom, who touches the world, who may speak."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "clusterprep"

# A module imports what stands before it and nothing behind it; a package counts as one. Who adds a module finds it
# a place here, and has then decided what it is.
ORDER = (
    # what training scripts import, and nothing of ours does
    "guard",
    # words and values
    "signals", "frozen", "awake", "errors", "past", "model", "wanted", "deeds", "units", "versions", "noderange",
    "neighbours", "pairing", "derived", "redaction", "strangers", "typed",
    "plugins", "diagnose",
    # what runs on nodes, and imports nothing
    "remote",
    # facts and what follows from them, without looking at anything
    "facts", "rails", "network", "gids", "env", "lint", "render", "checks", "registry", "resources",
    # what the user wants
    "inventory", "load", "here", "limit", "playbook",
    # stages that compute
    "plan", "tags", "settings", "stored", "judge", "compared", "gates", "linted", "diagnosed", "reach", "unified",
    "diff", "foresight", "rollback",
    # stages that act, and their means
    "history", "recalled", "transports", "budget", "deadline", "fanout", "pairs", "write", "returning", "stepping",
    "unstepping", "storing", "verify", "streams", "groups", "workarounds", "trial", "launch", "launching", "job",
    # the stages in a row, and what is shown of them
    "concluding", "run", "recorded", "selftest", "reports", "outputs", "explain", "options", "words", "terminal",
    "init", "earlier",
    "ending", "cli", "__main__",
)  # fmt: skip

# Libraries that only compute.
PURE = frozenset(
    "__future__ base64 binascii bisect collections dataclasses datetime difflib enum fnmatch functools hashlib "
    "ipaddress itertools json marshal math posixpath random re shlex statistics string textwrap types typing "
    "ClusterShell packaging".split()
)

# Modules that may import more than that, and why. Everything else only computes.
WORLDLY = {
    "__main__": "is the command line",
    "guard": "runs in the user's training scripts, and imports torch there",
    "cli": "reads options and the terminal, prints, asks, exits",
    "options": "declares options",
    "terminal": "shows and asks at the terminal",
    "diagnose.sources": "reads the user's logs",
    "init.command": "reads options, writes the inventory, tells what it wrote",
    "init.sources": "asks Slurm's own command for its nodes",
    "ending": "says how a command ended, writes the log of a bug, exits",
    "load": "reads the user's files",
    "inventory": "reads the user's files, and the schemas and name lists that came with us",
    "playbook": "reads the user's files and ours",
    "here": "names this machine for `check --local`",
    "frozen": "has a lock, as threads may want the first value of a class together",
    "env.variables": "reads the registry of variables that came with us",
    "history": "keeps runs and what was given to the nodes in SQLite",
    "recorded": "takes the time of a run that an error ended",
    "earlier": "declares the options of the commands about earlier runs, ends them",
    "plugins": "finds plug-ins by their files",
    "awake": "watches the clock, from a thread",
    "signals": "asks how signals are dealt with",
    "budget": "knows when its process was started",
    "deadline": "listens to signals and the alarm clock",
    "fanout": "starts threads and watches the clock",
    "job": "notes when a command began",
    "concluding": "takes the time of a run",
    "returning": "waits for nodes that go down",
    "stepping": "does what steps say",
    "selftest": "plays the recordings that came with us",
    "transports": "reaches other machines",
    "remote": "runs on nodes, but for boot, which reads the source of the others",
    "groups": "takes the time of the group tests",
    "streams": "takes the time of the links stage, and draws the word that agents know each other by",
    "launch.follow": "runs processes on nodes, listens to them and watches the clock",
    "launch.logs": "writes what ranks print",
    "words": "knows the folder and the variables of whoever launches",
    "launching": "takes the time of lines",
    "verify.collect": "runs ranks on nodes and waits for them",
    "outputs": "writes reports to files",
    "reports": "renders through rich, loaded when asked for, and shows progress while a command runs",
}

# Calls that read, write or look at the clock without an import that gives them away.
IMPURE_CALLS = frozenset(
    {"open", "read_text", "read_bytes", "write_text", "write_bytes", "now", "today", "utcnow"}
)

# Modules that may print, ask or exit: the command line, and processes on nodes, which end and report by themselves.
SPEAKERS = {
    "cli": "speaks to people",
    "terminal": "speaks to people",
    "diagnose.sources": "reads standard input for `-`",
    "init.command": "is a part of the command line",
    "earlier": "is a part of the command line",
    "ending": "says how a command ended",
    "deadline": "ends the process at the second signal, as the contract wants",
    "remote": "runs in processes of its own",
}
SPEECH = frozenset(
    "print input exit quit SystemExit sys.exit sys.stdout sys.stderr sys.stdin os._exit os.abort "
    "click.echo click.secho click.prompt click.confirm click.pause getpass.getpass".split()
)

ON_CONTROLLER = {"boot"}  # of remote/: it sends the others
WRITING = {
    "act",
    "disk",
    "steps",
    "store",
    "ranks",
    "job",
    "trial",
}  # of what runs on nodes; `check` sends none
JOB_LIBRARIES = {"trial": {"torch"}}  # the job's own interpreter runs this one

VAGUE_NAMES = frozenset(
    {"utils", "util", "common", "helpers", "helper", "manager", "base", "misc", "core", "lib"}
)
MAX_FILE, MAX_FUNCTION = 400, 50  # lines

MIRRORED = (
    "checks",
    "facts",
    "env",
    "resources",
)  # every file of these has its test; of transports those that open

MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
ON_NODES = tuple(
    name.split(".")[1]
    for name in MODULES
    if name.startswith("remote.") and name[7:] not in ON_CONTROLLER
)


@functools.cache
def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module, parsed when first asked for: collecting tests needs none."""
    path = MODULES[module]
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def top(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def excused(module: str, table: dict[str, str]) -> bool:
    return module in table or top(module) in table


def imports(module: str) -> Iterator[tuple[str, int]]:
    """What a module imports, with the line: ours without the package's name in front, others by their first name."""
    for node in ast.walk(tree_of(module)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{MODULES[module]}:{node.lineno}: imports are absolute here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            first, _, rest = name.partition(".")
            if first != "clusterprep":
                yield first, node.lineno
            elif rest and not rest.startswith("__version__"):
                yield f"clusterprep.{rest}", node.lineno


def ours(module: str) -> Iterator[tuple[str, int]]:
    for name, line in imports(module):
        if name.startswith("clusterprep."):
            yield name.removeprefix("clusterprep."), line


def foreign(module: str) -> Iterator[tuple[str, int]]:
    return ((name, line) for name, line in imports(module) if not name.startswith("clusterprep."))


def dotted(node: ast.AST) -> str:
    """`sys.exit` of the expression sys.exit, empty for what is no plain name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def names_used(module: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Name | ast.Attribute) and (name := dotted(node)):
            yield name, node.lineno


def calls(module: str) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Call):
            func = node.func
            yield (dotted(func) or (func.attr if isinstance(func, ast.Attribute) else "")), node


def place(module: str, line: int) -> str:
    return f"{MODULES[module].relative_to(ROOT)}:{line}"


def none(found: list[str], rule: str) -> None:
    """Fail with every place that breaks a rule."""
    assert not found, "\n".join([rule, *found])


def plug_ins(package: str) -> list[str]:
    return [name for name in MODULES if name.startswith(f"{package}.") and name.count(".") == 1]


# ---------------------------------------------------------------- who imports whom


def test_every_module_has_its_place() -> None:
    there = {top(name) for name in MODULES if name != "clusterprep" and name}
    there.discard("__init__")
    none(sorted(there - set(ORDER)), "has no place in ORDER yet:")
    none(sorted(set(ORDER) - there), "is in ORDER and not there:")


def test_imports_point_one_way() -> None:
    rank = {name: number for number, name in enumerate(ORDER)}
    found = [
        f"{place(module, line)}: {module} imports {target}"
        for module in MODULES
        for target, line in ours(module)
        if top(module) in rank and top(target) in rank and rank[top(target)] > rank[top(module)]
    ]
    none(found, "a module imports only what stands before it in ORDER:")


def test_what_computes_touches_nothing() -> None:
    found = [
        f"{place(module, line)}: {module} imports {name}"
        for module in MODULES
        if not excused(module, WORLDLY)
        for name, line in foreign(module)
        if name not in PURE
    ]
    found += [
        f"{place(module, call.lineno)}: {module} calls {name}"
        for module in MODULES
        if not excused(module, WORLDLY)
        for name, call in calls(module)
        if name.split(".")[-1] in IMPURE_CALLS
    ]
    none(found, "only modules in WORLDLY may touch the world:")


def test_every_exception_is_still_needed() -> None:
    there = {*MODULES, *map(top, MODULES)}
    none(sorted({*WORLDLY, *SPEAKERS} - there), "is excused and not there:")
    idle = [
        name
        for name in WORLDLY
        if not any(
            lib not in PURE for m in MODULES if m == name or top(m) == name for lib, _ in foreign(m)
        )
        and name != "__main__"
    ]
    none(idle, "is in WORLDLY and only computes:")


def test_the_controller_never_imports_torch() -> None:
    found = [
        place(module, line)
        for module in MODULES
        if module not in ("remote.trial", "guard")
        for name, line in foreign(module)
        if name == "torch"
    ]
    none(found, "torch is imported by ranks alone:")


def at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Everything but annotations, which are not evaluated."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST):
                yield node
                yield from at_run_time(node)


def test_the_guard_stands_alone_and_is_python_3_8() -> None:
    """It is imported, or copied, into the environments of jobs, which have torch and may be old."""
    ast.parse(MODULES["guard"].read_text(), feature_version=(3, 8))
    assert not list(ours("guard"))
    assert {name for name, _ in foreign("guard")} <= sys.stdlib_module_names | {
        "torch",
        "numpy",
        "__future__",
    }
    subscripted = [
        ast.unparse(node.value)
        for node in at_run_time(tree_of("guard"))
        if isinstance(node, ast.Subscript)
    ]
    assert not {"Callable", "Iterator", "Sequence", "dict", "list", "tuple"} & set(subscripted), (
        "Python 3.9"
    )
    package = ast.parse((PACKAGE / "__init__.py").read_text())
    assert not [node for node in ast.walk(package) if isinstance(node, ast.Import | ast.ImportFrom)]
    none(
        [
            place(module, line)
            for module in MODULES
            for name, line in ours(module)
            if name == "guard"
        ],
        "is not ours:",
    )


# ---------------------------------------------------------------- speech


def test_only_the_command_line_prints_asks_and_exits() -> None:
    found = [
        f"{place(module, line)}: {name}"
        for module in MODULES
        if not excused(module, SPEAKERS)
        for name, line in names_used(module)
        if name in SPEECH
    ]
    none(found, "only cli prints, asks and exits:")


# ---------------------------------------------------------------- what runs on nodes


@pytest.mark.parametrize("part", ON_NODES)
def test_what_runs_on_nodes_is_python_3_6(part: str) -> None:
    ast.parse(MODULES[f"remote.{part}"].read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("part", ON_NODES)
def test_what_runs_on_nodes_needs_the_standard_library_alone(part: str) -> None:
    allowed = sys.stdlib_module_names | JOB_LIBRARIES.get(part, set())
    found = [
        f"{place(f'remote.{part}', n)}: {name}"
        for name, n in foreign(f"remote.{part}")
        if name not in allowed
    ]
    found += [
        f"{place(f'remote.{part}', line)}: {name}"
        for name, line in ours(f"remote.{part}")
        if not name.startswith("remote.") or name.split(".")[1] not in ON_NODES
    ]
    none(found, "no node has this library:")


@pytest.mark.parametrize("part", [part for part in ON_NODES if part not in WRITING])
def test_looking_cannot_write(part: str) -> None:
    """`check` sends the reading parts alone, so it cannot write: the code that writes is not there."""
    writers = {
        "os.rename",
        "os.replace",
        "os.unlink",
        "os.remove",
        "os.rmdir",
        "os.mkdir",
        "os.makedirs",
        "os.chmod",
    }
    writers |= {
        "os.chown",
        "os.truncate",
        "os.ftruncate",
        "os.symlink",
        "os.link",
        "os.mknod",
        "os.open",
    }
    found = [
        place(f"remote.{part}", line)
        for name, line in names_used(f"remote.{part}")
        if name in writers
    ]
    found += [
        place(f"remote.{part}", call.lineno)
        for name, call in calls(f"remote.{part}")
        if name == "open"
        and not (len(call.args) > 1 and ast.unparse(call.args[1]) in ("'rb'", "'r'"))
    ]
    found = [where for where in found if not reads_only(where)]
    none(found, "what only looks does not write:")
    assert not {"shutil", "tempfile"} & {name for name, _ in foreign(f"remote.{part}")}


def reads_only(where: str) -> bool:
    """Whether a line opens for reading, or /dev/null for a child's streams."""
    path, line = where.split(":")
    text = (ROOT / path).read_text().splitlines()[int(line) - 1]
    return "os.O_RDONLY" in text or "/dev/null" in text


# ---------------------------------------------------------------- plug-ins and their tests


@pytest.mark.parametrize("name", [name for package in MIRRORED for name in plug_ins(package)])
def test_every_plug_in_has_its_test(name: str) -> None:
    package, plug_in = name.split(".")
    assert (ROOT / "tests" / package / f"test_{plug_in}.py").exists(), (
        f"write tests/{package}/test_{plug_in}.py"
    )


def test_every_transport_has_its_test() -> None:
    opening = [
        name.split(".")[1]
        for name in plug_ins("transports")
        for node in tree_of(name).body
        if isinstance(node, ast.ClassDef)
        and node.name == f"{name.split('.')[1].capitalize()}Transport"
    ]
    none(
        [t for t in opening if not (ROOT / f"tests/remote/transports/test_{t}.py").exists()],
        "has no test:",
    )
    assert "ssh" in opening
    assert "local" in opening


# ---------------------------------------------------------------- size and names


def test_no_file_has_grown_into_a_god() -> None:
    sizes = {place(name, 1): len(path.read_text().splitlines()) for name, path in MODULES.items()}
    none(
        [f"{where}: {n} lines" for where, n in sizes.items() if n > MAX_FILE],
        f"more than {MAX_FILE} lines:",
    )


def test_no_function_has_grown_into_a_god() -> None:
    found = [
        f"{place(module, node.lineno)}: {node.name} has {size} lines"
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION
    ]
    none(found, f"more than {MAX_FUNCTION} lines:")


# Modules that catch every exception where no signal and no limit can fall, as they work in other threads or in others'
# processes; `ending` is where all of them end.
NEVER_INTERRUPTED = (
    "guard", "ending", "fanout", "transports.ssh", "transports.ssh_connection", "transports.ssh_keys",
    "verify.collect", "launch.follow",
)  # fmt: skip


def test_a_handler_of_all_exceptions_lets_signals_and_limits_through() -> None:
    for name in MODULES:
        if name in NEVER_INTERRUPTED or name.removeprefix("remote.") in ON_NODES:
            continue
        for node in ast.walk(tree_of(name)):
            handlers = node.handlers if isinstance(node, ast.Try) else []
            kinds = [
                ast.unparse(handler.type) if handler.type else "BaseException"
                for handler in handlers
            ]
            if "Exception" in kinds:
                assert "ENDINGS" in kinds[: kinds.index("Exception")], (
                    f"{place(name, node.lineno)}: let ENDINGS through"
                )


def test_names_say_what_is_inside() -> None:
    none([name for name in MODULES if VAGUE_NAMES & set(name.split("."))], "says nothing:")


def test_every_module_says_why_it_exists() -> None:
    none(
        [place(name, 1) for name in MODULES if not ast.get_docstring(tree_of(name))],
        "has no first sentence:",
    )
