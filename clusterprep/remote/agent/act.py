"""The writing part of the agent: stage, commit and settle, or roll back.

The folder of a run, below the state folder, holds a manifest and the old bytes of every file. The
manifest says `staged` before a new file is written beside an old one, `committed` after the last
rename, and `done` once every node has committed and the run is final; `undone` when the old bytes
are in place again. A run that is staged or committed is not settled: the next command puts the
old bytes back, or makes it `done` where another node says so already.

Until then the old file itself stays beside the new one under a second name (`keep_link`), so that
putting it back is a rename, with all that belongs to it. The stored bytes are for a later rollback,
and for file systems on which a file has one name only. A manifest that cannot be read says nothing
about its run: nothing is written until `set_aside` has moved that folder out of the way.
"""

import fcntl
import os
import stat
import time

from clusterprep.remote.agent.disk import (
    Naming,
    Stop,
    attributes_of,
    below_root,
    current,
    decoded,
    encoded_or_none,
    error_text,
    guarded,
    keep_link,
    make_folder,
    missing_folders,
    read_own_file,
    read_stored,
    refuse_pinned,
    refuse_shared,
    remove_file,
    remove_links,
    replace_file,
    replace_state,
    reserve,
    roomy,
    set_value,
    store_bytes,
    sync_folder,
    value_of,
    write_new,
)
from clusterprep.remote.agent.light import dumps, loads, native, readable

STATE = "/var/lib/clusterprep"
KEEP = 20  # runs that can be rolled back, and as many of the others, whose old bytes are kept
UNSETTLED = ("staged", "committed")
STATES = ("done", "undone") + UNSETTLED
MAX_MANIFEST = 256 << 10  # bytes, as many as a reader of the journal takes
LARGE = object()  # stands for the bytes of a file that is larger than those that are written
STEPS = "steps.json"  # of the folder of a run; the part `steps` says what is in it
STEPS_TO_UNDO = ("begun", "done")  # states of operations that a rollback takes back
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
    """Operation lock: hold the lock of this node until the agent ends; Stop if a run holds it.

    `last` of the answer is the highest number of a run here.
    """
    folder = state_folder(request["root"])
    if folder in _locks:
        return {"last": last_number(request["root"])}
    make_folder(folder)
    path = os.path.join(folder, "lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with Naming(path):
        os.fchmod(fd, 0o600)  # every user who may open it may lock it, and so could keep us out
    if not acquire(fd):
        holder = os.read(fd, 200).decode("utf-8", "replace").strip()
        os.close(fd)
        raise Stop("locked", holder or "another run")
    holder = (request["run"], request["cluster"], time.strftime("%F %T %z"))
    line = "run %s of cluster %s, since %s" % holder
    if request.get("by"):
        line += ", by %s" % request["by"]
    line = (line + "\n").encode("utf-8", "surrogateescape")
    with Naming(path):
        # In this order: on a full disk the block of the earlier line is all that there is.
        os.pwrite(fd, line, 0)
        os.ftruncate(fd, len(line))
    _locks[folder] = fd  # it stays open: the lock ends with this process
    return {"last": last_number(request["root"])}


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


def encoded_manifest(manifest):
    """Return a manifest as bytes; raise Stop if readers would not take as much."""
    text = dumps(readable(manifest)).encode("ascii")
    size = len(roomy(text))
    if size > MAX_MANIFEST:
        why = "the journal of %d files would have %d bytes, at most %d are read: write fewer files"
        raise Stop("failed", why % (len(manifest["files"]), size, MAX_MANIFEST))
    return text


def spare_path(folder):
    return os.path.join(folder, "manifest.spare")


def write_manifest(folder, manifest):
    """Write the manifest of a run, on a full disk into the room that its staging took for it."""
    text = encoded_manifest(manifest)
    replace_state(manifest_path(folder), text, spare_path(folder), 0o644)


def read_manifest(folder):
    """Return the manifest of a run, with defaults for keys that older releases did not write.

    They knew files only, left owner and mode as they were, and did not number runs.
    """
    path = manifest_path(folder)
    text = read_own_file(path)
    try:
        manifest = native(loads(text.decode("ascii")))
        complete_manifest(manifest)
        refuse_unfit(manifest, os.path.basename(folder))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise damage(path, text, error)
    return manifest


def damage(path, text, error):
    """Return the Stop for a part of a run's record that holds no sense."""
    why = "it has no %s" % error if isinstance(error, KeyError) else str(error)
    return Stop("damaged", "%s cannot be read: %s" % (path, why if text.strip() else "it is empty"))


def complete_manifest(manifest):
    """Add what older releases did not write."""
    manifest.setdefault("number", 0)
    manifest.setdefault("nodes", "")
    manifest.setdefault("node", "")
    for entry in manifest["files"]:
        entry.setdefault("running", False)
        entry.setdefault("access", None)
        entry.setdefault("resource", None)
        entry.setdefault("attributes", None)
        entry.setdefault("kept", None)
        if "was" not in entry:
            entry["was"] = entry["backup"] and new_access(entry)


def refuse_unfit(manifest, run):
    """Raise ValueError or LookupError if a manifest is not what a release wrote for this run."""
    if manifest["run"] != run:
        raise ValueError("it is of run %s" % manifest["run"])
    if manifest["state"] not in STATES:
        raise ValueError("%r is no state of a run" % (manifest["state"],))
    for key in ("cluster", "undoes", "folders"):
        manifest[key]
    if not isinstance(manifest["number"], int):
        raise TypeError("%r is no number of a run" % (manifest["number"],))
    for entry in manifest["files"]:
        for key in ("path", "place", "removes", "beside", "backup", "after", "mode", "uid", "gid"):
            entry[key]


def all_runs(root):
    """Return (folder, manifest) of every run, oldest first, except runs that had not begun.

    They are ordered by number: the name of a run is made from the clock of a controller. Those
    whose manifest cannot be read are left out; `examine_runs` has them.
    """
    found = []
    for folder in run_folders(root):
        try:
            found.append((folder, read_manifest(folder)))
        except (Stop, OSError):
            continue
    return sorted(found, key=run_order)


def run_folders(root):
    """Return the folders of all runs that had begun, by name."""
    runs = os.path.join(state_folder(root), "runs")
    if not os.path.isdir(runs):
        return []
    folders = []
    for name in sorted(os.listdir(runs)):
        folder = os.path.join(runs, name)
        if has_manifest(folder):
            refuse_shared(manifest_path(folder), root)
            folders.append(folder)
    return folders


def run_order(found):
    """Return the sort key of one (folder, manifest): number, then name."""
    _, manifest = found
    return manifest["number"], manifest["run"]


def last_number(root):
    """Return the highest number of a run here, 0 if there is none."""
    return max([manifest["number"] for _, manifest in all_runs(root)] or [0])


def new_access(entry):
    return [entry["mode"], entry["uid"], entry["gid"]]


def access_before(entry):
    """Return mode, user and group of a file before the run; for a new file those that it got."""
    return entry["was"] or new_access(entry)


# ---------------------------------------------------------------- stage


def stage(agent, request):
    """Operation stage: check every file, keep its old bytes, write the new ones beside it.

    {"root", "run", "number", "node", "nodes", "cluster", "undoes", "files": [{"path", "before",
    "after", "mode", "access", "running", "resource"}]}: bytes in base64, null for no such file.
    `nodes` names all nodes of the run, folded, and `node` is the name of this one among them. A
    run in batches has also `batch`, the number of this one from 1, and `batches`, the nodes of each
    batch, folded; `nodes` are then those of this batch, which is all or none by itself.
    `before` is what the file had when the change was planned. `access` is mode, user and group
    that a file gets also where it exists. `running` marks a value of the running kernel, which is
    written in place, after all files. No file that another program reads changes here.
    """
    root = request["root"]
    refuse_damaged(root)
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


def refuse_damaged(root):
    """Raise Stop if the manifest of a run cannot be read: it may be a run that was cut off."""
    for folder in run_folders(root):
        read_manifest(folder)


def new_manifest(request, files):
    """Return the manifest of a run that is staged now; raise Stop if a file has changed."""
    run, root, undone = request["run"], request["root"], request.get("undoes")
    manifest = {
        "run": run,
        "number": request["number"],
        "node": request["node"],
        "nodes": request["nodes"],
        "cluster": request["cluster"],
        "undoes": undone,
        "state": "staged",
    }
    if request.get("batch"):
        manifest["batch"] = request["batch"]
        manifest["batches"] = request["batches"]
    former = former_files(root, undone)
    entries = []
    folders = set()
    for wanted in files:
        place = below_root(root, wanted["path"])
        entries.append(new_entry(wanted, place, run, former))
    for entry in entries:
        home = os.path.dirname(entry["place"])
        folders.update(missing_folders(home))
    manifest["files"] = entries
    manifest["folders"] = sorted(folders)
    return manifest


def former_files(root, undone):
    """Return {path: (user, group, attributes)} of the files of the run that is undone.

    A rollback that creates a file again, because it was removed meanwhile, gives it these.
    """
    if not undone:
        return {}
    folder = run_folder(root, undone)
    if not has_manifest(folder):
        return {}
    former = {}
    for entry in read_manifest(folder)["files"]:
        uid, gid = access_before(entry)[1:]
        former[entry["path"]] = (uid, gid, stored_attributes(folder, entry))
    return former


def new_entry(wanted, place, run, former):
    """Return what the manifest says of one file; raise Stop if it changed since it was planned.

    `attributes` are the extended attributes that the file has and keeps, {name: bytes}.
    """
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
    entry["kept"] = kept_name(place, run) if was else None
    entry["was"] = was
    access = entry["access"] or was
    uid, gid, attributes = former.get(path, (os.geteuid(), os.getegid(), {}))
    entry["attributes"] = attributes_of(place) if was else attributes
    if not access:
        access = [wanted["mode"], uid, gid]
    entry["mode"], entry["uid"], entry["gid"] = access
    return entry


def beside_name(path, run):
    folder, name = os.path.split(path)
    return os.path.join(folder, ".%s.clusterprep-%s" % (name, run))


def kept_name(path, run):
    """Return the second name of an old file, which readers of configuration folders pass over.

    Most take only names that end in .conf, .sh and the like; logrotate takes all but some, of which
    .old is one.
    """
    return beside_name(path, run) + ".old"


def coded_attributes(attributes):
    """Return extended attributes as JSON has them, {name: base64}."""
    coded = {}
    for name, value in attributes.items():
        coded[name] = encoded_or_none(value)
    return coded


def decoded_attributes(coded):
    """Return extended attributes as {name: bytes}."""
    attributes = {}
    for name, value in coded.items():
        attributes[name] = decoded(value)
    return attributes


def stored_attributes(folder, entry):
    """Return the extended attributes that staging kept of a file, as {name: bytes}."""
    text = read_stored(folder, entry["attributes"])
    return {} if text is None else decoded_attributes(loads(text.decode("ascii")))


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
        attributes = None
        if entry["attributes"]:
            # Not in the manifest, which everyone may read.
            attributes = dumps(coded_attributes(entry["attributes"])).encode("ascii")
        entry["attributes"] = store_bytes(folder, "%d.attributes" % number, attributes)
    text = roomy(encoded_manifest(manifest))
    # Before anything is written, so that the later states have room whatever happens to the disk.
    reserve(spare_path(folder), len(text), 0o644)
    replace_file(
        manifest_path(folder),
        text,
        0o644,
        os.geteuid(),
        os.getegid(),
    )
    for path in manifest["folders"]:
        make_folder(path)
    for entry, wanted in zip(entries, files):
        if not entry["removes"] and not entry["running"]:
            after = decoded(wanted["after"])
            mode, uid, gid = new_access(entry)
            attributes = stored_attributes(folder, entry)
            write_new(
                entry["beside"],
                after,
                mode,
                uid,
                gid,
                attributes,
            )


def discard(manifest):
    """Remove what a run left beside files, and the folders made for them."""
    for entry in manifest["files"]:
        if entry["running"]:
            continue
        beside = entry["beside"]
        if os.path.lexists(beside):
            os.unlink(beside)
    remove_links(kept_links(manifest["files"]))
    remove_empty_folders(manifest)


def kept_links(entries):
    """Return the second names that files of a manifest, or operations of steps, gave old files."""
    return [entry["kept"] for entry in entries if entry.get("kept")]


def kept_by_steps(folder):
    """Return the second names that the steps of a run gave to old files."""
    links = []
    for step_action in read_steps(folder):
        links.extend(kept_links(step_action["operations"]))
    return links


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
    data, access = current_state(entry)
    if data != read_stored(folder, entry["backup"]):
        raise changed_error(entry["path"], place, data, "since it was planned")
    if not entry["running"]:
        refuse_other_access(folder, entry, data, access)
    if entry["running"]:
        # Appended before it is set: the kernel may take another value than the one it is given.
        committed.append(entry)
        set_value(place, read_stored(folder, entry["after"]))
        return
    if entry["kept"]:
        keep_link(place, entry["kept"])
    if entry["removes"]:
        os.unlink(place)
    else:
        os.rename(entry["beside"], place)
    committed.append(entry)
    sync_folder(os.path.dirname(place))


def refuse_other_access(folder, entry, data, access):
    """Raise Stop if owner, mode or attributes of a file changed since the new one was staged."""
    place = entry["place"]
    same = access == entry["was"]
    if same and access is not None:
        same = attributes_of(place) == stored_attributes(folder, entry)
    if not same:
        when = "in its owner, mode or attributes since it was planned"
        raise changed_error(entry["path"], place, data, when)


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
    # First of all: a crash after the last word of the journal would leave them for ever.
    remove_links(kept_links(manifest["files"]) + kept_by_steps(folder))
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
        after = read_stored(folder, entry["after"])
        before = read_stored(folder, entry["backup"])
        path, place, coded = entry["path"], entry["place"], encoded_or_none(after)
        data, _ = state_or_large(entry)
        if data in (before, after):
            continue
        refuse_large(path, place, data)
        raise changed_error(
            path,
            place,
            data,
            "after it was written",
            after=coded,
        )


def state_or_large(entry):
    """Return current_state; LARGE for the bytes if they are too many to be those of a run."""
    try:
        return current_state(entry)
    except Stop as stop:
        if stop.body["no"] != "truncated":
            raise
        return LARGE, None


def refuse_large(path, place, data):
    """Raise Stop if state_or_large gave LARGE for a file."""
    if data is LARGE:
        raise Stop("changed", "%s has grown beyond what is kept" % place, path=path)


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
    data, access = state_or_large(entry)
    same_access = not entry["access"] or access == entry["was"]
    if data == old and same_access:
        return
    place = entry["place"]
    if entry["running"]:
        set_value(place, old)
    elif old is None:
        remove_file(place)
    else:
        bring_back(entry, old, stored_attributes(folder, entry))


def bring_back(entry, old, attributes):
    """Put an old file in place again: itself if it is still there, else its bytes and all else."""
    place = entry["place"]
    if is_kept(entry, old):
        os.rename(entry["kept"], place)
        sync_folder(os.path.dirname(place))
        return
    mode, uid, gid = access_before(entry)
    replace_file(
        place,
        old,
        mode,
        uid,
        gid,
        attributes,
    )


def is_kept(entry, old):
    """Return whether the old file itself is still there under its second name, as it was."""
    link = entry.get("kept")
    if not link or not os.path.lexists(link):
        return False
    try:
        data, state = current(link)
    except Stop:  # another program has put something else there
        return False
    access = [stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid]
    return data == old and access == entry["was"]


# ---------------------------------------------------------------- the list of runs


def runs(agent, request):
    """Operation runs: every run kept here, with the bytes of its files before, after and now.

    {"runs": rows, "damaged": [[run, why it cannot be rolled back], …]}.
    """
    rows, damaged = examine_runs(request["root"])
    return {
        "runs": rows,
        "damaged": [[os.path.basename(folder), why] for folder, why in damaged],
    }


def examine_runs(root):
    """Return the rows of all runs, oldest first, and (folder, why) of those that are damaged."""
    found = []
    damaged = []
    for folder in run_folders(root):
        try:
            manifest = read_manifest(folder)
            found.append((described(folder, manifest), manifest))
        except Stop as stop:
            damaged.append((folder, stop.body["why"]))
        except OSError as error:
            damaged.append((folder, error_text(error)))
    rows = [row for row, _ in sorted(found, key=run_order)]
    return rows, damaged


def set_aside(agent, request):
    """Operation set_aside: move the folders of damaged runs out of the journal; keep what is there.

    {"moved": [[run, path of the folder now, why], …]}. The files of these runs stay as they are,
    and so do files that they may have left beside them.
    """
    root = request["root"]
    state = state_folder(root)
    _, damaged = examine_runs(root)
    moved = []
    for folder, why in damaged:
        run = os.path.basename(folder)
        target = free_name(os.path.join(state, "damaged-%s" % run))
        os.rename(folder, target)
        sync_folder(os.path.dirname(folder))
        sync_folder(state)
        moved.append([run, target, why])
    return {"moved": moved}


def free_name(path):
    """Return a path under which there is nothing yet: this one, or one with a number behind it."""
    candidate, number = path, 1
    while os.path.lexists(candidate):
        number += 1
        candidate = "%s-%d" % (path, number)
    return candidate


def described(folder, manifest):
    """Return a run as it is reported, with its files as they were, were written and are now.

    Raises Stop or OSError if a part of its record cannot be read.
    """
    read_steps(folder)
    files = []
    for entry in manifest["files"]:
        files.append(described_file(folder, entry))
    row = {}
    for key in ("run", "number", "node", "nodes", "cluster", "state", "undoes"):
        row[key] = manifest[key]
    if manifest.get("batch"):
        row["batch"] = manifest["batch"]
        row["batches"] = manifest["batches"]
    row["files"] = files
    row["by"] = manifest.get("by")
    row["reversible"] = is_reversible(folder, manifest)
    return row


def is_reversible(folder, manifest):
    """Return whether there is anything to put back: files, or steps that were not undone."""
    if manifest["files"]:
        return True
    for step_action in read_steps(folder):
        for operation in step_action["operations"]:
            if operation.get("state") in STEPS_TO_UNDO:
                return True
    return False


def may_be_reversible(folder, manifest):
    """Return is_reversible; True if the steps of a run cannot be read."""
    try:
        return is_reversible(folder, manifest)
    except (Stop, OSError):
        return True


def read_steps(folder):
    """Return the step actions of a run in their order; the part `steps` writes them."""
    path = os.path.join(folder, STEPS)
    if not os.path.exists(path):
        return []
    text = read_own_file(path)
    try:
        return native(loads(text.decode("ascii")))
    except ValueError as error:
        raise damage(path, text, error)


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
    except OSError as error:
        row["strange"] = error_text(error)
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

    Runs that can be rolled back and all others are counted apart: a run that changed nothing must
    not take the place of one that did, and without a limit for both they would fill the disk.
    """
    reversible = []
    others = []
    for folder, manifest in all_runs(root):
        state = manifest["state"]
        if state in UNSETTLED:
            continue
        is_last_word = state == "done" and not manifest["undoes"]
        kind = reversible if is_last_word and may_be_reversible(folder, manifest) else others
        kind.append(folder)
    for folder in reversible[:-KEEP] + others[:-KEEP]:
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
    for operation in (lock, stage, commit, settle, undo, runs, set_aside):
        agent.ops[operation.__name__] = guarded(operation)
