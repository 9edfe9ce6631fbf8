"""Whether the declared runtime can be entered on a node, and with which interpreter."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    container,
    each,
    failed,
    passed,
    skipped,
    unknown,
)
from clusterprep.facts.container import Inside
from clusterprep.facts.runtime import Complaint, Setup
from clusterprep.model import Absent, Node, Runtime
from clusterprep.remedies import Remedy, sentence, shell_line

ON_THE_NODE = "the job runs on the node itself"
WANTED = "`runtime:` of the inventory is set up without an error"


def judge_all(context: CheckContext) -> Iterable[Outcome]:
    """Judge each runtime, and compare the users that containers run as."""
    yield from each(judge, "rt.setup")(context)
    yield from container.users(context)


def judge(context: CheckContext, node: Node, setup: Setup | None) -> Iterable[Outcome]:
    """Fail where the runtime cannot be entered, or where the interpreter is not of it."""
    look: Inside | Absent | None = context.value(node, "rt.inside")
    if isinstance(look, Absent) and container.container_of(node) is not None:
        yield unknown(node, f"the container is not known: {look.detail}", look.reason)
        return
    if isinstance(look, Inside):
        yield from container.engine(context, node, look)
        return
    runtime = node.runtime or Runtime()
    if setup is None:
        yield skipped(node, ON_THE_NODE)
        return
    if setup.reason:
        message = f"the job's runtime cannot be entered: {setup.why}"
        yield failed(node, message, setup.reason, WANTED, _cure(node, runtime, setup))
        return
    is_good = True
    for complaint in setup.complaints:
        is_good = False
        yield _complained(node, complaint)
    for name, (before, inside) in sorted(setup.lowered.items()):
        is_good = False
        message = f"the job's runtime lowers the limit {name}: look for ulimit in what it sources"
        yield failed(node, message, inside, before, severity="warning")
    if setup.environment:
        is_good = False
        yield _outside(node, setup)
    if is_good:
        seen = f"{setup.python} in {setup.prefix}"
        yield passed(node, "the job's runtime is entered", seen)


def _complained(node: Node, complaint: Complaint) -> Outcome:
    """Return the warning of a step after which the set-up went on."""
    printed = complaint.text or f"exit code {complaint.code}"
    message = f"{complaint.step} ends with an error, and jobs go on without what it lacks"
    return failed(node, message, printed, WANTED, severity="warning")


def _outside(node: Node, setup: Setup) -> Outcome:
    """Return the failure of a `python:` that is none of the environment that is declared."""
    message = f"{node.python} is no interpreter of {setup.environment}, whose packages it misses"
    return failed(
        node,
        message,
        f"{setup.python} in {setup.prefix}",
        f"an interpreter of {setup.environment}",
        sentence("take python: out of the inventory, or set it to that of the environment"),
    )


def _cure(node: Node, runtime: Runtime, setup: Setup) -> Remedy:
    """Return what to look at on the node, as the job's user."""
    if setup.reason == "no_module" and not setup.why.startswith("module load "):
        return shell_line(
            "ls /etc/profile.d   # as {user}, in a login shell: «type module» has to find Lmod or "
            "environment-modules, from a package or a shared file system",
            user=_user(node),
        )
    if setup.reason == "no_module":
        return _module_cure(node, runtime, setup)
    if runtime.conda is not None and setup.reason in ("no_environment", "no_python"):
        return shell_line(
            "conda env list   # as {user}; then set conda: to the path of the environment",
            user=_user(node),
        )
    if runtime.venv is not None and setup.reason == "no_python":
        return shell_line(
            "ls -l {place}   # make it anew with the Python that is there: python3 -m venv --clear",
            place=f"{runtime.venv}/bin/",
        )
    if runtime.venv is not None and setup.reason == "no_environment":
        return shell_line(
            "ls -l {place}/pyvenv.cfg   # mount the file system that has it, or correct venv:",
            place=runtime.venv,
        )
    if runtime.activate is not None and setup.reason in ("no_file", "denied"):
        return shell_line(
            "ls -l {file}   # as {user}: mount its file system, or correct activate:",
            file=runtime.activate,
            user=_user(node),
        )
    return sentence(
        "do the same in a shell of {user} on the node: {why}", user=_user(node), why=setup.why
    )


def _module_cure(node: Node, runtime: Runtime, setup: Setup) -> Remedy:
    """Return how to find the module that was not loaded; all of them if it is not known which."""
    name = _module_of(runtime, setup)
    if not name:
        return shell_line("module -t avail   # as {user}, in a login shell", user=_user(node))
    return shell_line(
        "module spider {name} 2>&1 || module avail {name}   # as {user}, in a login shell",
        name=name,
        user=_user(node),
    )


def _module_of(runtime: Runtime, setup: Setup) -> str:
    """Return the declared module that was not loaded, "" if none is declared."""
    for name in runtime.modules:
        if setup.why.startswith(f"module load {name} "):
            return name
    return runtime.modules[0] if runtime.modules else ""


def _user(node: Node) -> str:
    return node.job_user or node.ssh.user or "the job's user"


CHECK = Check(
    "rt.engine",
    facts=("rt.setup",),
    uses=("rt.inside",),
    judge=judge_all,
    severity="error",
    grade="a warning for a step that ends with an error and is gone over, and for a limit that is "
    "lowered, else an error",
    title="Entering the job's runtime",
    why="A module, an activation file or an environment that one node lacks ends the job there, "
    "or starts it with the system's Python: the ranks then differ, or one does not come.",
    how="As the job's user, where `runtime:` is declared: a shell loads the modules, sources the "
    "activation file, activates the conda or virtual environment, each step within 30 s together, "
    "and starts the job's interpreter there; or the engine starts a container of the image that is "
    "on the node, with the job's options, as the same user on all nodes.",
    remedy=sentence("set up the runtime by hand on the node, as the job's user"),
    proof=Proof(
        "rt.setup",
        lambda setup: Setup("no_module", "module load cuda/12.4 fails"),
    ),
)
