"""The writing part of the agent: stage, commit and settle, with the old bytes kept before anything is renamed.

A run's folder under the state folder holds a manifest and the old bytes of every file. The manifest says `staged`
before anything is laid beside a file, `committed` after the last rename, and `done` once every node has committed
and nobody will take it back; `undone` when the old bytes are in place again. What is staged or committed is not
settled: whoever comes next puts the old bytes back, or makes it `done` where another node says so already.
"""

import fcntl
import os
import stat
import time

from clusterprep.remote.agent.disk import (
    Stop,
    current,
    decoded,
    guarded,
    keep,
    kept,
    make_folder,
    maybe,
    missing_folders,
    own_text,
    refuse_pinned,
    refuse_shared,
    remove_file,
    replace_file,
    set_value,
    sync_folder,
    under,
    value_of,
    write_new,
)
from clusterprep.remote.agent.light import dumps, loads

STATE = "/var/lib/clusterprep"
KEEP = 20  # runs whose old bytes are kept
UNSETTLED = ("staged", "committed")
TRIES, PAUSE = 6, 0.05  # seconds: `check` asks for an instant whether the lock is held

_locks = {}  # type: dict[str, int]  # state folder -> descriptor
# run -> folder; staged and not committed, dropped when the agent ends
_staged = {}  # type: dict[str, str]


def state_folder(root):
    """Where our own state lies, unless others could change what is there, or lead it elsewhere."""
    folder = under(root, STATE)
    refuse_shared(os.path.join(folder, "runs"), root)
    return folder


def lock(agent, request):
    """Operation lock: hold this node's lock until the agent ends; refused while another run holds it."""
    folder = state_folder(request["root"])
    if folder in _locks:
        return {}
    make_folder(folder)
    fd = os.open(
        os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    os.fchmod(fd, 0o600)  # who may open it may lock it, and so could keep us out
    if not taken(fd):
        holder = os.read(fd, 200).decode("utf-8", "replace").strip()
        os.close(fd)
        raise Stop("locked", holder or "another run")
    os.ftruncate(fd, 0)
    words = (request["run"], request["cluster"], time.strftime("%F %T %z"))
    os.pwrite(fd, ("run %s of cluster %s, since %s\n" % words).encode("utf-8"), 0)
    _locks[folder] = fd  # it stays open: the lock dies with this process
    return {}


def taken(fd):
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(PAUSE if left else 0)
        else:
            return True
    return False


def run_folder(root, run):
    if not run or not all(c.isalnum() or c == "-" for c in run):
        raise Stop("failed", "bad run name %r" % (run,))
    folder = os.path.join(state_folder(root), "runs", run)
    refuse_shared(os.path.join(folder, "manifest.json"), root)
    return folder


def write_manifest(folder, manifest):
    text = dumps(manifest).encode("ascii") + b"\n"
    replace_file(os.path.join(folder, "manifest.json"), text, 0o644, os.geteuid(), os.getegid())


def read_manifest(folder):
    """What a run did; one of a release that knew files alone, and left owner and mode as they were, says less."""
    manifest = loads(own_text(os.path.join(folder, "manifest.json")).decode("ascii"))
    for entry in manifest["files"]:
        entry.setdefault("running", False)
        for key in ("access", "resource"):
            entry.setdefault(key, None)
        entry.setdefault("was", entry["backup"] and [entry["mode"], entry["uid"], entry["gid"]])
    return manifest


def remembered(root):
    """Folder and manifest of every run, oldest first. One without a manifest had not begun."""
    runs = os.path.join(state_folder(root), "runs")
    for name in sorted(os.listdir(runs)) if os.path.isdir(runs) else []:
        folder = os.path.join(runs, name)
        if os.path.exists(os.path.join(folder, "manifest.json")):
            refuse_shared(os.path.join(folder, "manifest.json"), root)
            yield folder, read_manifest(folder)


def beside_name(path, run):
    return os.path.join(os.path.dirname(path), ".%s.clusterprep-%s" % (os.path.basename(path), run))


def stage(agent, request):
    """Operation stage: check every file against what was planned, keep its old bytes, write the new ones beside it.

    {"root", "run", "cluster", "undoes", "files": [{"path", "before", "after", "mode", "access", "running",
    "resource"}]}, bytes in base64, null for no such file. `access` is mode, user and group that a file gets also
    where it exists, `running` marks a value of the kernel's, which is written in place, after all files. Nothing that
    anybody reads changes here.
    """
    root, run = request["root"], request["run"]
    for _, manifest in remembered(root):
        if manifest["state"] in UNSETTLED:
            raise Stop("unsettled", "run %s was begun here and never settled" % manifest["run"])
    if not request.get("undoes"):  # which reads the run that it undoes until it is settled
        forget_old(root)
    folder = run_folder(root, run)
    manifest = {
        "run": run,
        "cluster": request["cluster"],
        "undoes": request.get("undoes"),
        "state": "staged",
    }
    owners = former_owners(root, request.get("undoes"))
    files = sorted(request["files"], key=lambda wanted: bool(wanted.get("running")))
    manifest["files"] = [
        compared(wanted, under(root, wanted["path"]), run, owners) for wanted in files
    ]
    homes = [os.path.dirname(entry["place"]) for entry in manifest["files"]]
    manifest["folders"] = sorted(set(folder for home in homes for folder in missing_folders(home)))
    make_folder(folder)
    try:
        for number, (entry, wanted) in enumerate(zip(manifest["files"], files)):
            entry["backup"] = keep(folder, "%d.before" % number, decoded(wanted["before"]))
            entry["after"] = keep(folder, "%d.after" % number, decoded(wanted["after"]))
        write_manifest(folder, manifest)
        for path in manifest["folders"]:
            make_folder(path)
        for entry, wanted in zip(manifest["files"], files):
            if not entry["removes"] and not entry["running"]:
                write_new(
                    entry["beside"],
                    decoded(wanted["after"]),
                    entry["mode"],
                    entry["uid"],
                    entry["gid"],
                )
    except BaseException:
        discard(manifest)
        remove_folder(folder)
        raise
    _staged[run] = folder
    return {}


def former_owners(root, undone):
    """Path -> user and group of the files of the run that is undone: somebody may have removed one meanwhile."""
    folder = run_folder(root, undone) if undone else None
    if folder is None or not os.path.exists(os.path.join(folder, "manifest.json")):
        return {}
    return dict((entry["path"], former(entry)[1:]) for entry in read_manifest(folder)["files"])


def former(entry):
    """Mode, user and group of a file before the run, or those that it got where there was none."""
    return entry["was"] or [entry["mode"], entry["uid"], entry["gid"]]


def compared(wanted, place, run, owners):
    """What the manifest says of one file, if it is still what was planned against."""
    entry = {"path": wanted["path"], "place": place, "removes": wanted["after"] is None}
    entry.update(
        resource=wanted.get("resource"),
        running=bool(wanted.get("running")),
        access=wanted.get("access"),
    )
    seen, was = now(entry)
    if seen != decoded(wanted["before"]):
        raise changed(wanted["path"], place, seen, "since it was planned")
    if entry["running"]:
        refuse_fixed(place)
    elif was:
        refuse_pinned(place)
    entry["beside"], entry["was"] = beside_name(place, run), was
    new = [wanted["mode"]] + list(owners.get(wanted["path"], (os.geteuid(), os.getegid())))
    entry["mode"], entry["uid"], entry["gid"] = entry["access"] or was or new
    return entry


def now(entry):
    """Bytes of a file, or a value of the kernel's, and mode, user and group; None and None where there is none."""
    if entry["running"]:
        return value_of(entry["place"]), None
    refuse_shared(entry["place"], entry["place"][: -len(entry["path"].lstrip("/"))])
    seen, state = current(entry["place"])
    return seen, state and [stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid]


def refuse_fixed(place):
    """Stop where the kernel lets nobody set a value, or not from this network namespace."""
    if not os.access(place, os.W_OK):
        raise Stop("denied", "%s may not be set here" % place)


def changed(path, place, seen, when, **more):
    return Stop("changed", "%s changed %s" % (place, when), path=path, current=maybe(seen), **more)


def discard(manifest):
    """Remove what staging laid beside the files, and the folders made for them."""
    for entry in manifest["files"]:
        if not entry["running"] and os.path.lexists(entry["beside"]):
            os.unlink(entry["beside"])
    drop_folders(manifest)


def drop_folders(manifest):
    """Remove the folders that a run made, if they are empty again; those that somebody else uses by now."""
    left = []
    for folder in reversed(manifest["folders"]):
        try:
            os.rmdir(folder)
        except OSError:
            left += [folder] if os.path.isdir(folder) else []
    return left


def commit(agent, request):
    """Operation commit: rename every staged file into place; if one fails, put back those already renamed."""
    folder = run_folder(request["root"], request["run"])
    manifest = read_manifest(folder)
    _staged.pop(request["run"], None)
    renamed = []
    try:
        for entry in manifest["files"]:
            seen, _ = now(entry)
            if seen != kept(folder, entry["backup"]):
                raise changed(entry["path"], entry["place"], seen, "since it was planned")
            if entry["running"]:
                renamed.append(
                    entry
                )  # before it is set: the kernel may take another value than the one it is given
                set_value(entry["place"], kept(folder, entry["after"]))
                continue
            if entry["removes"]:
                os.unlink(entry["place"])
            else:
                os.rename(entry["beside"], entry["place"])
            renamed.append(entry)
            sync_folder(os.path.dirname(entry["place"]))
        manifest["state"] = "committed"
        write_manifest(folder, manifest)
    except BaseException:
        restore(folder, manifest, renamed)
        raise
    return {}


def settle(agent, request):
    """Operation settle: every node has committed, so this run is done, and the one that it undoes is undone.

    `left` of the answer are folders of the run that was undone which are not empty.
    """
    folder = run_folder(request["root"], request["run"])
    manifest = read_manifest(folder)
    if manifest["state"] == "done":
        return {"nothing": "done"}
    if manifest["state"] != "committed":
        raise Stop(
            "failed", "run %s is %s, so it cannot be done" % (request["run"], manifest["state"])
        )
    mark(folder, manifest["undoes"], "undone")
    manifest["state"] = "done"
    write_manifest(folder, manifest)
    original = other_folder(folder, manifest["undoes"])
    left = drop_folders(read_manifest(original)) if original else []
    forget_old(request["root"])
    return {"left": left} if left else {}


def other_folder(folder, other):
    """The folder of another run; None where this node does not remember it."""
    original = os.path.join(os.path.dirname(folder), other or "")
    return original if os.path.exists(os.path.join(original, "manifest.json")) else None


def mark(folder, other, state):
    """Give the run that this one undoes another state."""
    original = other_folder(folder, other)
    if original:
        manifest = read_manifest(original)
        if manifest["state"] != state:
            write_manifest(original, dict(manifest, state=state))


def undo(agent, request):
    """Operation undo: the old bytes of a run that is not settled back in place, over edits of others only by force.

    `by` names the rollback that asked for it.
    """
    folder = run_folder(request["root"], request["undo"])
    _staged.pop(request["undo"], None)
    if not os.path.exists(os.path.join(folder, "manifest.json")):
        return {"nothing": "not begun"}
    manifest = read_manifest(folder)
    if manifest["state"] not in UNSETTLED:
        return {"nothing": manifest["state"]}
    mine = [entry for entry in manifest["files"] if touched(folder, manifest, entry)]
    if not request.get("force"):
        refuse_edited(folder, mine)
    restore(folder, manifest, mine, request.get("by"))
    return {}


def touched(folder, manifest, entry):
    """Whether a file was replaced already: its new bytes are no longer beside it. A value was, where it is the new."""
    if manifest["state"] == "committed" or entry["removes"]:
        return True
    if entry["running"]:
        return now(entry)[0] == kept(folder, entry["after"])
    return not os.path.lexists(entry["beside"])


def refuse_edited(folder, entries):
    for entry in entries:
        seen, _ = now(entry)
        after = kept(folder, entry["after"])
        if seen not in (kept(folder, entry["backup"]), after):
            raise changed(
                entry["path"], entry["place"], seen, "after it was written", after=maybe(after)
            )


def restore(folder, manifest, entries, by=None):
    for entry in entries:
        put_back(folder, entry)
    discard(manifest)
    mark(folder, manifest["undoes"], "done")
    write_manifest(folder, dict(manifest, state="undone", by=by))


def put_back(folder, entry):
    old = kept(folder, entry["backup"])
    seen, access = now(entry)
    if seen == old and (not entry["access"] or access == entry["was"]):
        return
    if entry["running"]:
        set_value(entry["place"], old)
    elif old is None:
        remove_file(entry["place"])
    else:
        replace_file(entry["place"], old, *former(entry))


def runs(agent, request):
    """Operation runs: every run kept here, with bytes before, after and now."""
    return {
        "runs": [described(folder, manifest) for folder, manifest in remembered(request["root"])]
    }


def described(folder, manifest):
    files = []
    for entry in manifest["files"]:
        row = {"path": entry["path"], "mode": former(entry)[0], "now": None, "strange": None}
        row.update(
            resource=entry["resource"],
            running=entry["running"],
            was=entry["was"] if entry["access"] else None,
        )
        try:
            seen, row["access"] = now(entry)
            row["now"] = maybe(seen)
        except Stop as stop:
            row["strange"] = stop.body["why"]
        row["before"], row["after"] = (
            maybe(kept(folder, entry["backup"])),
            maybe(kept(folder, entry["after"])),
        )
        files.append(row)
    keys = ("run", "cluster", "state", "undoes")
    return dict([(key, manifest[key]) for key in keys], files=files, by=manifest.get("by"))


def remove_folder(folder):
    """A run's folder holds files only. The manifest goes first: without it there was no run."""
    for name in sorted(os.listdir(folder), key=lambda name: name != "manifest.json"):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)


def forget_old(root):
    """Runs that failed count too, or they would fill the disk; but none of them pushes out the last that is done."""
    settled = [
        (folder, m["state"]) for folder, m in remembered(root) if m["state"] not in UNSETTLED
    ]
    last = [folder for folder, state in settled if state == "done"][-1:]
    for folder in [folder for folder, _ in settled[:-KEEP] if folder not in last]:
        remove_folder(folder)


def drop_staged():
    """The controller went away between the phases: what it staged is of no use to anybody."""
    for folder in list(_staged.values()):
        try:
            restore(folder, read_manifest(folder), [])
        except (OSError, Stop):  # the next run meets it as not settled
            pass


def install(agent):
    """Register the operations of this part."""
    agent.endings.append(drop_staged)
    for operation in (lock, stage, commit, settle, undo, runs):
        agent.ops[operation.__name__] = guarded(operation)
