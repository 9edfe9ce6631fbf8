"""The writing part of the agent: two phases, stage and commit, with the old bytes kept before anything is renamed.

A run's folder under the state folder holds a manifest and the old bytes of every file. The manifest says
`staged` before the first rename and `committed` after the last, so what stands there is always enough to undo.
"""

import binascii
import errno
import fcntl
import os
import stat
import time

from clusterprep.remote.light import dumps, loads
from clusterprep.remote.readers import encoded

STATE = "/var/lib/clusterprep"
KEEP = 20  # runs whose old bytes are kept
MAX_FILE = 1 << 20


# run -> folder; staged and not committed, dropped when the agent ends
_staged = {}  # type: dict[str, str]


class Stop(Exception):
    """A step that cannot be done, with a word for the controller."""

    def __init__(self, reason, why, **more):
        Exception.__init__(self, why)
        self.body = dict(more, no=reason, why=why)


def guarded(operation):
    """An operation whose failures become answers."""

    def guard(agent, request):
        try:
            return operation(agent, request)
        except Stop as stop:
            return stop.body
        except OSError as error:
            word = {errno.ENOSPC: "no_space", errno.EROFS: "read_only", errno.EACCES: "denied", errno.EPERM: "denied"}
            return {"no": word.get(error.errno, "failed"), "why": "%s: %s" % (error.filename, error.strerror)}

    return guard


def under(root, path):
    """A path below the node's root."""
    return os.path.join(root, path.lstrip("/"))


def state_folder(root):
    return under(root, STATE)


def lock(agent, request):
    """Operation lock: hold this node's lock until the agent ends; refused while another run holds it."""
    folder = state_folder(request["root"])
    os.makedirs(folder, mode=0o755, exist_ok=True)
    fd = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(fd, 200).decode("utf-8", "replace").strip()
        os.close(fd)
        raise Stop("locked", holder or "another run")
    os.ftruncate(fd, 0)
    os.pwrite(fd, ("run %s, since %s\n" % (request["run"], time.strftime("%F %T %z"))).encode("utf-8"), 0)
    return {}  # the descriptor stays open: the lock dies with this process


def decoded(text):
    return None if text is None else binascii.a2b_base64(text)


def current(path):
    """Bytes and state of a regular file, (None, None) where there is none; anything else is refused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None, None
        if error.errno == errno.ELOOP:
            raise Stop("not_a_file", "%s is a symbolic link; it is not followed" % path)
        raise
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise Stop("not_a_file", "%s is not a regular file" % path)
        with os.fdopen(os.dup(fd), "rb") as source:
            return source.read(MAX_FILE + 1), state
    finally:
        os.close(fd)


def sync_folder(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_new(path, data, mode, uid, gid):
    """A file that did not exist, complete and on disk when this returns."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as sink:
            sink.write(data)
            sink.flush()
            if (uid, gid) != (os.geteuid(), os.getegid()):
                os.fchown(sink.fileno(), uid, gid)
            os.fchmod(sink.fileno(), mode)
            os.fsync(sink.fileno())
    except BaseException:
        os.unlink(path)
        raise


def replace_file(path, data, mode, uid, gid):
    """Old bytes or new bytes, never half of them."""
    beside = "%s.clusterprep-new" % path
    if os.path.lexists(beside):
        os.unlink(beside)
    write_new(beside, data, mode, uid, gid)
    os.rename(beside, path)
    sync_folder(os.path.dirname(path))


def run_folder(root, run):
    if not run or not all(c.isalnum() or c == "-" for c in run):
        raise Stop("failed", "bad run name %r" % (run,))
    return os.path.join(state_folder(root), "runs", run)


def write_manifest(folder, manifest):
    text = dumps(manifest).encode("ascii") + b"\n"
    replace_file(os.path.join(folder, "manifest.json"), text, 0o600, os.geteuid(), os.getegid())


def read_manifest(folder):
    with open(os.path.join(folder, "manifest.json")) as source:
        return loads(source.read())


def beside_name(path, run):
    return os.path.join(os.path.dirname(path), ".%s.clusterprep-%s" % (os.path.basename(path), run))


def stage(agent, request):
    """Operation stage: check every file against what was planned, keep its old bytes, write the new ones beside it.

    {"root", "run", "cluster", "undoes", "files": [{"path", "before", "after", "mode"}]}, bytes in base64, null
    for no such file. Nothing that anybody reads changes here.
    """
    root, run = request["root"], request["run"]
    folder = run_folder(root, run)
    os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
    os.mkdir(folder, 0o700)
    manifest = {"run": run, "cluster": request["cluster"], "undoes": request.get("undoes"), "state": "staged"}
    manifest["files"], manifest["folders"] = [], []
    try:
        for number, wanted in enumerate(request["files"]):
            stage_file(folder, manifest, number, wanted, under(root, wanted["path"]))
        write_manifest(folder, manifest)
    except BaseException:
        discard(manifest)
        remove_folder(folder)
        raise
    _staged[run] = folder
    return {}


def stage_file(folder, manifest, number, wanted, place):
    before, after = decoded(wanted["before"]), decoded(wanted["after"])
    seen, state = current(place)
    if seen != before:
        why = "%s changed since it was planned" % place
        raise Stop("changed", why, path=wanted["path"], current=maybe(seen))
    entry = {"path": wanted["path"], "place": place, "existed": seen is not None, "removes": after is None}
    entry["mode"] = stat.S_IMODE(state.st_mode) if state else wanted["mode"]
    entry["uid"], entry["gid"] = (state.st_uid, state.st_gid) if state else (os.geteuid(), os.getegid())
    entry["backup"] = keep(folder, "%d.before" % number, seen)
    make_folders(os.path.dirname(place), manifest["folders"])
    manifest["files"].append(entry)
    if after is not None:
        entry["beside"] = beside_name(place, manifest["run"])
        write_new(entry["beside"], after, entry["mode"], entry["uid"], entry["gid"])
    entry["after"] = keep(folder, "%d.after" % number, after)


def keep(folder, name, data):
    """Bytes beside the manifest; null where there is no file."""
    if data is None:
        return None
    write_new(os.path.join(folder, name), data, 0o600, os.geteuid(), os.getegid())
    return name


def make_folders(path, made):
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        os.mkdir(folder, 0o755)
        made.append(folder)
        sync_folder(os.path.dirname(folder))


def discard(manifest):
    """Remove what staging laid beside the files, and the folders made for them."""
    for entry in manifest["files"]:
        if "beside" in entry and os.path.lexists(entry["beside"]):
            os.unlink(entry["beside"])
    drop_folders(manifest)


def drop_folders(manifest):
    """Remove the folders that a run made, if they are empty again."""
    for folder in reversed(manifest["folders"]):
        try:
            os.rmdir(folder)
        except OSError:  # somebody else uses it by now
            pass


def commit(agent, request):
    """Operation commit: rename every staged file into place; if one fails, put back those already renamed."""
    folder = run_folder(request["root"], request["run"])
    manifest = read_manifest(folder)
    _staged.pop(request["run"], None)
    try:
        for entry in manifest["files"]:
            if entry["removes"]:
                os.unlink(entry["place"])
            else:
                os.rename(entry["beside"], entry["place"])
            sync_folder(os.path.dirname(entry["place"]))
        manifest["state"] = "committed"
        write_manifest(folder, manifest)
    except OSError:
        restore(folder, manifest)
        raise
    if manifest["undoes"]:
        mark_undone(request["root"], manifest["undoes"])
    forget_old(request["root"])
    return {}


def mark_undone(root, run):
    folder = run_folder(root, run)
    manifest = read_manifest(folder)
    drop_folders(manifest)
    manifest["state"] = "undone"
    write_manifest(folder, manifest)


def undo(agent, request):
    """Operation undo: the old bytes of a run back in place, whether it was staged or committed."""
    folder = run_folder(request["root"], request["run"])
    _staged.pop(request["run"], None)
    if not os.path.isdir(folder):
        return {"nothing": True}
    restore(folder, read_manifest(folder))
    return {}


def restore(folder, manifest):
    for entry in manifest["files"]:
        put_back(folder, entry)
    discard(manifest)
    manifest["state"] = "undone"
    write_manifest(folder, manifest)
    if manifest["undoes"]:
        original = os.path.join(os.path.dirname(folder), manifest["undoes"])
        if os.path.isdir(original):
            write_manifest(original, dict(read_manifest(original), state="committed"))


def put_back(folder, entry):
    old = kept(folder, entry["backup"])
    place = entry["place"]
    seen, _ = current(place)
    if seen == old:
        return
    if old is None:
        os.unlink(place)
        sync_folder(os.path.dirname(place))
    else:
        replace_file(place, old, entry["mode"], entry["uid"], entry["gid"])


def kept(folder, name):
    if name is None:
        return None
    with open(os.path.join(folder, name), "rb") as source:
        return source.read()


def runs(agent, request):
    """Operation runs: every run kept here of one cluster, and the newest of any, with bytes before, after and now."""
    folder = os.path.join(state_folder(request["root"]), "runs")
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        if os.path.exists(os.path.join(path, "manifest.json")):
            found.append(described(path, read_manifest(path)))
    return {"runs": found}


def described(folder, manifest):
    files = []
    for entry in manifest["files"]:
        row = {"path": entry["path"], "mode": entry["mode"], "now": maybe(current(entry["place"])[0])}
        row["before"], row["after"] = maybe(kept(folder, entry["backup"])), maybe(kept(folder, entry["after"]))
        files.append(row)
    keys = ("run", "cluster", "state", "undoes")
    return dict([(key, manifest[key]) for key in keys], files=files)


def maybe(data):
    return None if data is None else encoded(data)


def remove_folder(folder):
    """A run's folder holds files only."""
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)


def forget_old(root):
    folder = os.path.join(state_folder(root), "runs")
    for name in sorted(os.listdir(folder))[:-KEEP]:
        remove_folder(os.path.join(folder, name))


def drop_staged():
    """The controller went away between the phases: what it staged is of no use to anybody."""
    for folder in list(_staged.values()):
        restore(folder, read_manifest(folder))


def install(agent):
    """Register the operations of this part."""
    agent.endings.append(drop_staged)
    for name, operation in (("lock", lock), ("stage", stage), ("commit", commit), ("undo", undo), ("runs", runs)):
        agent.ops[name] = guarded(operation)
