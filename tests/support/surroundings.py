"""A pytest plugin: the same surroundings for every test, however and wherever pytest was started.

The test process, each worker of pytest-xdist and all processes that tests start get them before
anything is collected. A test that needs others sets them itself. `-p no:tests.support.surroundings`
leaves the plugin out, and tests/project/test_surroundings.py runs a part of the tests in
surroundings that are unlike these.
"""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import pytest

# the default of every distribution; files that must be private are tested to be so below it
UMASK = 0o022
NOFILE = 1024  # the usual soft limit
PLACES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
SET = {"LANG": "C.UTF-8", "TERM": "xterm", "TZ": "UTC"}

# What may come in from outside. Everything else is left out: a list of what might disturb would
# never be complete.
KEPT = frozenset(
    {
        *("CI", "CC", "TMPDIR", "USER", "LOGNAME"),
        # What the interpreter that runs the tests, and so each that they start, may be in need of.
        *("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"),
        # The tests' own.
        *(
            "CLUSTERPREP_LAB_DIR",
            "CLUSTERPREP_NCCL_DIR",
            "CLUSTERPREP_FUZZ_CORPUS",
            "CLUSTERPREP_TEST_TOTALS",
        ),
        # The way to an index of packages.
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    }
)
KEPT_BEGINNINGS = ("PYTEST_", "PIP_", "COV_", "COVERAGE_", "HYPOTHESIS_")

# Which belong to the terminal, not to the tests: a job in the background would stop if these were
# not ignored.
JOB_CONTROL = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
# Python itself ignores these in every process, and gives its children the default.
OF_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})


HOME = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Make a home for the tests, and have it removed when pytest ends, however it does."""
    home = Path(tempfile.mkdtemp(prefix="clusterprep-tests-"))
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    config.stash[HOME] = home


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Put this process into the state that tests may rely on.

    That comes after pytest has read PYTEST_ADDOPTS, NO_COLOR and the like, which are its user's to
    set, and before it starts workers and collects.
    """
    os.chdir(session.config.rootpath)
    set_environment(environment(os.environ, session.config.rootpath, session.config.stash[HOME]))
    set_signals()
    os.umask(UMASK)
    set_limits()


def environment(given: Mapping[str, str], root: Path, home: Path) -> dict[str, str]:
    """Return the variables that tests have: few of those given, and some with fixed values."""
    kept = {
        name: value
        for name, value in given.items()
        if name in KEPT or name.startswith(KEPT_BEGINNINGS)
    }
    # pip's downloads are kept where they were, or each run would fetch them anew.
    if "HOME" in given:
        kept.setdefault("PIP_CACHE_DIR", f"{given['HOME']}/.cache/pip")
    # A command that a test starts in another folder is that of this checkout too, whatever is
    # installed.
    modules = ":".join(filter(None, [str(root), kept.get("PYTHONPATH")]))
    path = complete_path(given.get("PATH", ""))
    return kept | SET | {"HOME": str(home), "PATH": path, "PYTHONPATH": modules}


def login_home() -> Path:
    """Return the home of the user who runs the tests by the system, as HOME is another one here."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a container's user may be a number alone
        return Path("/")


def complete_path(given: str) -> str:
    """Return a PATH with the usual folders behind those given.

    A relative folder would depend on where a process runs. Where one may not be searched, as root's
    own after `su`, a program that does not exist is told as one that is denied.
    """
    folders = [
        folder
        for folder in given.split(":")
        if folder.startswith("/") and os.access(folder, os.X_OK)
    ]
    return ":".join(dict.fromkeys([*folders, *PLACES]))


def set_environment(wanted: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(wanted)
    time.tzset()


def stay_deaf(signum: int, frame: FrameType | None) -> None:
    """Handle a signal by doing nothing."""


def set_signals() -> None:
    """Unblock all signals, and give ignored ones their default action in every process started.

    A signal that this process was told to ignore, by nohup for instance, still does nothing to it.
    But it is handled now: handlers become the default in a new program, while what is ignored would
    stay ignored there.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for signum in signal.valid_signals() - JOB_CONTROL - OF_PYTHON:
        if signal.getsignal(signum) is signal.SIG_IGN:
            # Where SIGCHLD is ignored, the kernel reaps children, and none has an exit status.
            signal.signal(signum, signal.SIG_DFL if signum == signal.SIGCHLD else stay_deaf)


def set_limits() -> None:
    """Raise the number of open files to the usual one if allowed, and have no core files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < NOFILE:
        most = NOFILE if hard == resource.RLIM_INFINITY else min(NOFILE, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
