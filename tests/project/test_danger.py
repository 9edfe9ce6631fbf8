"""What could turn text of others into code, or a guess into a secret, read off the syntax trees."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.test_architecture import MODULES, ROOT, dotted, none

Found = tuple[str, str, int]  # a file, what it does, the line
OURS = tuple(str(path.relative_to(ROOT)) for path in MODULES.values())
ALL = tuple(
    str(path.relative_to(ROOT))
    for folder in ("clusterprep", "tests", "benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
)

CODE = frozenset(
    "eval exec compile execfile __import__ builtins.eval builtins.exec builtins.compile "
    "builtins.__import__ importlib.import_module runpy.run_path runpy.run_module "
    "code.InteractiveInterpreter".split()
)
UNPACKING = frozenset(
    "pickle cPickle _pickle dill shelve marshal joblib cloudpickle jsonpickle".split()
)
SHELLS = frozenset(
    "os.system os.popen os.popen2 os.popen3 subprocess.getoutput subprocess.getstatusoutput "
    "commands.getoutput asyncio.create_subprocess_shell pty.spawn".split()
)
STARTS = frozenset(
    "subprocess.run subprocess.Popen subprocess.call subprocess.check_call "
    "subprocess.check_output".split()
)
GUESSED = frozenset("tempfile.mktemp os.tmpnam os.tempnam".split())
YAML = frozenset(
    "load load_all full_load full_load_all unsafe_load unsafe_load_all Loader FullLoader "
    "UnsafeLoader CLoader CFullLoader CUnsafeLoader YAMLObject add_constructor "
    "add_multi_constructor".split()
)
WEAK = frozenset("md5 sha1 new".split())

# What may all the same, and why no text from outside becomes code by it, or no secret is made of
# it.
EXCUSED = {
    (
        "clusterprep/cli/commands/gate_command.py",
        "sh -c",
    ): "the line that the user gives to --gate; names of nodes are in its environment",
    (
        "clusterprep/changes/resources/governor.py",
        "sh -c",
    ): "a constant line; the governor and its files are arguments",
    ("tests/support/macos.py", "runpy.run_module"): "our own modules, as Python's -m runs them",
    ("tests/support/macos.py", "exec"): "texts of the tests, as Python's -c runs them",
    ("clusterprep/facts/ssh_mesh.py", "random"): "a fair choice, the same on every run",
    (
        "clusterprep/inventory/site/plugins.py",
        "exec",
    ): "the site's own checks, from files that only their owner may change",
    (
        "clusterprep/inventory/site/plugins.py",
        "compile",
    ): "the site's own checks, from files that only their owner may change",
    (
        "clusterprep/remote/agent/containers.py",
        "sh -c",
    ): "Python and not a shell: a constant text",
    (
        "clusterprep/remote/agent/crew.py",
        "a text with exec(",
    ): "what runs in the job's container, which the agent sends on its own channel",
    (
        "clusterprep/remote/agent/crew.py",
        "sh -c",
    ): "Python and not a shell: a constant text",
    (
        "clusterprep/remote/agent/inside.py",
        "sh -c",
    ): "Python and not a shell: a text of ours, run by the job's interpreter as the job's user",
    (
        "clusterprep/remote/agent/job.py",
        "sh -c",
    ): "a constant line; the path of the script is an argument",
    ("clusterprep/remote/bootstrap.py", "marshal"): "packs our own code, and unpacks nothing",
    (
        "clusterprep/remote/transports/workers.py",
        "sh -c",
    ): "Python and not a shell: a constant line, and our module path as an argument",
    (
        "clusterprep/survey/parse_process.py",
        "pickle",
    ): "the values of facts, from a process of ours; of the classes of our facts alone",
    (
        "clusterprep/survey/parse_process.py",
        "sh -c",
    ): "Python and not a shell: a constant line, and our module path as an argument",
    (
        "clusterprep/remote/agent/loop.py",
        "marshal",
    ): "unpacks what the controller sent, whose source it would run as well",
    (
        "clusterprep/reports/bundle/sources.py",
        "sh -c",
    ): "constant lines of a table, without a word from outside",
    (
        "clusterprep/reports/__init__.py",
        "importlib.import_module",
    ): "a format out of a list of ours",
    (
        "clusterprep/runtime/plugins.py",
        "importlib.import_module",
    ): "modules of our own package, found by their files",
    (
        "clusterprep/remote/bootstrap.py",
        "a text with exec(",
    ): "the agent, which comes from the controller that logged in",
    ("clusterprep/remote/bootstrap.py", "a text with marshal.loads("): "the same agent, compiled",
    (
        "clusterprep/remote/agent/ranks.py",
        "a text with exec(",
    ): "a rank, which the agent sends on its own socket",
    (
        "clusterprep/remote/transports/known_hosts.py",
        "sha1",
    ): "names in known_hosts, which OpenSSH hides by HMAC-SHA1",
    ("tests/remote/transports/test_slurm.py", "md5"): "shows that a stream arrived whole",
    ("tests/guard/ranks.py", "exec"): "the test's own script",
    ("clusterprep/facts/names.py", "random"): "a fair choice, the same on every run",
    ("clusterprep/model/pair_schedule.py", "random"): "a fair schedule, the same on every run",
    ("clusterprep/guard.py", "random"): "seeds the generators of the user's training",
    (
        "clusterprep/remote/transports/ssh_route.py",
        "assert",
    ): "for mypy: only a jump host can be left out",
    ("clusterprep/remote/transports/slurm_step.py", "assert"): "for mypy: all three are pipes",
    ("clusterprep/remote/transports/local.py", "assert"): "for mypy: all three are pipes",
    (
        "clusterprep/remote/transports/ssh_config.py",
        "sh -c",
    ): "Match exec of the user's own ssh_config, as OpenSSH runs it",
    (
        "clusterprep/remote/transports/proxy_command.py",
        "sh -c",
    ): "ProxyCommand of the user's own ssh_config, as OpenSSH runs it",
    (
        "clusterprep/remote/transports/local.py",
        "sh -c",
    ): "the constant line of bootstrap, which SSH would be given",
    (
        "clusterprep/remote/transports/slurm.py",
        "sh -c",
    ): "the constant line of bootstrap, which SSH would be given",
    ("clusterprep/remote/agent/relay.py", "sh -c"): "the constant line of bootstrap, as it came",
    ("clusterprep/remote/agent/readers.py", "sh -c"): "the job's interpreter with a script of ours",
    (
        "clusterprep/remote/agent/nccl_address.py",
        "sh -c",
    ): "the job's interpreter with a script of ours",
    (
        "clusterprep/remote/agent/ranks.py",
        "sh -c",
    ): "the job's interpreter with a script of ours, and the number of a rank",
    (
        "clusterprep/remote/agent/shells.py",
        "sh -c",
    ): "prints the environment of a shell; the fence in it is a nonce of ours",
    (
        "clusterprep/facts/apt.py",
        "sh -c",
    ): "scripts of ours, with what is wanted as their arguments",
    (
        "clusterprep/facts/dnf.py",
        "sh -c",
    ): "scripts of ours, with what is wanted as their arguments",
    (
        "clusterprep/facts/zypper.py",
        "sh -c",
    ): "scripts of ours, with what is wanted as their arguments",
    (
        "clusterprep/changes/rpm_commands.py",
        "sh -c",
    ): "scripts of ours, with what is wanted as their arguments",
    (
        "clusterprep/changes/firewalls/owner.py",
        "sh -c",
    ): "a script of ours without arguments",
    (
        "clusterprep/changes/resources/clock.py",
        "sh -c",
    ): "scripts of ours, with what is wanted as their arguments",
}


LOOKED_AT = (
    ast.Import,
    ast.ImportFrom,
    ast.Name,
    ast.Attribute,
    ast.Call,
    ast.Constant,
    ast.List,
    ast.Tuple,
    ast.Assert,
)


@functools.cache
def nodes(path: str) -> tuple[ast.AST, ...]:
    """All of a file but what no rule looks at, which is most of it."""
    found = ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"), path))
    return tuple(node for node in found if isinstance(node, LOOKED_AT))


@functools.cache
def aliases(path: str) -> dict[str, str]:
    """What the names that a file imports stand for: `Popen` for subprocess.Popen."""
    found = {}
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found.update({a.asname: a.name for a in node.names if a.asname})
        elif isinstance(node, ast.ImportFrom):
            found.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
    return found


def whole(path: str, node: ast.AST) -> str:
    """The full name of an expression that is one, whatever the file calls its beginning."""
    first, dot, rest = dotted(node).partition(".")
    return aliases(path).get(first, first) + dot + rest


@functools.cache
def names(path: str) -> tuple[tuple[str, int], ...]:
    """Every name that a file imports or uses, in full."""
    return tuple(_names(path))


def _names(path: str) -> Iterator[tuple[str, int]]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Name | ast.Attribute) and dotted(node):
            yield whole(path, node), node.lineno


def calls(path: str) -> Iterator[tuple[str, ast.Call]]:
    for node in nodes(path):
        if isinstance(node, ast.Call):
            yield whole(path, node.func), node


def constants(path: str) -> Iterator[tuple[str, int]]:
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno


# ---------------------------------------------------------------- the rules


def runs_text(path: str) -> Iterator[Found]:
    yield from ((path, name, line) for name, line in names(path) if name in CODE)


def unpacks(path: str) -> Iterator[Found]:
    for node in nodes(path):
        imported = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in {name.split(".", maxsplit=1)[0] for name in imported} & UNPACKING:
            yield path, name, node.lineno  # type: ignore[attr-defined]


def hides_code(path: str) -> Iterator[Found]:
    """Text that is sent elsewhere to be run is code too. Sentences about it are none."""
    for text, line in constants(path):
        for word in re.findall(
            r"(?<![\w.`])(?:exec|eval|marshal\.loads|pickle\.loads|os\.system)\(", text
        ):
            yield path, f"a text with {word}", line


def reads_yaml_unsafely(path: str) -> Iterator[Found]:
    for name, line in names(path):
        module, _, last = name.rpartition(".")
        if module.split(".")[0] == "yaml" and last in YAML:
            yield path, name, line
    for name, call in calls(path):
        words = [a.value for a in call.args if isinstance(a, ast.Constant)]
        if name == "getattr" and call.args and dotted(call.args[0]) == "yaml" and set(words) & YAML:
            yield path, f"yaml.{words[0]}", call.lineno


def starts_shells(path: str) -> Iterator[Found]:
    yield from ((path, name, line) for name, line in names(path) if name in SHELLS)
    for name, call in calls(path):
        shell = next((word.value for word in call.keywords if word.arg == "shell"), None)
        if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
            yield path, "shell=True", call.lineno
        if name in STARTS and is_text(call.args[0] if call.args else None):
            yield path, f"{name} of a text", call.lineno


def is_text(node: ast.AST | None) -> bool:
    """Whether an expression is sure to be a text, and no list of words."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    if isinstance(node, ast.BinOp):
        return is_text(node.left) or is_text(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("join", "format", "strip") and is_text(node.func.value)
    return isinstance(node, ast.JoinedStr)


def glues_lines(path: str) -> Iterator[Found]:
    """A word after -c that is no constant of this very place."""
    for node in nodes(path):
        words = node.elts if isinstance(node, ast.List | ast.Tuple) else []
        for at, word in enumerate(words):
            last = isinstance(word, ast.Constant) and word.value == "-c"
            if last and at + 1 < len(words) and not isinstance(words[at + 1], ast.Constant):
                yield path, "sh -c", node.lineno  # type: ignore[attr-defined]


def guesses_names(path: str) -> Iterator[Found]:
    yield from ((path, name, line) for name, line in names(path) if name in GUESSED)
    for text, line in constants(path):
        if re.match(r"/(?:var/)?tmp/\S", text):
            yield path, "a name in /tmp", line


def asserts(path: str) -> Iterator[Found]:
    yield from (
        (path, "assert", node.lineno) for node in nodes(path) if isinstance(node, ast.Assert)
    )


def guesses_secrets(path: str) -> Iterator[Found]:
    yield from ((path, "random", line) for name, line in names(path) if name == "random")


def hashes_weakly(path: str) -> Iterator[Found]:
    for name, line in names(path):
        module, _, last = name.rpartition(".")
        if module == "hashlib" and last in WEAK:
            yield path, last, line
    for name, call in calls(path):
        if name.split(".")[0] in ("hmac", "hashlib"):
            words = [
                a.value
                for a in (*call.args, *(k.value for k in call.keywords))
                if isinstance(a, ast.Constant)
            ]
            yield from ((path, str(word), call.lineno) for word in words if word in WEAK)


EVERYWHERE = (runs_text, unpacks, reads_yaml_unsafely, starts_shells, hashes_weakly)
IN_THE_PRODUCT = (hides_code, glues_lines, guesses_names, asserts, guesses_secrets)
# Without one of these words a file of the tests is not looked at more closely.
SUSPECT = re.compile(
    r"\b(?:eval|exec|execfile|__import__)\b(?! -)|yaml|runpy|dill|shelve|[pP]ickle|shell="
    r"|\.system\b|import system|popen|getoutput|pty|md5|sha1"
)
# Not of the product, so that what only tests do may be done: paths on the lab's hosts, lists of
# names.
KEPT_FOR_TESTS = frozenset({"importlib.import_module", "compile", "marshal", "pickle"})


@functools.cache
def found() -> tuple[Found, ...]:
    ours = [row for path in OURS for rule in (*EVERYWHERE, *IN_THE_PRODUCT) for row in rule(path)]
    others = [
        path
        for path in ALL
        if path not in OURS and SUSPECT.search((ROOT / path).read_text(encoding="utf-8"))
    ]
    return (
        *ours,
        *(
            row
            for path in others
            for rule in EVERYWHERE
            for row in rule(path)
            if row[1] not in KEPT_FOR_TESTS
        ),
    )


def test_nothing_of_others_becomes_code_or_a_secret_of_ours() -> None:
    wrong = [
        f"{path}:{line}: {what}" for path, what, line in found() if (path, what) not in EXCUSED
    ]
    none(wrong, "is dangerous; where it is not, EXCUSED has the reason:")


def test_every_excuse_is_still_needed() -> None:
    unused = EXCUSED.keys() - {(path, what) for path, what, _ in found()}
    none([f"{path}: {what}" for path, what in sorted(unused)], "is excused and not there:")


WRONG = {
    "from yaml import Loader": "yaml.Loader",
    "import yaml as y\ny.load(x, Loader=y.SafeLoader)": "yaml.load",
    "import yaml\ngetattr(yaml, 'CFullLoader')": "yaml.CFullLoader",
    "eval(x)": "eval",
    "import builtins\nbuiltins.exec(x)": "builtins.exec",
    "run = exec": "exec",
    "from pickle import loads": "pickle",
    "import marshal": "marshal",
    "LINE = 'a;exec(b)'": "a text with exec(",
    "import os\nos.system(x)": "os.system",
    "from os import popen as p": "os.popen",
    "import subprocess\nsubprocess.run(x, shell=flag)": "shell=True",
    "from subprocess import Popen\nPopen(f'ls {x}')": "subprocess.Popen of a text",
    "import subprocess as s\ns.run('ls ' + x)": "subprocess.run of a text",
    "import subprocess\nsubprocess.run(' '.join(x))": "subprocess.run of a text",
    "run(['sh', '-c', line])": "sh -c",
    "import tempfile\ntempfile.mktemp()": "tempfile.mktemp",
    "PLACE = '/tmp/clusterprep'": "a name in /tmp",
    "assert x": "assert",
    "import random": "random",
    "import hashlib\nhashlib.md5(x)": "md5",
    "from hashlib import sha1": "sha1",
    "import hashlib\nhashlib.new('md5')": "md5",
    "import hmac\nhmac.new(key, x, digestmod='sha1')": "sha1",
}


@pytest.mark.parametrize("text", WRONG)
def test_each_rule_sees_what_it_is_for(text: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(text)
    assert WRONG[text] in {
        what for rule in (*EVERYWHERE, *IN_THE_PRODUCT) for _, what, _ in rule(str(path))
    }
