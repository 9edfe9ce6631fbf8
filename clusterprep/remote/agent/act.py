"""The writing part of the agent: stage, commit and settle, or roll back.

The folder of a run, below the state folder, holds a manifest and the old bytes of every file. The
manifest says `staged` before a new file is written beside an old one, `committed` after the last
rename, and `done` once every node has committed and the run is final; `undone` when the old bytes
are in place again. A run that is staged or committed is not settled: the next command puts the
old bytes back, or makes it `done` where another node says so already.
"""

import fcntl
import os
import stat
import time

from clusterprep.remote.agent.disk import (
    Stop,
    below_root,
    current,
    decoded,
    encoded_or_none,
    guarded,
    make_folder,
    missing_folders,
    read_own_file,
    read_stored,
    refuse_pinned,
    refuse_shared,
    remove_file,
    replace_file,
    set_value,
    store_bytes,
    sync_folder,
    value_of,
    write_new,
)
from clusterprep.remote.agent.light import dumps, loads

STATE = "/var/lib/clusterprep"
KEEP = 20  # runs whose old bytes are kept
UNSETTLED = ("staged", "committed")
# PAUSE in seconds. `check` takes the lock for an instant, to see whether a run holds it.
TRIES, PAUSE = 6, 0.05

_locks = {}  # type: dict[str, int]  # state folder -> descriptor
# run -> folder; staged and not committed, dropped when the agent ends
_staged = {}  # type: dict[str, str]


def state_folder(root):
    """Return the folder of our own state; raise Stop if other users could change or redirect it."""
    folder = below_root(root, STATE)
    refuse_shared(os.path.join(folder, "runs"), root)
    return folder


def manifest_path(folder):
    return os.path.join(folder, "manifest.json")


def has_manifest(folder):
    """Return whether a run was begun: the manifest is the first file of its folder."""
    return os.path.exists(manifest_path(folder))


# ---------------------------------------------------------------- the lock


def lock(agent, request):
    """Operation lock: hold the lock of this node until the agent ends; Stop if a run holds it."""
    folder = state_folder(request["root"])
    if folder in _locks:
        return {}
    make_folder(folder)
    path = os.path.join(folder, "lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(fd, 0o600)  # every user who may open it may lock it, and so could keep us out
    if not acquire(fd):
        holder = os.read(fd, 200).decode("utf-8", "replace").strip()
        os.close(fd)
        raise Stop("locked", holder or "another run")
    os.ftruncate(fd, 0)
    holder = (request["run"], request["cluster"], time.strftime("%F %T %z"))
    line = "run %s of cluster %s, since %s" % holder
    if request.get("by"):
        line += ", by %s" % request["by"]
    line += "\n"
    os.pwrite(fd, line.encode("utf-8"), 0)
    _locks[folder] = fd  # it stays open: the lock ends with this process
    return {}


def acquire(fd):
    """Try for a moment to lock a file. Returns whether it is locked now."""
    for remaining in reversed(range(TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if remaining:
                time.sleep(PAUSE)
        else:
            return True
    return False


# ---------------------------------------------------------------- manifests


def run_folder(root, run):
    """Return the folder of a run; raise Stop for a bad name, or if others could write there."""
    if not is_run_name(run):
        raise Stop("failed", "bad run name %r" % (run,))
    folder = os.path.join(state_folder(root), "runs", run)
    refuse_shared(manifest_path(folder), root)
    return folder


def is_run_name(run):
    for character in run or "":
        if not character.isalnum() and character != "-":
            return False
    return bool(run)


def write_manifest(folder, manifest):
    text = dumps(manifest).encode("ascii") + b"\n"
    replace_file(
        manifest_path(folder),
        text,
        0o644,
        os.geteuid(),
        os.getegid(),
    )


def read_manifest(folder):
    """Return the manifest of a run, with defaults for keys that older releases did not write.

    They knew files only, and left owner and mode as they were.
    """
    text = read_own_file(manifest_path(folder))
    manifest = loads(text.decode("ascii"))
    for entry in manifest["files"]:
        entry.setdefault("running", False)
        entry.setdefault("access", None)
        entry.setdefault("resource", None)
        if "was" not in entry:
            entry["was"] = entry["backup"] and new_access(entry)
    return manifest


def all_runs(root):
    """Yield folder and manifest of every run, oldest first, except runs that had not begun."""
    runs = os.path.join(state_folder(root), "runs")
    if not os.path.isdir(runs):
        return
    for name in sorted(os.listdir(runs)):
        folder = os.path.join(runs, name)
        if has_manifest(folder):
            refuse_shared(manifest_path(folder), root)
            yield folder, read_manifest(folder)


def new_access(entry):
    return [entry["mode"], entry["uid"], entry["gid"]]


def access_before(entry):
    """Return mode, user and group of a file before the run; for a new file those that it got."""
    return entry["was"] or new_access(entry)


# ---------------------------------------------------------------- stage


def stage(agent, request):
    """Operation stage: check every file, keep its old bytes, write the new ones beside it.

    {"root", "run", "cluster", "undoes", "files": [{"path", "before", "after", "mode", "access",
    "running", "resource"}]}: bytes in base64, null for no such file. `before` is what the file
    had when the change was planned. `access` is mode, user and group that a file gets also where
    it exists. `running` marks a value of the running kernel, which is written in place, after all
    files. No file that another program reads changes here.
    """
    root = request["root"]
    refuse_unsettled(root)
    # A rollback reads the run that it undoes until it is settled, so nothing is forgotten before.
    if not request.get("undoes"):
        forget_old(root)
    folder = run_folder(root, request["run"])
    files = sorted(request["files"], key=is_kernel_value)
    manifest = new_manifest(request, files)
    make_folder(folder)
    try:
        stage_files(folder, manifest, files)
    except BaseException:
        discard(manifest)
        remove_folder(folder)
        raise
    _staged[request["run"]] = folder
    return {}


def is_kernel_value(wanted):
    return bool(wanted.get("running"))


def refuse_unsettled(root):
    for _, manifest in all_runs(root):
        if manifest["state"] in UNSETTLED:
            raise Stop("unsettled", "run %s was begun here and never settled" % manifest["run"])


def new_manifest(request, files):
    """Return the manifest of a run that is staged now; raise Stop if a file has changed."""
    run, root, undone = request["run"], request["root"], request.get("undoes")
    manifest = {
        "run": run,
        "cluster": request["cluster"],
        "undoes": undone,
        "state": "staged",
    }
    owners = former_owners(root, undone)
    entries = []
    folders = set()
    for wanted in files:
        place = below_root(root, wanted["path"])
        entries.append(new_entry(wanted, place, run, owners))
    for entry in entries:
        home = os.path.dirname(entry["place"])
        folders.update(missing_folders(home))
    manifest["files"] = entries
    manifest["folders"] = sorted(folders)
    return manifest


def former_owners(root, undone):
    """Return {path: [user, group]} of the files of the run that is undone.

    A rollback that creates a file again, because it was removed meanwhile, gives it to this owner.
    """
    if not undone:
        return {}
    folder = run_folder(root, undone)
    if not has_manifest(folder):
        return {}
    owners = {}
    for entry in read_manifest(folder)["files"]:
        owners[entry["path"]] = access_before(entry)[1:]
    return owners


def new_entry(wanted, place, run, owners):
    """Return what the manifest says of one file; raise Stop if it changed since it was planned."""
    path = wanted["path"]
    entry = {
        "path": path,
        "place": place,
        "removes": wanted["after"] is None,
    }
    entry["resource"] = wanted.get("resource")
    entry["running"] = is_kernel_value(wanted)
    entry["access"] = wanted.get("access")
    data, was = current_state(entry)
    if data != decoded(wanted["before"]):
        raise changed_error(path, place, data, "since it was planned")
    if entry["running"]:
        refuse_fixed(place)
    elif was:
        refuse_pinned(place)
    entry["beside"] = beside_name(place, run)
    entry["was"] = was
    access = entry["access"] or was
    if not access:
        uid, gid = owners.get(path, (os.geteuid(), os.getegid()))
        access = [wanted["mode"], uid, gid]
    entry["mode"], entry["uid"], entry["gid"] = access
    return entry


def beside_name(path, run):
    folder, name = os.path.split(path)
    return os.path.join(folder, ".%s.clusterprep-%s" % (name, run))


def current_state(entry):
    """Return (bytes, [mode, user, group]) of a file, (None, None) if there is none.

    For a value of the running kernel (value, None).
    """
    place = entry["place"]
    if entry["running"]:
        return value_of(place), None
    relative = entry["path"].lstrip("/")
    root = place[: -len(relative)]
    refuse_shared(place, root)
    data, state = current(place)
    if state is None:
        return data, None
    return data, [stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid]


def refuse_fixed(place):
    """Raise Stop if a kernel value is read-only, at least in this network namespace."""
    if not os.access(place, os.W_OK):
        raise Stop("denied", "%s may not be set here" % place)


def changed_error(path, place, data, when, **more):
    """Return the Stop for a file whose bytes are now `data`."""
    why = "%s changed %s" % (place, when)
    return Stop(
        "changed",
        why,
        path=path,
        current=encoded_or_none(data),
        **more,
    )


def stage_files(folder, manifest, files):
    """Store old and new bytes and the manifest, then write the new files beside the old ones."""
    entries = manifest["files"]
    for number, (entry, wanted) in enumerate(zip(entries, files)):
        before = decoded(wanted["before"])
        after = decoded(wanted["after"])
        entry["backup"] = store_bytes(folder, "%d.before" % number, before)
        entry["after"] = store_bytes(folder, "%d.after" % number, after)
    write_manifest(folder, manifest)
    for path in manifest["folders"]:
        make_folder(path)
    for entry, wanted in zip(entries, files):
        if not entry["removes"] and not entry["running"]:
            after = decoded(wanted["after"])
            write_new(entry["beside"], after, *new_access(entry))


def discard(manifest):
    """Remove the files that staging wrote beside others, and the folders made for them."""
    for entry in manifest["files"]:
        if entry["running"]:
            continue
        beside = entry["beside"]
        if os.path.lexists(beside):
            os.unlink(beside)
    remove_empty_folders(manifest)


def remove_empty_folders(manifest):
    """Remove the folders that a run made, if they are empty. Returns those that are in use."""
    in_use = []
    for folder in reversed(manifest["folders"]):
        try:
            os.rmdir(folder)
        except OSError:
            if os.path.isdir(folder):
                in_use.append(folder)
    return in_use


# ---------------------------------------------------------------- commit and settle


def commit(agent, request):
    """Operation commit: rename all staged files into place. If one fails, all are put back."""
    run = request["run"]
    folder = run_folder(request["root"], run)
    manifest = read_manifest(folder)
    _staged.pop(run, None)
    committed = []
    try:
        for entry in manifest["files"]:
            commit_entry(folder, entry, committed)
        manifest["state"] = "committed"
        write_manifest(folder, manifest)
    except BaseException:
        restore(folder, manifest, committed)
        raise
    return {}


def commit_entry(folder, entry, committed):
    """Put one file or value in place, and append its entry to `committed`."""
    place = entry["place"]
    data, _ = current_state(entry)
    if data != read_stored(folder, entry["backup"]):
        raise changed_error(entry["path"], place, data, "since it was planned")
    if entry["running"]:
        # Appended before it is set: the kernel may take another value than the one it is given.
        committed.append(entry)
        set_value(place, read_stored(folder, entry["after"]))
        return
    if entry["removes"]:
        os.unlink(place)
    else:
        os.rename(entry["beside"], place)
    committed.append(entry)
    sync_folder(os.path.dirname(place))


def settle(agent, request):
    """Operation settle: mark this run as done, and the run that it undoes as undone.

    The controller asks for it once every node has committed. `left` of the answer are folders of
    the run that was undone which are not empty.
    """
    run = request["run"]
    folder = run_folder(request["root"], run)
    manifest = read_manifest(folder)
    state = manifest["state"]
    if state == "done":
        return {"nothing": "done"}
    if state != "committed":
        raise Stop("failed", "run %s is %s, so it cannot be done" % (run, state))
    undone = manifest["undoes"]
    mark(folder, undone, "undone")
    manifest["state"] = "done"
    write_manifest(folder, manifest)
    original = other_folder(folder, undone)
    in_use = []
    if original:
        in_use = remove_empty_folders(read_manifest(original))
    forget_old(request["root"])
    return {"left": in_use} if in_use else {}


def other_folder(folder, other):
    """Return the folder of another run; None if this node has none of it."""
    runs = os.path.dirname(folder)
    original = os.path.join(runs, other or "")
    return original if has_manifest(original) else None


def mark(folder, other, state):
    """Give the run that this one undoes another state."""
    original = other_folder(folder, other)
    if not original:
        return
    manifest = read_manifest(original)
    if manifest["state"] != state:
        write_manifest(original, dict(manifest, state=state))


# ---------------------------------------------------------------- roll back


def undo(agent, request):
    """Operation undo: put the old bytes of a run that is not settled back in place.

    Files that were edited since are overwritten only with `force`. `by` names the rollback that
    asked for it.
    """
    run = request["undo"]
    folder = run_folder(request["root"], run)
    _staged.pop(run, None)
    if not has_manifest(folder):
        return {"nothing": "not begun"}
    manifest = read_manifest(folder)
    if manifest["state"] not in UNSETTLED:
        return {"nothing": manifest["state"]}
    replaced = []
    for entry in manifest["files"]:
        if is_replaced(folder, manifest, entry):
            replaced.append(entry)
    if not request.get("force"):
        refuse_edited(folder, replaced)
    restore(folder, manifest, replaced, request.get("by"))
    return {}


def is_replaced(folder, manifest, entry):
    """Return whether a file has its new bytes already: they are no longer in the one beside it.

    A kernel value has none beside it: it was replaced if it is the new one.
    """
    if manifest["state"] == "committed" or entry["removes"]:
        return True
    if entry["running"]:
        data, _ = current_state(entry)
        return data == read_stored(folder, entry["after"])
    return not os.path.lexists(entry["beside"])


def refuse_edited(folder, entries):
    """Raise Stop for the first file that is neither what the run wrote nor what was before it."""
    for entry in entries:
        data, _ = current_state(entry)
        after = read_stored(folder, entry["after"])
        before = read_stored(folder, entry["backup"])
        if data in (before, after):
            continue
        path, place, coded = entry["path"], entry["place"], encoded_or_none(after)
        raise changed_error(
            path,
            place,
            data,
            "after it was written",
            after=coded,
        )


def restore(folder, manifest, entries, by=None):
    """Put the old bytes of these files back, and mark the run as undone."""
    for entry in entries:
        put_back(folder, entry)
    discard(manifest)
    mark(folder, manifest["undoes"], "done")
    write_manifest(folder, dict(manifest, state="undone", by=by))


def put_back(folder, entry):
    """Give a file or kernel value of the manifest its old bytes, owner and mode."""
    old = read_stored(folder, entry["backup"])
    data, access = current_state(entry)
    same_access = not entry["access"] or access == entry["was"]
    if data == old and same_access:
        return
    place = entry["place"]
    if entry["running"]:
        set_value(place, old)
    elif old is None:
        remove_file(place)
    else:
        replace_file(place, old, *access_before(entry))


# ---------------------------------------------------------------- the list of runs


def runs(agent, request):
    """Operation runs: every run kept here, with the bytes of its files before, after and now."""
    rows = []
    for folder, manifest in all_runs(request["root"]):
        rows.append(described(folder, manifest))
    return {"runs": rows}


def described(folder, manifest):
    """Return a run as it is reported, with its files as they were, were written and are now."""
    files = []
    for entry in manifest["files"]:
        files.append(described_file(folder, entry))
    row = {}
    for key in ("run", "cluster", "state", "undoes"):
        row[key] = manifest[key]
    row["files"] = files
    row["by"] = manifest.get("by")
    return row


def described_file(folder, entry):
    """Return the row of one file: `strange` says why it cannot be read as a file now."""
    row = {
        "path": entry["path"],
        "mode": access_before(entry)[0],
        "now": None,
        "strange": None,
    }
    row["resource"] = entry["resource"]
    row["running"] = entry["running"]
    row["was"] = entry["was"] if entry["access"] else None
    try:
        data, row["access"] = current_state(entry)
        row["now"] = encoded_or_none(data)
    except Stop as stop:
        row["strange"] = stop.body["why"]
    for key, name in (("before", "backup"), ("after", "after")):
        data = read_stored(folder, entry[name])
        row[key] = encoded_or_none(data)
    return row


def remove_folder(folder):
    """Remove the folder of a run, which holds files only.

    The manifest goes first: a folder without it counts as a run that has not begun.
    """
    names = os.listdir(folder)
    for name in sorted(names, key=lambda name: name != "manifest.json"):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)


def forget_old(root):
    """Remove the oldest settled runs.

    Failed runs count too, or they would fill the disk. The last run that is done always stays.
    """
    settled = []
    last_done = None
    for folder, manifest in all_runs(root):
        state = manifest["state"]
        if state not in UNSETTLED:
            settled.append(folder)
        if state == "done":
            last_done = folder
    for folder in settled[:-KEEP]:
        if folder != last_done:
            remove_folder(folder)


def drop_staged():
    """Roll back what was staged and not committed: the controller is gone."""
    for folder in list(_staged.values()):
        try:
            restore(folder, read_manifest(folder), [])
        except (OSError, Stop):  # the next run finds it unsettled
            pass


def install(agent):
    """Register the operations of this part."""
    agent.endings.append(drop_staged)
    for operation in (lock, stage, commit, settle, undo, runs):
        agent.ops[operation.__name__] = guarded(operation)
