"""A history on a network file system that has no locks, or whose server fails in the middle.

There is no NFS server here: a library between SQLite and the kernel answers as the client of one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from clusterprep.history.database import NAME
from tests.support.command import CLI

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]

# Calls on files of the history fail as FAILS says, from the call with the number FROM on.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int calls = 0;

static int is_ours(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, "history.sqlite") != NULL;
}

static int fails(const char *what, int fd) {
    const char *wanted = getenv("FAILS");
    if (!wanted || strcmp(wanted, what) || !is_ours(fd)) return 0;
    return ++calls >= atoi(getenv("FROM"));
}

static int control(int fd, int command, void *argument, const char *name) {
    int (*real)(int, int, ...) = dlsym(RTLD_NEXT, name);
    if ((command == F_SETLK || command == F_SETLKW) && fails("lock", fd)) {
        errno = ENOLCK;
        return -1;
    }
    return real(fd, command, argument);
}
int fcntl(int fd, int command, ...) {
    va_list rest; va_start(rest, command); void *argument = va_arg(rest, void *); va_end(rest);
    return control(fd, command, argument, "fcntl");
}
int fcntl64(int fd, int command, ...) {
    va_list rest; va_start(rest, command); void *argument = va_arg(rest, void *); va_end(rest);
    return control(fd, command, argument, "fcntl64");
}
int fdatasync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    if (fails("sync", fd)) { errno = EIO; return -1; }
    return real(fd);
}
int fsync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    if (fails("sync", fd)) { errno = EIO; return -1; }
    return real(fd);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    if (fails("write", fd)) { errno = ESTALE; return -1; }
    return real(fd, data, size, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return pwrite64(fd, data, size, at);
}
ssize_t write(int fd, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    if (fails("write", fd)) { errno = ESTALE; return -1; }
    return real(fd, data, size);
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    library = folder / "shim.so"
    line = ["cc", "-shared", "-fPIC", "-o", library, folder / "shim.c", "-ldl"]
    subprocess.run(line, check=True)
    return library


def check(folder: Path, **env: str) -> tuple[int, str]:
    """Return the exit code of a check and its notices."""
    inventory = folder / "inventory.yaml"
    inventory.write_text("transport: local\nnodes: [{name: n1, address: 127.0.0.1}]\n")
    argv = [*CLI, "check", str(inventory), "--only", "os.release", "--format", "json"]
    given = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), **env}
    done = subprocess.run(argv, capture_output=True, text=True, env=given, timeout=60, check=False)
    report = json.loads(done.stdout)
    assert report["verdict"] == "pass", done
    return done.returncode, " ".join(report.get("notices", ()))


@pytest.mark.parametrize(
    ("fails", "start"),
    [
        # SQLite tries for as long as it would wait for another writer, to read and to write.
        pytest.param("lock", 1, marks=pytest.mark.slow),
        pytest.param("lock", 3, marks=pytest.mark.slow),
        ("sync", 1),
        ("sync", 3),
        ("write", 1),
        ("write", 3),
    ],
)
def test_a_run_that_cannot_be_recorded_is_a_note(
    fails: str, start: int, shim: Path, tmp_path: Path
) -> None:
    file = tmp_path / "state/clusterprep" / NAME
    assert check(tmp_path) == (0, "")
    code, notices = check(tmp_path, LD_PRELOAD=str(shim), FAILS=fails, FROM=str(start))
    assert code == 0
    if fails == "lock" or start == 1:
        assert f"this run is not in the history: {file} could not be written: " in notices
    assert check(tmp_path) == (0, ""), "as soon as the server is well again"
    with contextlib.closing(sqlite3.connect(file)) as opened:
        assert opened.execute("pragma integrity_check").fetchone() == ("ok",)
        (runs,) = opened.execute("select count(*) from run").fetchone()
    assert runs == (2 if notices else 3), "a run is there wholly or not at all, and it is said"
