"""The rules of ARCHITECTURE.md, read off the syntax trees.

Which module imports which, which ones touch the world, which ones may print.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "clusterprep"

# A package imports what stands before it and nothing behind it. The `__init__` of each says what it
# is for.
ORDER = (
    "guard",  # imported by training scripts, and by nothing else here
    "remedies", "errors", "runtime", "model", "remote", "facts", "nccl", "history", "checks",
    "survey", "jobs", "inventory", "fabric", "reports", "changes", "cli", "api",
    "__main__",
)  # fmt: skip

# The same within a package whose parts are packages too.
INNER_ORDER = {
    "remote": ("untrusted", "agent", "bootstrap", "transports"),
    "nccl": ("rails", "interfaces", "gids", "variables", "lint", "environment", "launch_paths"),
}

# Modules with dataclasses of their own, and why. All other values are Structs.
DATACLASSES = {
    "errors": "is imported by --help, which shall not wait for msgspec",
    "changes.key_pair": "keeps a private key out of what repr() shows",
}

MOST_ENTRIES = 20  # files and folders directly in the package: what fits on one screen

# Libraries that only compute.
PURE = frozenset(
    "__future__ array base64 binascii bisect collections dataclasses datetime difflib enum fnmatch "
    "functools hashlib ipaddress itertools json marshal math msgspec operator posixpath random re "
    "shlex statistics string struct textwrap types typing ClusterShell packaging".split()
)

# Modules that may import more than that, and why. Everything else only computes.
WORLDLY = {
    "__main__": "is the command line",
    "guard": "runs in the user's training scripts, and imports torch there",
    "api": "runs each command in a thread of its own",
    "cli.main": "reads options and the terminal, prints, asks, exits",
    "cli.options": "declares options",
    "cli.completion": "reads the inventory of the line that is being typed",
    "cli.terminal": "shows and asks at the terminal",
    "cli.output": "writes to stdout and stderr",
    "jobs.diagnose.sources": "reads the user's logs",
    "jobs.diagnose.messages": "reads the tables of messages that came with us",
    "jobs.diagnose.records.reading": "reads dumps of the user's jobs",
    "cli.mcp.answers": "looks at the files that the user lets it read",
    "cli.mcp.server": "serves a protocol over stdin and stdout",
    "cli.mcp.command": "declares the options of the server",
    "cli.init.command": "reads options, writes the inventory, tells what it wrote",
    "cli.init.sources": "asks Slurm's own command for its nodes",
    "cli.exit": "says how a command ended, writes the log of a bug, exits",
    "inventory.load": "reads the user's files",
    "inventory": "reads the user's files, and the schemas and name lists that came with us",
    "changes.playbook": "reads the user's files and ours",
    "fabric": "reaches nodes through Fabric, for people and scripts",
    "cli.everyday": "declares the options of exec, copy and fetch, ends them",
    "cli.commands.everyday": "reads the file to be copied and the script",
    "cli.commands.bundle": "reads the inventory and logs, and takes the time of the command",
    "cli.commands.evidence": "watches the clock, and keeps archives from before reboots",
    "inventory.local": "names this machine for `check --local`",
    "nccl.variables.variables": "reads the registry of variables that came with us",
    "checks.known_bad": "reads the table of bad versions that came with us",
    "history": "keeps runs and what was given to the nodes in SQLite",
    "cli.commands.record": "takes the time of a run that an error ended",
    "cli.history": "declares the options of the commands about earlier runs, ends them",
    "cli.certificate": "declares the options of `certificate`, ends it",
    "cli.commands.certificate": "reads the file of a certificate",
    "cli.signing": "runs ssh-keygen",
    "cli.commands.acceptance": "writes the certificate",
    "jobs.acceptance.rounds": "repeats trials for a time",
    "runtime.cycles": "sets thresholds of the garbage collector",
    "runtime.plugins": "finds plug-ins by their files",
    "runtime.files": "opens the files that the controller writes",
    "runtime.clock": "watches the clock, from a thread",
    "runtime.signals": "takes the signals of the process",
    "runtime.supervisor": "waits for signals and watches the clock",
    "runtime.budget": "knows when its process was started",
    "runtime.deadline": "watches the clock for the time limit, and has a lock",
    "survey.fanout": "starts threads and watches the clock",
    "survey.open_files": "counts the open files of this process",
    "survey.worker_pool": "runs work in threads",
    "survey.senders": "sends in threads",
    "cli.commands.write_stages": "rolls back what was written when an error ends a command",
    "runtime.user": "asks who the user of this process is",
    "survey.parse_process": "starts the process that parses large answers, and is that process",
    "survey.clock_sync": "reads the clock of this machine",
    "cli.commands.gate_command": "runs the user's command between two batches",
    "cli.commands.roll_out": "names a rollback of all batches by the clock",
    "cli.commands.session": "notes when a command began",
    "cli.commands.opening": "notes when a command began",
    "cli.commands.report": "takes the time of a run",
    "cli.webhook": "sends what a watch saw to a URL, from a thread",
    "cli.commands.watch": "waits from one look to the next, and takes the time of each",
    "changes.key_pair": "makes and keeps the key with which nodes log in to each other",
    "changes.reboot": "waits for nodes that go down",
    "changes.step_runner": "does what steps say",
    "cli.commands.selftest": "plays the recordings that came with us",
    "remote.bootstrap": "reads the source of what runs on nodes",
    "remote.transports": "reaches other machines",
    "remote.agent": "runs on nodes",
    "jobs.stress.collect": "runs processes on nodes and watches the clock",
    "jobs.load.sampling": "takes the time between two looks",
    "jobs.verify.group_measurement": "takes the time of the group tests",
    "jobs.verify.link_measurement": (
        "takes the time of the links stage, and draws the word that agents know each other by"
    ),
    "jobs.verify.shared_marks": "draws the names of marks",
    "jobs.launch.follow": "runs processes on nodes, listens to them and watches the clock",
    "jobs.launch.logs": "writes what ranks print",
    "jobs.launch.waiting_lines": "counts lines for many threads",
    "jobs.bisection.files": "keeps runs in the state folder",
    "jobs.bisection.stage": "takes the time of runs",
    "cli.arguments": "knows the folder and the variables of the user who launches",
    "cli.inventory_argument": "looks for ./inventory.yaml, and reads standard input for `-`",
    "jobs.launch.stage": "takes the time of lines",
    "jobs.verify.collect": "runs ranks on nodes and waits for them",
    "reports.files": "writes reports to files",
    "reports": (
        "renders through rich, loaded when asked for, and shows progress while a command runs"
    ),
}

# Calls that read, write or look at the clock without an import that gives them away.
IMPURE_CALLS = frozenset(
    {"open", "read_text", "read_bytes", "write_text", "write_bytes", "now", "today", "utcnow"}
)

# Modules that may print, ask or exit: the command line, and processes on nodes, which end and
# report by themselves.
SPEAKERS = {
    "cli.main": "speaks to people",
    "cli.terminal": "speaks to people",
    "cli.output": "speaks to people",
    "jobs.diagnose.sources": "reads standard input for `-`",
    "jobs.diagnose.records.reading": "reads standard input for `-`",
    "cli.init.command": "is a part of the command line",
    "cli.history": "is a part of the command line",
    "cli.everyday": "is a part of the command line",
    "cli.inventory_argument": "reads standard input for `-`",
    "fabric.connection": "looks whether stdin is a terminal",
    "fabric.tasks": "takes the exit of a task as its result",
    "inventory.site.plugins": "takes the exit of a site's function as its error",
    "cli.exit": "says how a command ended",
    "__main__": "ends at a signal before signals are taken",
    "survey.parse_process": "is also the process that it starts, and answers on its stdout",
    "remote.transports.worker_process": "is a process, and ends it",
    "remote.agent": "runs in processes of its own",
}
SPEECH = frozenset(
    "print input exit quit SystemExit sys.exit sys.stdout sys.stderr sys.stdin os._exit os.abort "
    "click.echo click.secho click.prompt click.confirm click.pause getpass.getpass".split()
)

WRITING = {
    "act",
    "disk",
    "steps",
    "store",
    "ranks",
    "job",
    "output",
    "copying",
    "trial",
    "stress",
    "shared_marks",
}  # of what runs on nodes; `check` sends none
# The job's own interpreter runs these.
JOB_LIBRARIES = {"trial": {"torch"}, "stress": {"torch"}}

VAGUE_NAMES = frozenset(
    {"utils", "util", "common", "helpers", "helper", "manager", "base", "misc", "core", "lib"}
)

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
ON_NODES = tuple(name.rpartition(".")[2] for name in MODULES if name.startswith("remote.agent."))


@functools.cache
def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module, parsed when first asked for.

    Collecting tests needs none.
    """
    path = MODULES[module]
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def top(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def enclosing(module: str) -> list[str]:
    """Return a module's name and those of the packages around it: a.b.c, a.b, a."""
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def excused(module: str, table: dict[str, str]) -> bool:
    return any(name in table for name in enclosing(module))


@functools.cache
def imports(module: str) -> tuple[tuple[str, int], ...]:
    """Return what a module imports, with the lines.

    Names of ours are whole (clusterprep.model.Node), of others only the first part.
    """
    found: list[tuple[str, int]] = []
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
                found.append((first, node.lineno))
            elif rest and not rest.startswith("__version__"):
                found.append((f"clusterprep.{rest}", node.lineno))
    return tuple(found)


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
    depth = package.count(".") + 1
    return [name for name in MODULES if name.startswith(f"{package}.") and name.count(".") == depth]


# ---------------------------------------------------------------- which module imports which


def test_the_package_is_as_broad_as_a_screen() -> None:
    entries = {path.name for path in PACKAGE.iterdir() if not path.name.startswith("__")}
    entries.discard("py.typed")
    assert len(entries) <= MOST_ENTRIES, sorted(entries)


def test_every_package_has_its_place() -> None:
    there = {top(name) for name in MODULES if name and name != "__init__"}
    none(sorted(there - set(ORDER)), "has no place in ORDER yet:")
    none(sorted(set(ORDER) - there), "is in ORDER and not there:")


def test_imports_point_one_way() -> None:
    rank = {name: number for number, name in enumerate(ORDER)}
    found = []
    for module in MODULES:
        for target, line in ours(module):
            if rank.get(top(target), 0) > rank.get(top(module), len(ORDER)):
                found.append(f"{place(module, line)}: {module} imports {target}")
    none(found, "a package imports only what stands before it in ORDER:")


@pytest.mark.parametrize("package", INNER_ORDER)
def test_imports_within_a_package_point_one_way(package: str) -> None:
    rank = {f"{package}.{name}": number for number, name in enumerate(INNER_ORDER[package])}
    found = []
    for module in MODULES:
        importer = part_of(module, rank)
        for target, line in ours(module):
            imported = part_of(target, rank)
            if importer and imported and rank[imported] > rank[importer]:
                found.append(f"{place(module, line)}: {module} imports {target}")
    none(found, f"see INNER_ORDER[{package!r}]:")


def part_of(module: str, parts: Collection[str]) -> str | None:
    """Return the one of these parts of a package in which a module is."""
    return next((name for name in enclosing(module) if name in parts), None)


def test_parts_of_the_agent_import_names_of_other_parts() -> None:
    """On a node parts are known by their whole names, and there is no package to import one from.

    That holds within functions too, where no other test would see it.
    """
    found = []
    for module in MODULES:
        if module.startswith("remote.agent."):
            for name, line in ours(module):
                if name in MODULES:
                    found.append(f"{module}:{line} {name}")
    none(found, "import its names instead:")


def test_no_modules_import_each_other() -> None:
    graph = {module: {defining(name) for name, _ in ours(module)} - {module} for module in MODULES}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"these import each other: {' → '.join(reversed(error.args[1]))}")


def defining(name: str) -> str:
    """Return the module of an imported name: `a.b` of the class `a.b.C`."""
    return next((module for module in enclosing(name) if module in MODULES), "")


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


def test_values_are_structs() -> None:
    made = set()
    for module in MODULES:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.ClassDef):
                decorators = map(ast.unparse, node.decorator_list)
                if any("dataclass" in decorator for decorator in decorators):
                    made.add(module)
    assert made == set(DATACLASSES)


def test_every_exception_is_still_needed() -> None:
    none(sorted({*WORLDLY, *SPEAKERS} - set(MODULES)), "is excused and not there:")
    impure: set[str] = set()
    for module in MODULES:
        libraries = {name for name, _ in foreign(module)}
        called = {name.split(".")[-1] for name, _ in calls(module)}
        if libraries - PURE or called & IMPURE_CALLS:
            impure.update(enclosing(module))
    none(sorted(set(WORLDLY) - impure - {"__main__"}), "is in WORLDLY and only computes:")


def test_the_controller_never_imports_torch() -> None:
    found = [
        place(module, line)
        for module in MODULES
        if module not in ("remote.agent.trial", "remote.agent.stress", "guard")
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
    ast.parse(MODULES[f"remote.agent.{part}"].read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("part", ON_NODES)
def test_what_runs_on_nodes_needs_the_standard_library_alone(part: str) -> None:
    allowed = sys.stdlib_module_names | JOB_LIBRARIES.get(part, set())
    found = [
        f"{place(f'remote.agent.{part}', n)}: {name}"
        for name, n in foreign(f"remote.agent.{part}")
        if name not in allowed
    ]
    found += [
        f"{place(f'remote.agent.{part}', line)}: {name}"
        for name, line in ours(f"remote.agent.{part}")
        if not name.startswith("remote.agent.") or name.split(".")[2] not in ON_NODES
    ]
    none(found, "no node has this library:")


@pytest.mark.parametrize("part", [part for part in ON_NODES if part not in WRITING])
def test_looking_cannot_write(part: str) -> None:
    """`check` sends only the reading parts, so the code that writes is not on the node."""
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
        place(f"remote.agent.{part}", line)
        for name, line in names_used(f"remote.agent.{part}")
        if name in writers
    ]
    found += [
        place(f"remote.agent.{part}", call.lineno)
        for name, call in calls(f"remote.agent.{part}")
        if name == "open"
        and not (len(call.args) > 1 and ast.unparse(call.args[1]) in ("'rb'", "'r'"))
    ]
    found = [where for where in found if not reads_only(where)]
    none(found, "what only looks does not write:")
    assert not {"shutil", "tempfile"} & {name for name, _ in foreign(f"remote.agent.{part}")}


def reads_only(where: str) -> bool:
    """Whether a line opens for reading, or /dev/null for a child's streams."""
    path, line = where.split(":")
    text = (ROOT / path).read_text().splitlines()[int(line) - 1]
    return "os.O_RDONLY" in text or "/dev/null" in text


# ---------------------------------------------------------------- plug-ins and their tests


@pytest.mark.parametrize("name", [name for package in MIRRORED for name in plug_ins(package)])
def test_every_plug_in_has_its_test(name: str) -> None:
    package, _, plug_in = name.rpartition(".")
    test = Path("tests", *package.split("."), f"test_{plug_in}.py")
    assert (ROOT / test).exists(), f"write {test}"


def test_every_transport_has_its_test() -> None:
    transports = []
    for module in plug_ins("remote.transports"):
        name = module.rpartition(".")[2]
        classes = [node.name for node in tree_of(module).body if isinstance(node, ast.ClassDef)]
        if f"{name.capitalize()}Transport" in classes:
            transports.append(name)
    assert {"ssh", "local"} <= set(transports)
    folder = ROOT / "tests" / "remote" / "transports"
    none([name for name in transports if not (folder / f"test_{name}.py").exists()], "has no test:")


# ---------------------------------------------------------------- handlers and names


def test_names_say_what_is_inside() -> None:
    none([name for name in MODULES if VAGUE_NAMES & set(name.split("."))], "says nothing:")


def test_every_module_says_why_it_exists() -> None:
    none(
        [place(name, 1) for name in MODULES if not ast.get_docstring(tree_of(name))],
        "has no first sentence:",
    )
