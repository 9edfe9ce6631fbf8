"""Folders that are declared as shared: one and the same on all nodes, writable alike, as fast."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    skipped,
    unknown,
    with_nodes,
)
from clusterprep.checks.fs import BLOCK, BROKEN, FREE, IMAGES, PLENTY
from clusterprep.facts.shared import Folders, SharedFolder
from clusterprep.model import Absent, Node
from clusterprep.model.colocation import neighbours
from clusterprep.model.nodeset import fold
from clusterprep.model.units import format_duration, format_size
from clusterprep.remedies import Remedy, sentence, shell_line

# Types that one machine has for itself.
LOCAL = BLOCK | IMAGES | {"tmpfs", "ramfs", "devtmpfs", "zfs", "bcachefs", "vfat", "exfat"}
# Types whose inodes each client may number by itself; «fuse.» and all that begin so are others.
OWN_INODES = frozenset({"9p", "virtiofs", "cifs", "smb3", "fuseblk"})
ALIKE = 0.5  # of the entries of two folders that must be the same
# Entries by which two looks at one folder may differ: others write meanwhile, and clients cache.
MEANWHILE = 3
SLOWER = 10  # times the median
NOTICED = 0.1  # seconds; a busy machine takes as long, and no job notices less
MOST_KINDS = 64  # different contents that are compared with each other; more are no shared folder
SAME = "the same folder on all nodes"


def shared(context: CheckContext) -> Iterable[Outcome]:
    """Judge every declared folder over all nodes that declare it."""
    well: dict[str, list[str]] = {}  # node -> its folders
    declaring: dict[str, dict[str, SharedFolder | Absent]] = {}
    folders_by_node: dict[str, Folders | None] = context.values("fs.shared")
    without = [node for node in context.nodes if folders_by_node[node.name] is None]
    if without:
        yield from about_all(without, [skipped(without[0], "no shared folders are declared")])
    for node in context.nodes:
        folders = folders_by_node[node.name]
        if folders is None:
            continue
        well[node.name] = list(node.shared)
        for path in node.shared:
            if path not in folders:
                declaring.setdefault(path, {})[node.name] = Absent("garbled", "not answered")
        for path, folder in folders.items():
            declaring.setdefault(path, {})[node.name] = folder
    nodes = {node.name: node for node in context.nodes}
    touched: set[str] = set()
    for path, of_nodes in declaring.items():
        for outcome in _judge(context, nodes, path, of_nodes):
            touched.update(outcome.nodes)
            yield outcome
    yield from _passes({name: paths for name, paths in well.items() if name not in touched})


def _passes(folders_by_node: Mapping[str, Sequence[str]]) -> Iterable[Outcome]:
    """Yield that nodes have their folders as all others do, once for those of the same folders."""
    names_by_folders: dict[str, list[str]] = {}
    for name, folders in folders_by_node.items():
        names_by_folders.setdefault(", ".join(folders), []).append(name)
    for seen, names in names_by_folders.items():
        message = "every shared folder is the same on all nodes"
        yield Outcome("pass", tuple(names), message, seen, SAME)


def _judge(
    context: CheckContext,
    nodes: Mapping[str, Node],
    path: str,
    answers: Mapping[str, SharedFolder | Absent],
) -> Iterable[Outcome]:
    folders: dict[str, SharedFolder] = {}
    for name, answer in answers.items():
        if isinstance(answer, SharedFolder):
            folders[name] = answer
        else:
            yield _no_folder(nodes[name], path, answer)
    declared = [node for node in context.inventory.nodes if path in node.shared]
    if len(declared) > 1 and not _is_one_machine(declared):
        local = {name: folder for name, folder in folders.items() if _is_local(folder)}
        if local:
            yield _local(path, local, folders)
        elsewhere = {name: folder for name, folder in folders.items() if name not in local}
        yield from _compare(path, elsewhere, len(declared))
        folders = elsewhere
    yield from _modes(path, folders)
    yield from _room(path, folders)
    yield from _times(path, folders)


def _is_one_machine(nodes: Sequence[Node]) -> bool:
    """Return whether all these nodes are this machine, which shares its own folders."""
    return len(neighbours(nodes)) == len(nodes)


def _no_folder(node: Node, path: str, absent: Absent) -> Outcome:
    """Return what is said of a node on which the folder does not answer, or is not there."""
    user = node.job_user or node.ssh.user or "the job's user"
    if absent.reason in BROKEN:
        cure = shell_line(
            "timeout -s KILL 10 stat -f {path} > /dev/null || {{ umount -l {path}; mount {path}; }}"
            "   # once its server answers",
            path=path,
        )
        message = f"{path} {BROKEN[absent.reason]}"
        return failed(node, message, absent.detail, SAME, cure)
    if absent.reason == "missing":
        cure = shell_line("findmnt --target {path}; mount {path}", path=path)
        return failed(node, f"{path} does not exist", absent.detail, SAME, cure)
    if absent.reason == "ENOTDIR":
        return failed(node, f"{path} is no folder", absent.detail, SAME)
    if absent.reason == "denied":
        cure = shell_line("namei -l {path}   # what keeps {user} out", path=path, user=user)
        message = f"{path} is closed to {user}"
        return failed(node, message, absent.detail, SAME, cure)
    return unknown(node, f"{path}: {absent.detail}", absent.reason)


# ---------------------------------------------------------------- one folder or several


def _is_local(folder: SharedFolder) -> bool:
    return folder.type in LOCAL or folder.type == "autofs"


def _described(folder: SharedFolder) -> str:
    return f"{folder.type} from {folder.source or 'nowhere'} at {folder.point}"


def _local(
    path: str, local: Mapping[str, SharedFolder], folders: Mapping[str, SharedFolder]
) -> Outcome:
    """Return the failure of nodes whose folder lies on a disk or in memory of their own."""
    names = tuple(local)
    groups: dict[str, list[str]] = {}
    for name, folder in folders.items():
        groups.setdefault(_described(folder), []).append(name)
    seen = with_nodes((text, tuple(members)) for text, members in groups.items())
    message = f"{path} is local: what is written there no other node sees"
    cure = shell_line("findmnt --target {path}; mount {path}", path=path)
    if len(local) == len(folders):
        message = f"{path} is local to each node: it is not shared at all"
    return Outcome("fail", names, message, seen, SAME, cure)


def _compare(path: str, folders: Mapping[str, SharedFolder], declared: int) -> Iterable[Outcome]:
    """Yield what is said of nodes that look at another folder than most."""
    if not folders:
        return
    names = tuple(folders)
    if len(folders) < 2:
        if declared > 1:
            message = f"{path} could not be compared with that of another node"
            reason = "fewer than two nodes have it"
            yield Outcome("unknown", names, message, "", SAME, reason=reason)
        return
    groups, unclear = _groups(folders)
    groups.sort(key=len, reverse=True)
    usual = groups[0]
    if len(groups) > 1:
        majority = 2 * len(usual) > len(folders)
        blamed = [name for group in groups[majority:] for name in group]
        parts = []
        for group in groups[:MOST_KINDS]:
            folder = folders[group[0]]
            count = "many" if folder.entries is None else folder.entries.count
            text = f"{_described(folder)}, inode {folder.inode}, {count} entries"
            parts.append((text, tuple(group)))
        message = f"{path} is another folder than on most nodes"
        if not majority:
            message = f"{path} is not one folder, and no node is in a majority"
        cure = shell_line("findmnt --target {path}; grep {path} /etc/fstab", path=path)
        yield Outcome("fail", tuple(blamed), message, with_nodes(parts), SAME, cure)
    if unclear:
        yield _unclear(path, {name: folders[name] for name in unclear})


def _unclear(path: str, folders: Mapping[str, SharedFolder]) -> Outcome:
    """Return that nothing shows whether these nodes look at one folder."""
    reason = "nothing in it shows which folder it is"
    message = f"{path} may be one folder or several: put a file there"
    if all(folder.entries is None for folder in folders.values()):
        message = f"{path} may be one folder or several: declare one in it with fewer entries"
    sources = sorted({_described(folder) for folder in folders.values()})
    seen = "; ".join(sources[:MOST_KINDS])
    return Outcome("unknown", tuple(folders), message, seen, SAME, reason=reason)


def _groups(folders: Mapping[str, SharedFolder]) -> tuple[list[list[str]], list[str]]:
    """Return the nodes that look at the same folder, and those of which nothing tells.

    Each node is compared with the first of each group, and joins the first that it does not differ
    from. Where nothing shows that it is the same as that, it is unclear, and all of them are unless
    most nodes are clear.
    """
    groups: list[tuple[SharedFolder, list[str]]] = []
    unclear: dict[str, None] = {}
    for name, folder in folders.items():
        for example, members in groups[:MOST_KINDS]:
            if _differ(example, folder):
                continue
            members.append(name)
            if not _agree(example, folder):
                unclear[name] = None
            break
        else:
            groups.append((folder, [name]))
    found = [members for _, members in groups]
    for members in found:
        clear = [name for name in members if name not in unclear]
        if len(clear) < len(members) and 2 * len(clear) <= len(folders):
            unclear.update(dict.fromkeys(members))
    return found, list(unclear)


def _differ(one: SharedFolder, other: SharedFolder) -> bool:
    """Return whether two looks cannot be of the same folder."""
    by_inodes = _inodes_count(one) and _inodes_count(other)
    if by_inodes and one.inode != other.inode:
        return True
    if one.entries is None or other.entries is None:
        return False
    mine, others = _sketch(one, by_inodes), _sketch(other, by_inodes)
    common, either = _overlap(mine, others)
    return either - common >= MEANWHILE and common < ALIKE * either


def _agree(one: SharedFolder, other: SharedFolder) -> bool:
    """Return whether something shows that two looks are of the same folder."""
    by_inodes = _inodes_count(one) and _inodes_count(other)
    if by_inodes and (one.type, one.source) == (other.type, other.source):
        return True
    if one.entries is None or other.entries is None:
        return by_inodes
    return bool(_sketch(one, by_inodes) & _sketch(other, by_inodes))


def _inodes_count(folder: SharedFolder) -> bool:
    """Return whether the server numbers the inodes, so that they are equal on all clients."""
    return folder.type not in OWN_INODES and not folder.type.startswith("fuse")


def _sketch(folder: SharedFolder, by_inodes: bool) -> frozenset[int]:
    if folder.entries is None:
        return frozenset()
    return folder.entries.inodes if by_inodes else folder.entries.names


def _overlap(mine: frozenset[int], others: frozenset[int]) -> tuple[int, int]:
    """Return how many of the entries are in both sketches, and how many are in either."""
    return len(mine & others), len(mine | others)


# ---------------------------------------------------------------- what can be done there


def _modes(path: str, folders: Mapping[str, SharedFolder]) -> Iterable[Outcome]:
    """Yield the failure of nodes that cannot write where others can."""
    closed = [name for name, folder in folders.items() if not folder.writable]
    if not closed or len(closed) == len(folders):
        return
    read_only = tuple(name for name in closed if folders[name].mode == "ro")
    refused = tuple(name for name in closed if folders[name].mode == "rw")
    wanted = f"writable, as on {fold(name for name in folders if name not in closed)}"
    if read_only:
        cure = shell_line(
            "findmnt --target {path}; grep {path} /etc/fstab   # mount it as the other nodes do",
            path=path,
        )
        message = f"{path} is mounted read-only"
        yield Outcome("fail", read_only, message, "ro", wanted, cure)
    if refused:
        cure = shell_line(
            "id; ls -ldn {path}   # ids and rights, and what the server allows", path=path
        )
        message = f"the job's user cannot write to {path}"
        yield Outcome("fail", refused, message, "no right to write", wanted, cure)


def _room(path: str, folders: Mapping[str, SharedFolder]) -> Iterable[Outcome]:
    """Yield one failure where little room is left; all nodes see the same."""
    short = {}
    for name, folder in folders.items():
        if folder.size and folder.free < min(FREE * folder.size, PLENTY) and folder.writable:
            short[name] = folder
    if not short:
        return
    least = min(short.values(), key=lambda folder: folder.free)
    seen = f"{format_size(least.free)} of {format_size(least.size)} free"
    wanted = f"at least {FREE:.0%} free, or {format_size(PLENTY)}"
    cure: Remedy = shell_line("df -h {path}; quota -s", path=path)
    yield Outcome("fail", tuple(short), f"{path} is nearly full", seen, wanted, cure)


def _times(path: str, folders: Mapping[str, SharedFolder]) -> Iterable[Outcome]:
    """Yield the failure of nodes that are far slower than the others, with three or more."""
    for what, times in (
        ("opening the folder", {name: folder.opening for name, folder in folders.items()}),
        (
            "a read of 4 KiB",
            {n: folder.reading for n, folder in folders.items() if folder.reading is not None},
        ),
    ):
        if len(times) < 3:
            continue
        median = statistics.median(times.values())
        for name, seconds in times.items():
            if seconds > max(NOTICED, SLOWER * median):
                message = f"{path} is slow: {what} takes more than {SLOWER} times as long"
                seen, usual = format_duration(seconds), format_duration(median)
                cure = sentence("compare mount options and the way to the server with other nodes")
                yield Outcome("fail", (name,), message, seen, f"{usual}, the median", cure)


def _bad(value: Folders | None) -> Folders:
    """Return what a node says whose mount of /data is stale."""
    return {"/data": Absent("ESTALE", "Stale file handle")}


CHECK = Check(
    "fs.shared",
    facts=("fs.shared",),
    judge=shared,
    severity="warning",
    follows=("fs.mount",),
    title="Shared folders are shared",
    why="A node whose mount is missing, stale or another export trains on other data, or writes "
    "its part of a checkpoint where no other node finds it; the job goes on for hours.",
    how="Every folder of `shared:`, as job_user sees it. Nothing is written: that two nodes look "
    "at one folder is told by its inode and by the names and inodes of up to 32 entries, by names "
    "alone where clients number inodes themselves (FUSE, CIFS, 9p). Disks and memory of the node "
    "are local. With it: whether all can write where one can, room (at least 5 % or 100 GiB free), "
    "and the times to open it and to read 4 KiB (ten times the median and 100 ms).",
    remedy=shell_line("findmnt --target PATH; mount PATH"),
    proof=Proof("fs.shared", _bad),
)
