"""Files and folders that say something else, or cannot be written, or are not there."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from tests.support.lab.faults.fault import Fault
from tests.support.lab.rooms import Host

_STAGE = "/run/lab"
_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3", "/usr/libexec/platform-python")


def file_over(host: Host, path: str, text: str | None = None) -> Fault:
    """Lay an ordinary, writable file over an existing one, such as those of /proc.

    By default it has the same text.
    """
    text = host.read(path) if text is None else text
    copy = f"{_STAGE}/{uuid.uuid4().hex}"
    place = inside(host, copy)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    host.run(["mount", "--bind", copy, path])
    return Fault(lambda: host.run(["umount", "--lazy", path]))


def inside(host: Host, path: str) -> Path:
    """A host's path as the machine sees it, for what would else take a process for every file.

    Links on the way lead where they lead on the host, never out of it.
    """
    root = Path(f"/proc/{host.pid}/root")
    place = root
    for part in Path(path).parts[1:-1]:
        place /= part
        while place.is_symlink() and place.readlink().is_absolute():
            place = root / place.readlink().relative_to("/")
    return place / Path(path).name


def written(host: Host, path: str, text: str, mode: int = 0o644) -> Fault:
    """A file with this text, whether there was one or not."""
    place = inside(host, path)
    kept = place.with_name(f".{place.name}.lab") if place.is_symlink() or place.exists() else None
    place.parent.mkdir(parents=True, exist_ok=True)
    if kept is not None:
        place.rename(kept)
    place.write_text(text)
    place.chmod(mode)
    return Fault(lambda: place.unlink() if kept is None else kept.replace(place))


def changed(host: Host, path: str, old: str, new: str) -> Fault:
    """A file with one text in it replaced by another."""
    text = host.read(path)
    if old not in text:
        message = f"{path} of {host.name} does not hold {old!r}"
        raise ValueError(message)
    return written(host, path, text.replace(old, new))


def without(host: Host, path: str) -> Fault:
    """A file or folder that is not there."""
    away = f"{_STAGE}/{uuid.uuid4().hex}"
    host.run(["mkdir", "-p", _STAGE])
    host.run(["mv", path, away])
    return Fault(lambda: host.run(["mv", away, path]))


def own_sysctl(host: Host, name: str, value: str | None = None) -> Fault:
    """A kernel setting, such as vm.swappiness, that this host may write. The real one stays."""
    text = None if value is None else f"{value}\n"
    return file_over(host, f"/proc/sys/{name.replace('.', '/')}", text)


def sys_tree(host: Host, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> Fault:
    """Lay recorded files and symbolic links over a writable /sys. Undo takes all of them away."""
    upper, work = f"{_STAGE}/sys/upper", f"{_STAGE}/sys/work"
    if not _has_sys_tree(host):
        host.run(["mkdir", "-p", upper, work])
        data = f"lowerdir=/sys,upperdir={upper},workdir={work}"
        host.run(["mount", "-t", "overlay", "overlay", "-o", data, "/sys"])
    root = Path(f"/proc/{host.pid}/root")
    for name, text in files.items():
        _place(root, name).write_text(text)
    for name, target in (links or {}).items():
        _place(root, name).symlink_to(target)
    return Fault(lambda: _clear_sys_tree(host))


def _place(root: Path, name: str) -> Path:
    path = root / Path("/sys", name.removeprefix("/sys/")).relative_to("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(
        missing_ok=True
    )  # an overlay cannot copy a file of sysfs, which is shorter than its size says
    return path


def _has_sys_tree(host: Host) -> bool:
    return "overlay" in host.run(["findmnt", "--noheadings", "--output", "FSTYPE", "/sys"]).stdout


def _clear_sys_tree(host: Host) -> None:
    if _has_sys_tree(host):
        host.run(["sh", "-c", f"umount --lazy /sys && rm -rf {_STAGE}/sys"])


def loopback_name(host: Host) -> Fault:
    """The host's own name stands for 127.0.1.1, as Debian's installer leaves it."""
    before = host.read("/etc/hosts")
    others = [line for line in before.splitlines() if line.split() != [host.address, host.name]]
    host.write("/etc/hosts", "\n".join([*others, f"127.0.1.1 {host.name}", ""]))
    return Fault(lambda: host.write("/etc/hosts", before))


def read_only(host: Host, folder: str) -> Fault:
    """Nothing can be written below this folder."""
    host.run(["mkdir", "-p", folder])
    host.run(["mount", "--bind", folder, folder])
    host.run(["mount", "-o", "remount,bind,ro", folder])
    return Fault(lambda: host.run(["umount", "--lazy", folder]))


def full(host: Host, folder: str) -> Fault:
    """A file system without free space in place of this folder; what was in it is out of sight."""
    host.run(["mkdir", "-p", folder])
    host.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0755", "tmpfs", folder])
    host.run(["sh", "-c", 'cat /dev/zero > "$0/filler" 2>/dev/null', folder], check=False)
    return Fault(lambda: host.run(["umount", "--lazy", folder]))


def hide_python(host: Host) -> Fault:
    """No Python where an agent looks for one; interpreters elsewhere stay."""
    found = [
        path for path in _PYTHONS if host.run(["test", "-e", path], check=False).returncode == 0
    ]
    for path in found:
        host.run(["mv", path, f"{path}.hidden"])

    def undo() -> None:
        for path in found:
            host.run(["mv", f"{path}.hidden", path])

    return Fault(undo)
