"""The start of clusterprep.pyz: unpacks the packages in it once, and runs the program from there.

Compiled parts cannot be loaded out of an archive. So they lie in a folder of the user,
~/.cache/clusterprep-pyz or what CLUSTERPREP_CACHE names, one folder for each build and Python. No
other user can change what lies there: that is looked at before anything is loaded from it.

This file is Python 3.6, so that an older Python reads it and says which one is wanted.
"""

import fcntl
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import List
from zipimport import zipimporter

VARIABLE = "CLUSTERPREP_CACHE"
KEPT = 4  # builds that stay unpacked; older ones go if no process uses them
ERROR = 2  # the exit code of wrong input: nothing was looked at
LEFT = 24 * 3600  # seconds after which what an ended process left half unpacked is removed
NEW = ".new-"
OLD = ".old-"
USED = ".used"  # locked by processes that use the folder; its time is that of the last start
BUILD = "BUILD"
COMMON = "common"
OTHER = f"python3.12 {sys.argv[0]}   # or what the Python is called that it is for"
PLACE = f"name a folder with space that is this user's alone: {VARIABLE}=/PATH"


def main() -> None:
    """Run clusterprep from its unpacked packages."""
    if sys.version_info < (3, 10):
        version = ".".join(str(number) for number in sys.version_info[:2])
        give_up(f"it needs Python 3.10 or newer, and this is {version}", OTHER)
    archive = sys.path[0]
    build, *trees = zipimporter(archive).get_data(BUILD).decode().split()
    # Such as cpython-312-x86_64-linux-gnu: what compiled parts have to be made for.
    own = EXTENSION_SUFFIXES[0].strip(".").partition(".")[0]
    if own not in trees:
        give_up(f"this file is for {', '.join(trees)}, and this Python is {own}", OTHER)
    try:
        folder = unpacked(Path(archive), f"{build}-{own}", [COMMON, own])
    except (OSError, RuntimeError) as error:  # the latter of a user without a home
        give_up(f"its packages cannot be unpacked: {error}", PLACE)
    sys.path[0] = str(folder)
    from clusterprep.__main__ import main as run

    run()


def give_up(reason: str, remedy: str) -> None:
    """End, with the reason and what to do."""
    sys.stderr.write(f"clusterprep: {reason}\n  fix: {remedy}\n")
    sys.exit(ERROR)


def unpacked(archive: Path, name: str, trees: List[str]) -> Path:
    """Return the folder with the packages, unpacked if they are not there. Raises OSError."""
    root = own_folder()
    folder = root / name
    while not held(folder):
        unpack(archive, trees, folder)
        remove_old(root)
    return folder


def own_folder() -> Path:
    """Return the folder for builds, which no other user can change. Raises OSError."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    root = Path(os.environ.get(VARIABLE) or Path(home, "clusterprep-pyz")).resolve()
    if not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
    status = root.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{root} has to belong to this user alone (chmod 700)")
    for above in root.parents:
        status = above.stat()
        if status.st_uid not in (0, os.geteuid()):
            raise PermissionError(f"{above}, above {root}, belongs to another user")
        is_sticky = status.st_mode & 0o1000  # as /tmp: each removes its own alone
        if status.st_mode & others_who_write(status) and not is_sticky:
            raise PermissionError(f"others may write to {above}, above {root}")
    return root


def others_who_write(status: os.stat_result) -> int:
    """Return the bits of a mode that let other users write.

    A group that has the number of its user is that user's own, and lets in no other one.
    """
    return 0o002 if status.st_gid == status.st_uid else 0o022


def held(folder: Path) -> bool:
    """Return whether the folder is there, and keep it there until this process ends."""
    try:
        used = os.open(str(folder / USED), os.O_RDONLY)
    except FileNotFoundError:
        return False
    lock(used, fcntl.LOCK_SH)
    try:
        is_there = os.path.samestat(os.fstat(used), (folder / USED).stat())
    except FileNotFoundError:
        is_there = False
    if is_there:
        os.utime(used)
    else:  # it was removed before it was locked
        os.close(used)
    return is_there


def lock(descriptor: int, kind: int) -> bool:
    """Return whether a file was locked. File systems without locks do not end the program."""
    try:
        fcntl.flock(descriptor, kind)
    except OSError:
        return False
    return True


def unpack(archive: Path, trees: List[str], folder: Path) -> None:
    """Make the folder of what the archive has for these trees. Raises OSError.

    It gets its name when all is in it, so no process sees half of it. If another process was
    faster, that one's stays.
    """
    import io
    import shutil
    import tempfile
    import zipfile

    new = Path(tempfile.mkdtemp(prefix=NEW, dir=str(folder.parent)))
    try:
        with zipfile.ZipFile(str(archive)) as outer:
            for tree in trees:
                stored = io.BytesIO(outer.read(tree + ".zip"))
                with zipfile.ZipFile(stored) as packages:
                    packages.extractall(str(new))
        (new / USED).touch()
        write_through(new)
        try:
            new.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(str(new), ignore_errors=True)


def write_through(folder: Path) -> None:
    """Have the kernel write the file system: after a power failure no name lacks its bytes."""
    import ctypes

    descriptor = os.open(str(folder), os.O_RDONLY)
    ctypes.CDLL(None).syncfs(descriptor)
    os.close(descriptor)


def remove_old(root: Path) -> None:
    """Remove builds that were not started for long, and what ended processes left."""
    import shutil
    import time

    builds = []
    for path in root.iterdir():
        try:
            if not path.name.startswith("."):
                builds.append(((path / USED).stat().st_mtime, path))
            elif path.stat().st_mtime < time.time() - LEFT:
                shutil.rmtree(str(path), ignore_errors=True)
        except OSError:  # it is gone
            continue
    for _, path in sorted(builds, reverse=True)[KEPT:]:
        remove(path)


def remove(folder: Path) -> None:
    """Remove a build unless a process uses it."""
    import shutil

    try:
        used = os.open(str(folder / USED), os.O_RDONLY)
    except OSError:
        return
    try:
        if lock(used, fcntl.LOCK_EX | fcntl.LOCK_NB):
            # Its name goes first: what is half removed is no build.
            old = folder.with_name(OLD + folder.name)
            folder.rename(old)
            shutil.rmtree(str(old), ignore_errors=True)
    except OSError:
        return
    finally:
        os.close(used)


if __name__ == "__main__":
    main()
