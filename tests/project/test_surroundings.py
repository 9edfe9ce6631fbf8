"""What every test finds, in its own process and in those that it starts.

This tests tests/support/surroundings.py.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.surroundings import (
    JOB_CONTROL,
    KEPT,
    KEPT_BEGINNINGS,
    NOFILE,
    PLACES,
    SET,
    complete_path,
    environment,
)

ROOT = Path(__file__).resolve().parents[2]
FATAL = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGPIPE,
    signal.SIGUSR1,
)
# Prints the ignored and the blocked signals of a process that a test starts, as the kernel has
# them.
SHELL = 'grep -E "^Sig(Ign|Blk):" /proc/self/status; umask; ulimit -n'


@pytest.mark.parametrize("signum", FATAL, ids=lambda signum: signum.name)
def test_signals_end_what_a_test_starts(signum: signal.Signals) -> None:
    done = subprocess.run(["sh", "-c", f"kill -{int(signum)} $$; exit 0"], check=False)
    assert done.returncode == -signum


def test_no_signal_is_ignored_or_blocked_and_the_masks_are_the_usual_ones() -> None:
    status, umask, files = subprocess.check_output(["sh", "-c", SHELL], text=True).rsplit("\n", 3)[
        :3
    ]
    masks = {
        name: int(mask, 16) for name, mask in (line.split(":") for line in status.splitlines())
    }
    # Signals 32 and 33 are the C library's own, which no program can set.
    settable = sum(1 << (signum - 1) for signum in signal.valid_signals() - JOB_CONTROL)
    assert (masks["SigBlk"] & settable, masks["SigIgn"] & settable) == (0, 0)
    assert int(umask, 8) == 0o022
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert int(files) == soft
    assert soft >= NOFILE or soft == hard


def test_the_status_of_a_child_is_known() -> None:
    """It is not where SIGCHLD is ignored."""
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    assert subprocess.run(["sh", "-c", "exit 5"], check=False).returncode == 5


def test_files_are_made_with_the_usual_mode(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("file", "folder")] == [
        0o644,
        0o755,
    ]


def test_the_user_has_no_settings_here() -> None:
    home = Path.home()
    assert os.environ["HOME"] == str(home)
    assert home.stat().st_uid == os.geteuid()
    assert not (home / ".ssh").exists()
    known = KEPT | SET.keys() | {"HOME", "PATH"}
    more = {
        name for name in os.environ if name not in known and not name.startswith(KEPT_BEGINNINGS)
    }
    assert more == set()
    assert time.strftime("%Z", time.localtime(0)) == "UTC"


def test_commands_in_another_folder_are_those_of_this_checkout(tmp_path: Path) -> None:
    script = (
        "import clusterprep, json, locale; "
        "print(json.dumps([clusterprep.__file__, locale.getpreferredencoding()]))"
    )
    said = json.loads(
        subprocess.check_output([sys.executable, "-c", script], cwd=tmp_path, text=True)
    )
    assert said == [str(ROOT / "clusterprep" / "__init__.py"), "UTF-8"]
    assert Path.cwd() == ROOT


def test_few_variables_come_in_from_outside(tmp_path: Path) -> None:
    given = {
        "PATH": "/usr:.::/bin",
        "HOME": "/home/alice",
        "PYTHONPATH": "/opt/lib",
        "CI": "true",
        "PYTEST_XDIST_WORKER": "gw0",
    }
    of_user = {
        "NCCL_DEBUG": "INFO",
        "SLURM_JOB_ID": "7",
        "SSH_AUTH_SOCK": "/run/agent",
        "LC_ALL": "de_DE.UTF-8",
        "COLUMNS": "40",
    }
    assert environment(given | of_user | {"TZ": "Asia/Kolkata"}, ROOT, tmp_path) == {
        **SET,
        "CI": "true",
        "HOME": str(tmp_path),
        "PATH": "/usr:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin",
        "PIP_CACHE_DIR": "/home/alice/.cache/pip",
        "PYTEST_XDIST_WORKER": "gw0",
        "PYTHONPATH": f"{ROOT}:/opt/lib",
    }


def test_the_usual_folders_are_on_the_path_behind_those_given() -> None:
    assert complete_path("") == ":".join(PLACES)
    assert complete_path("relative:/bin::/usr:/bin").startswith("/bin:/usr:/usr/local/sbin:")
    assert complete_path("/not/there") == complete_path("")
