"""A sample of the tests passes in surroundings that differ widely.

This tests tests/support/surroundings.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

# The sample takes ten seconds; a machine with ten times as many processes as cores takes minutes.
LIMIT = 400
pytestmark = [pytest.mark.machine, pytest.mark.timeout(LIMIT + 20)]

ROOT = Path(__file__).resolve().parents[2]
# What has most to do with the process and the machine it runs in: signals, files and their modes,
# commands that are started, text and times of day, the history, SSH's settings, the width of lines.
# Some 130 tests, which take eight seconds of a processor.
SAMPLE = (
    "tests/project/test_surroundings.py",
    "tests/runtime/test_deadline.py",
    "tests/cli/test_terminal.py",
    "tests/remote/agent/test_places.py",
    "tests/remote/agent/test_job.py",
    "tests/cli/init/test_command.py",
    "tests/history/test_runs.py",
    "tests/reports/test_progress.py",
    "tests/remote/transports/test_ssh_config.py",
    "tests/remote/transports/test_known_hosts.py",
)
LEAST = 120  # tests that a run of the sample has at least, or it is no sample
PURE = "not hosts and not torch and not machine and not clock and not slow"
UNPRIVILEGED = 65534  # a user without a home, who owns nothing
COPIED = (
    "clusterprep",
    "tests",
    "schemas",
    "playbooks",
    "examples",
    "requirements",
    "pyproject.toml",
    "README.md",
)
GERMAN = "de_DE.UTF-8"
AT_DEPARTURE = ("sh", "-c", "trap '' HUP INT QUIT; exec \"$@\"", "sh")
OF_A_USER = {
    "NCCL_DEBUG": "INFO",
    "NCCL_SOCKET_IFNAME": "none",
    "CUDA_VISIBLE_DEVICES": "3",
    "LD_LIBRARY_PATH": "/nowhere",
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "MASTER_ADDR": "192.0.2.1",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "HOME": "/nonexistent",
    "XDG_STATE_HOME": "/nonexistent",
    "XDG_CONFIG_HOME": "relative",
    "SSH_AUTH_SOCK": "/no",
    "TERM": "dumb",
    "COLUMNS": "40",
    "FORCE_COLOR": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True)
class Surroundings:
    """How pytest is started: by which program, with which variables, and in which folder."""

    through: Sequence[str] = ()
    variables: dict[str, str] = field(default_factory=dict)
    umask: int = 0o022
    empty: bool = False
    elsewhere: bool = False
    user: int | None = None


CASES = {
    "nohup": Surroundings(("nohup",)),
    "signals-ignored": Surroundings(AT_DEPARTURE),
    "env-i": Surroundings(empty=True),
    "german": Surroundings(variables={"LC_ALL": GERMAN}),
    "unknown-locale": Surroundings(variables={"LC_ALL": "xx_YY.UTF-8"}),
    "kolkata": Surroundings(variables={"TZ": "Asia/Kolkata"}),
    "umask-077": Surroundings(umask=0o077),
    "umask-000": Surroundings(umask=0o000),
    "256-files": Surroundings(("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")),
    "variables-of-a-user": Surroundings(variables=OF_A_USER),
    "blank-in-its-name": Surroundings(elsewhere=True),
    "no-ipv6-no-dns": Surroundings(
        ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")
    ),
    "read-only-of-another-user": Surroundings(elsewhere=True, user=UNPRIVILEGED),
}
# Left to `make test-all`: another case has the same cause, or root or an open interpreter is
# needed.
RARER = {
    *("signals-ignored", "unknown-locale", "umask-000", "variables-of-a-user"),
    *("no-ipv6-no-dns", "read-only-of-another-user"),
}


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Path]:
    """A copy of the checkout below /tmp, with blanks in its name, which only its owner writes."""
    # Not below pytest's folders, which only its user may enter.
    with tempfile.TemporaryDirectory(prefix="a copy of ", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(
                    ROOT / name,
                    Path(folder, name),
                    ignore=shutil.ignore_patterns("__pycache__", ".*"),
                )
            else:
                shutil.copy(ROOT / name, folder)
        for path in Path(folder).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield Path(folder)


def run(where: Surroundings, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the sample in a process of its own."""
    argv = [
        *where.through,
        sys.executable,
        "-m",
        "pytest",
        "-m",
        PURE,
        "-p",
        "no:cacheprovider",
        *words,
    ]
    # What tells this run of pytest something is not for that one.
    ours = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PYTEST_", "CLUSTERPREP_")) and k != "PYTHONPATH"
    }
    variables = ({"PATH": "/usr/bin:/bin"} if where.empty else ours) | where.variables
    groups = [] if where.user is not None else None
    return subprocess.run(
        argv,
        cwd=folder,
        env=variables,
        umask=where.umask,
        user=where.user,
        group=where.user,
        extra_groups=groups,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )


def counted(done: subprocess.CompletedProcess[str], outcome: str) -> int:
    """Return how many tests ended so, by pytest's last line."""
    found = re.search(
        rf"(\d+) {outcome}", done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    )
    return int(found[1]) if found else 0


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the locale de_DE.UTF-8, which few machines have."""
    folder = tmp_path_factory.mktemp("locales")
    argv = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder / GERMAN)]
    subprocess.run(argv, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in RARER else ()) for name in CASES]
)
def test_the_sample_passes(name: str, request: pytest.FixtureRequest) -> None:
    where = CASES[name]
    if where.variables.get("LC_ALL") == GERMAN:
        folder = request.getfixturevalue("locales")
        where = replace(where, variables={**where.variables, "LOCPATH": str(folder)})
    if where.user is not None or "unshare" in where.through:
        require(where)
    folder = request.getfixturevalue("elsewhere") if where.elsewhere else ROOT
    done = run(where, folder, *SAMPLE)
    failed = re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE)
    assert (done.returncode, failed) == (0, []), done.stdout[-6000:] + done.stderr[-2000:]
    assert counted(done, "passed") >= LEAST


def require(where: Surroundings) -> None:
    """Skip where this process cannot make such surroundings."""
    if os.geteuid() != 0:
        pytest.skip("needs root: namespaces, or another user")
    if where.user is not None:
        words = [sys.executable, "-c", ""]
        try:
            subprocess.run(
                words, user=where.user, group=where.user, extra_groups=[], cwd="/", check=True
            )
        except (PermissionError, subprocess.CalledProcessError):
            pytest.skip(f"{sys.executable} is for its owner alone")


@pytest.mark.parametrize(
    "name", ["nohup", "signals-ignored", "umask-077", "kolkata", "env-i", "variables-of-a-user"]
)
def test_the_sample_fails_without_the_plugin(name: str) -> None:
    """Or it would prove nothing that it passes with it."""
    done = run(
        CASES[name],
        ROOT,
        "-p",
        "no:tests.support.surroundings",
        "tests/project/test_surroundings.py",
    )
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-2000:]
    assert counted(done, "failed") >= 1
