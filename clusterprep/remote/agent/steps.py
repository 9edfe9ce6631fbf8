"""What is done step by step: operations one after the other, each noted with its way back before it is done.

`steps.json` beside the manifest of a run has its deeds in the order in which they were done, and for every operation
how far it came: `begun` before anything of it is done, `done`, and after an undo `undone`, `again` where it is to be
run once more, or `kept` where nothing takes it back. It is on disk before the next thing happens, so whoever comes
after a death knows what to undo.
"""

import os

from clusterprep.remote.agent.act import (
    changed,
    drop_folders,
    former,
    now,
    read_manifest,
    run_folder,
)
from clusterprep.remote.agent.commands import end_all, refuse_failed, started, stop_all
from clusterprep.remote.agent.disk import (
    Stop,
    decoded,
    guarded,
    make_folder,
    missing_folders,
    own_text,
    refuse_pinned,
    remove_beside,
    remove_file,
    replace_file,
    set_value,
    under,
)
from clusterprep.remote.agent.light import dumps, loads

JOURNAL = "steps.json"


# ---------------------------------------------------------------- the journal


def deeds_of(folder):
    """What a run did here step by step, in its order."""
    path = os.path.join(folder, JOURNAL)
    if not os.path.exists(path):
        return []
    return loads(own_text(path).decode("ascii"))


def note(folder, step_actions):
    """Put the journal on disk: what is written next happens after that."""
    text = dumps(step_actions).encode("ascii") + b"\n"
    replace_file(os.path.join(folder, JOURNAL), text, 0o600, os.geteuid(), os.getegid())


# ---------------------------------------------------------------- doing


def perform(request):
    """Operation perform: do these deeds in their order; a failure ends it, and `deed` of the answer says at which.

    {"root", "run", "deeds": [{"place", "step", "resource", "target", "action", "diff", "operations"}]}
    """
    folder = run_folder(request["root"], request["run"])
    manifest = read_manifest(folder)
    if manifest["state"] != "committed":
        raise Stop("failed", "run %s is %s" % (request["run"], manifest["state"]))
    step_actions = deeds_of(folder)
    for number, step_action in enumerate(request["deeds"]):
        step_actions.append(step_action)
        for operation in step_action["operations"]:
            operation["state"] = "begun"
            try:
                if operation["do"] in ("run", "reboot"):
                    note(folder, step_actions)
                    command = yield operation
                    refuse_failed(dict(operation, codes=operation.get("codes", [0])), command)
                else:
                    prepared(request["root"], operation)
                    note(folder, step_actions)
                    replace(operation)
            except Stop as stop:
                stop.body["deed"] = number
                raise
            operation["state"] = "done"
            note(folder, step_actions)


def prepared(root, operation):
    """What an undo will need of a file or a value, if it is still what it was planned against."""
    operation["running"] = operation["do"] == "value"
    operation["place"] = place = (
        operation["path"] if operation["running"] else under(root, operation["path"])
    )
    seen, was = now(operation)
    if seen != before_of(operation):
        raise changed(operation["path"], place, seen, "since it was planned")
    if not operation["running"]:
        if was:
            refuse_pinned(place)
        operation["was"], operation["uid"], operation["gid"] = was, os.geteuid(), os.getegid()
        operation["folders"] = missing_folders(os.path.dirname(place))


def before_of(operation):
    data = decoded(operation["before"])
    return data.replace(b"\t", b" ") if operation["do"] == "value" and data is not None else data


def replace(operation):
    after, place = decoded(operation["after"]), operation["place"]
    if operation["running"]:
        set_value(place, after)
    elif after is None:
        remove_file(place)
    else:
        make_folder(os.path.dirname(place))
        replace_file(place, after, *former(operation))


# ---------------------------------------------------------------- undoing


def take_back(request):
    """Operation take_back: undo what a run did here, the last first.

    {"root", "run", "half", "again", "go_on", "force"}: with `half` only if the run stopped in the middle of a deed;
    with `again` what is to be run once all is back follows. Where an undo fails, it ends, unless `go_on` says that the
    rest is to be undone all the same; by `force` what fails is then given up. The answer tells by places in the journal
    what was `undone`, what nothing takes back, `kept`, and at which `deed` it failed.
    """
    folder = run_folder(request["root"], request["run"])
    step_actions = deeds_of(folder)
    answer = {"undone": [], "kept": []}
    if not request.get("half") or not all(is_whole(step_action) for step_action in step_actions):
        for number, step_action in reversed(list(enumerate(step_actions))):
            todo = [
                each
                for each in reversed(step_action["operations"])
                if each.get("state") in ("begun", "done")
            ]
            for operation in todo:
                trouble = yield from undone(operation, request.get("force"))
                note(folder, step_actions)
                if trouble:
                    answer = dict(trouble, **dict({"deed": number}, **answer))
                    if not request.get("go_on") and not request.get("force"):
                        return answer
            states = [operation["state"] for operation in todo]
            if todo and not {"begun", "done"} & set(states):
                answer["kept" if "kept" in states else "undone"].append(number)
    if request.get("again"):
        trouble = yield from run_again(folder, step_actions)
        answer = dict(trouble or {}, **answer)
    return answer


def undone(operation, force):
    """Take one operation back; why that failed, None where it did not."""
    try:
        for run in undo_of(operation):
            refuse_failed(run, (yield run))
        if operation["do"] in ("write", "value"):
            put_back(operation, force)
    except Stop as stop:
        operation["state"] = "kept" if force else operation["state"]
        return stop.body
    operation["state"] = left_by(operation)
    return None


def is_whole(step_action):
    """Whether all operations of a deed were done, or none is to be undone any more."""
    return all(
        operation.get("state") in ("done", "undone", "kept", "again")
        for operation in step_action["operations"]
    )


def undo_of(operation):
    """The commands that take an operation back; none where it is no command, or where nothing does."""
    return (operation["undo"] or []) if operation["do"] == "run" and not is_left(operation) else []


def is_left(operation):
    """Whether nothing takes an operation back."""
    if operation["do"] in ("write", "value"):
        return False
    if operation["do"] == "reboot" or (operation["undo"] is None and not operation["again"]):
        return True
    return operation["state"] == "begun" and not operation["halfway"]


def left_by(operation):
    """The state of an operation after its undo."""
    if is_left(operation):
        return "kept"
    return "again" if operation.get("again") else "undone"


def put_back(operation, force):
    """The old bytes, unless somebody has changed the file meanwhile."""
    if "place" not in operation:
        return  # it had not come so far
    place, old = operation["place"], before_of(operation)
    seen, access = now(operation)
    if seen not in (old, decoded(operation["after"])) and not force:
        raise changed(
            operation["path"], place, seen, "after it was written", after=operation["after"]
        )
    if operation["running"]:
        set_value(place, old)
        return
    remove_beside(place)
    if old is None:
        if seen is not None:
            remove_file(place)
        drop_folders(operation)
    elif seen != old or access != operation["was"]:
        replace_file(place, old, *operation["was"])


def run_again(folder, step_actions):
    """Run what reads what is there now that the rest is as it was; why that failed, None where it did not."""
    try:
        for operation in [
            each
            for step_action in step_actions
            for each in step_action["operations"]
            if each.get("state") == "again"
        ]:
            for run in operation["again"]:
                refuse_failed(run, (yield run))
            operation["state"] = "undone"
            note(folder, step_actions)
    except Stop as stop:
        return stop.body
    return None


# ---------------------------------------------------------------- telling, stopping


@guarded
def step_actions(agent, request):
    """Operation deeds: what a run did here, without bytes: [place, step, resource, target, action, diff, states]."""
    keys = ("place", "step", "resource", "target", "action", "diff")
    rows = deeds_of(run_folder(request["root"], request["run"]))
    return {
        "deeds": [
            [row[key] for key in keys] + [[each.get("state") for each in row["operations"]]]
            for row in rows
        ]
    }


def halt(agent, request):
    """Operation halt: end what is under way, with all that descends from it."""
    stop_all()
    return {}


def install(agent):
    """Register the operations of this part."""
    agent.endings.append(end_all)
    agent.ops.update(
        perform=started(perform), take_back=started(take_back), deeds=step_actions, halt=halt
    )
