"""Steps of a run: operations one after the other, each noted with its way back before it is done.

`steps.json` beside the manifest of a run has the step actions in the order in which they were done,
and for every operation its state: `begun` before anything of it is done, `done`, and after a
rollback `undone`, `again` where its commands are to be run once more, or `kept` where nothing takes
it back. The journal is on disk before the next thing happens, so that after a crash it says what to
undo.

An operation is what `wire` of clusterprep/model/operations.py makes. Before it is done,
`prepare_undo` adds to one that writes: `place`, its path with the root; `running`, whether it is a
kernel value; `was`, mode, user and group of the file that is there; `attributes`, its extended
attributes; `kept`, its second name while another file has its place; `uid` and `gid`, those of a
new file; `folders`, those that are made for it.
"""

import os

from clusterprep.remote.agent.act import (
    STEPS,
    STEPS_TO_UNDO,
    access_before,
    bring_back,
    changed_error,
    coded_attributes,
    current_state,
    decoded_attributes,
    free_name,
    kept_links,
    kept_name,
    read_manifest,
    read_steps,
    refuse_large,
    remove_empty_folders,
    run_folder,
    state_or_large,
)
from clusterprep.remote.agent.commands import end_all, refuse_failed, runs_commands, stop_all
from clusterprep.remote.agent.disk import (
    Stop,
    attributes_of,
    below_root,
    decoded,
    guarded,
    keep_link,
    make_folder,
    missing_folders,
    refuse_pinned,
    remove_file,
    remove_leftover,
    remove_links,
    replace_file,
    replace_state,
    reserve,
    roomy,
    set_value,
)
from clusterprep.remote.agent.light import dumps, readable

SPARE = "steps.spare"  # of the same folder; takes the place of the journal on a full disk
SETTLED = ("done", "undone", "kept", "again")  # states of operations that were not interrupted


# ---------------------------------------------------------------- the journal


def write_journal(folder, step_actions, grows=False):
    """Put the journal on disk, before what it says happens.

    Where it `grows`, because something is about to be done, room for its undo is taken as well.
    """
    path = os.path.join(folder, STEPS)
    text = dumps(readable(step_actions)).encode("ascii")
    spare = os.path.join(folder, SPARE)
    if grows:
        reserve(spare, 2 * len(roomy(text)), 0o600)
    replace_state(path, text, spare, 0o600)


# ---------------------------------------------------------------- doing


def perform(request):
    """Operation perform: do these step actions in their order, until one fails.

    {"root", "run", "deeds": [{"place", "step", "resource", "target", "action", "diff",
    "operations"}]}

    After a failure `deed` of the answer is the index of the step action that failed. Yields every
    command that the caller is to run, and is sent the command when it has ended.
    """
    root, run = request["root"], request["run"]
    folder = run_folder(root, run)
    manifest = read_manifest(folder)
    if manifest["state"] != "committed":
        raise Stop("failed", "run %s is %s" % (run, manifest["state"]))
    step_actions = read_steps(folder)
    for index, step_action in enumerate(request["deeds"]):
        step_actions.append(step_action)
        for operation in step_action["operations"]:
            operation["state"] = "begun"
            try:
                yield from _perform_operation(root, operation, folder, step_actions)
            except Stop as stop:
                stop.body["deed"] = index
                raise
            operation["state"] = "done"
            write_journal(folder, step_actions)


def _perform_operation(root, operation, folder, step_actions):
    """Do one operation, noted in the journal before. Yields a command. Raises Stop if it fails."""
    if operation["do"] in ("run", "reboot"):
        write_journal(folder, step_actions, grows=True)
        command = yield operation
        codes = operation.get("codes", [0])
        refuse_failed(dict(operation, codes=codes), command)
    else:
        prepare_undo(root, operation, os.path.basename(folder))
        write_journal(folder, step_actions, grows=True)
        write_after(operation)


def prepare_undo(root, operation, run):
    """Add to an operation what its undo needs; raise Stop if the file changed since the plan."""
    path = operation["path"]
    is_value = operation["do"] == "value"
    place = path if is_value else below_root(root, path)
    operation["running"] = is_value
    operation["place"] = place
    seen, was = current_state(operation)
    if seen != before_of(operation):
        raise changed_error(path, place, seen, "since it was planned")
    if is_value:
        return
    operation["kept"] = None
    operation["attributes"] = {}
    if was:
        refuse_pinned(place)
        operation["kept"] = free_name(kept_name(place, run))
        operation["attributes"] = coded_attributes(attributes_of(place))
    operation["was"] = was
    operation["uid"] = os.geteuid()
    operation["gid"] = os.getegid()
    operation["folders"] = missing_folders(os.path.dirname(place))


def before_of(operation):
    """Return the bytes before an operation; the columns of a kernel value are parted by a blank."""
    data = decoded(operation["before"])
    if data is not None and operation["do"] == "value":
        return data.replace(b"\t", b" ")
    return data


def write_after(operation):
    """Give the file or the kernel value of an operation its new bytes."""
    place = operation["place"]
    after = decoded(operation["after"])
    if operation["running"]:
        set_value(place, after)
        return
    if operation["kept"]:
        keep_link(place, operation["kept"])
    if after is None:
        remove_file(place)
        return
    make_folder(os.path.dirname(place))
    mode, uid, gid = access_before(operation)
    attributes = decoded_attributes(operation["attributes"])
    replace_file(
        place,
        after,
        mode,
        uid,
        gid,
        attributes,
    )


# ---------------------------------------------------------------- undoing


def take_back(request):
    """Operation take_back: undo the step actions of a run, the last first.

    {"root", "run", "half", "again", "go_on", "force"}: with `half` only if the run stopped within a
    step action; with `again` the commands for the time after a rollback follow. A failed undo ends
    it, unless `go_on` says that the rest is to be undone all the same; with `force` what fails is
    given up. The answer has indexes of the journal: those that were `undone`, those that nothing
    takes back, `kept`, and the first that failed, `deed`.
    """
    folder = run_folder(request["root"], request["run"])
    step_actions = read_steps(folder)
    answer = {
        "undone": [],
        "kept": [],
    }
    only_half = request.get("half")
    if not only_half or not all(is_whole(step_action) for step_action in step_actions):
        answer, ended = yield from _undo_all(request, folder, step_actions, answer)
        if ended:
            return answer
    if request.get("again"):
        failure = yield from run_again(folder, step_actions)
        answer = dict(failure or {}, **answer)
    return answer


def _undo_all(request, folder, step_actions, answer):
    """Undo every step action, the last first; return the answer, and whether a failure ended it."""
    force = request.get("force")
    goes_on = force or request.get("go_on")
    for index in reversed(range(len(step_actions))):
        operations = step_actions[index]["operations"]
        to_undo = [each for each in reversed(operations) if each.get("state") in STEPS_TO_UNDO]
        for operation in to_undo:
            failure = yield from undo_operation(operation, force)
            write_journal(folder, step_actions)
            if failure:
                answer = _with_failure(failure, index, answer)
                if not goes_on:
                    return answer, True
        _note_undone(answer, index, to_undo)
    return answer, False


def _with_failure(failure, index, answer):
    """Return the answer with a failure; what an earlier failure said stays."""
    merged = dict(failure, deed=index)
    merged.update(answer)
    return merged


def _note_undone(answer, index, operations):
    """Add a step action to `undone` or `kept` of an answer, once no operation is left to undo."""
    states = [operation["state"] for operation in operations]
    if not states or "begun" in states or "done" in states:
        return
    outcome = "kept" if "kept" in states else "undone"
    answer[outcome].append(index)


def undo_operation(operation, force):
    """Take one operation back; return the body of the failure, or None."""
    try:
        for command in undo_commands(operation):
            ended = yield command
            refuse_failed(command, ended)
        if operation["do"] in ("write", "value"):
            put_back(operation, force)
    except Stop as stop:
        if force:
            operation["state"] = "kept"
            remove_links(kept_links([operation]))
        return stop.body
    operation["state"] = state_after_undo(operation)
    return None


def is_whole(step_action):
    """Return whether every operation of a step action was done, or needs no undo any more."""
    return all(operation.get("state") in SETTLED for operation in step_action["operations"])


def undo_commands(operation):
    """Return the commands that take an operation back; none if it is no command or stays."""
    if operation["do"] != "run" or cannot_be_undone(operation):
        return []
    return operation["undo"] or []


def cannot_be_undone(operation):
    """Return whether nothing takes an operation back."""
    if operation["do"] in ("write", "value"):
        return False
    if operation["do"] == "reboot":
        return True
    if operation["undo"] is None and not operation["again"]:
        return True
    return operation["state"] == "begun" and not operation["halfway"]


def state_after_undo(operation):
    """Return the state of an operation after its undo."""
    if cannot_be_undone(operation):
        return "kept"
    return "again" if operation.get("again") else "undone"


def put_back(operation, force):
    """Undo a write: give the file or kernel value its old bytes, owner and mode.

    Raises Stop if it was changed after the run, unless `force`.
    """
    if "place" not in operation:
        return  # it stopped before anything was written
    place = operation["place"]
    old = before_of(operation)
    new = decoded(operation["after"])
    seen, access = state_or_large(operation)
    if seen not in (old, new) and not force:
        refuse_large(operation["path"], place, seen)
        when = "after it was written"
        raise changed_error(operation["path"], place, seen, when, after=operation["after"])
    if operation["running"]:
        set_value(place, old)
        return
    remove_leftover(place)
    if old is None:
        if seen is not None:
            remove_file(place)
        remove_empty_folders(operation)
    elif seen != old or access != operation["was"]:
        # Releases before this one noted no attributes.
        bring_back(operation, old, decoded_attributes(operation.get("attributes") or {}))
    remove_links(kept_links([operation]))


def run_again(folder, step_actions):
    """Run the `again` commands after a rollback; return the body of the failure, or None.

    These commands make something read the files, which are as they were only now.
    """
    try:
        for step_action in step_actions:
            for operation in step_action["operations"]:
                if operation.get("state") != "again":
                    continue
                for command in operation["again"]:
                    ended = yield command
                    refuse_failed(command, ended)
                operation["state"] = "undone"
                write_journal(folder, step_actions)
    except Stop as stop:
        return stop.body
    return None


# ---------------------------------------------------------------- reporting, stopping


@guarded
def list_step_actions(agent, request):
    """Operation deeds: the step actions of a run without bytes.

    Each is [place, step, resource, target, action, diff, states of its operations].
    """
    rows = []
    folder = run_folder(request["root"], request["run"])
    for step_action in read_steps(folder):
        row = [
            step_action[key] for key in ("place", "step", "resource", "target", "action", "diff")
        ]
        states = [operation.get("state") for operation in step_action["operations"]]
        rows.append(row + [states])
    return {"deeds": rows}


def halt(agent, request):
    """Operation halt: end the command under way, with all that descends from it."""
    stop_all()
    return {}


def install(agent):
    """Register the operations of this part."""
    agent.endings.append(end_all)
    agent.ops["perform"] = runs_commands(perform)
    agent.ops["take_back"] = runs_commands(take_back)
    agent.ops["deeds"] = list_step_actions
    agent.ops["halt"] = halt
