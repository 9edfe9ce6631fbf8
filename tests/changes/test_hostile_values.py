"""Hostile inventories and playbooks: refused, or taken as the plain text that is written there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterprep.changes.playbook.reading import load_playbook
from clusterprep.errors import InputError
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Inventory

TOUCH = "touch /srv/hostile-ran"
TRICKS = (
    f"$({TOUCH})",
    f"`{TOUCH}`",
    f"; {TOUCH}",
    f"x; {TOUCH} #",
    f"| {TOUCH}",
    f"&& {TOUCH}",
    f"& {TOUCH} &",
    "x > /srv/hostile-ran",
    f"'; {TOUCH}; '",
    f'"; {TOUCH}; "',
    f"'$({TOUCH})'",
    '"',
    "'",
    "\\",
    "\\'",
    "\\n",
    f"x\n{TOUCH}",
    f"x\r{TOUCH}",
    f"x\r\n{TOUCH}",
    "x\0y",
    "\x1b]0;title\x07",
    "x\x85y",
    "x\u2028y",
    "x\u2029y",
    "%h%i%n",
    "%%",
    "$HOME",
    "${IFS}",
    "~root",
    "*",
    "?",
    "[a-z]",
    "!!",
    "!!python/object/apply:os.system [id]",
    "{{ 7 * 7 }}",
    "{{ node }}",
    "{% raw %}",
    "<<",
    "&a",
    "*a",
    "- x",
    "# x",
    "-o",
    "--help",
    "-oProxyCommand=touch",
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    ".",
    "@group",
    "=x",
    "x=y",
    "x:y",
    " x",
    "x ",
    "\u202ex",
    "x\ufeff",
)


def base() -> dict[str, Any]:
    return {"nodes": [{"name": "n1", "address": "10.0.0.1"}, {"name": "n2", "address": "10.0.0.2"}]}


Place = tuple[Callable[[str], dict[str, Any]], Callable[[Inventory], object]]


def at_top(**keys: Any) -> dict[str, Any]:
    return {**base(), **keys}


INVENTORY: dict[str, Place] = {
    "cluster": (lambda t: at_top(cluster=t), lambda i: i.cluster),
    "env value": (
        lambda t: at_top(env={"LABEL": t}, env_targets=["profile.d"]),
        lambda i: i.nodes[0].env["LABEL"].value,
    ),
    "env name": (lambda t: at_top(env={t: "1"}), lambda i: next(iter(i.nodes[0].env))),
    "node name": (
        lambda t: {"nodes": [{"name": t, "address": "10.0.0.1"}]},
        lambda i: i.nodes[0].name,
    ),
    "address": (lambda t: {"nodes": [{"name": "n1", "address": t}]}, lambda i: i.nodes[0].address),
    "group": (lambda t: at_top(groups={t: {"nodes": "n1"}}), lambda i: next(iter(i.groups))),
    "nodes of a group": (lambda t: at_top(groups={"g": {"nodes": t}}), lambda i: i.groups["g"]),
    "user": (lambda t: at_top(ssh={"user": t}), lambda i: i.nodes[0].ssh.user),
    "identity_file": (
        lambda t: at_top(ssh={"identity_file": t}),
        lambda i: i.nodes[0].ssh.identity_file,
    ),
    "known_hosts": (lambda t: at_top(ssh={"known_hosts": t}), lambda i: i.nodes[0].ssh.known_hosts),
    "config": (lambda t: at_top(ssh={"config": t}), lambda i: i.nodes[0].ssh.config),
    "job_user": (lambda t: at_top(job_user=t), lambda i: i.nodes[0].job_user),
    "python": (lambda t: at_top(python=t), lambda i: i.nodes[0].python),
    "python behind /": (
        lambda t: at_top(python="/" + t),
        lambda i: i.nodes[0].python.removeprefix("/"),
    ),
    "root": (lambda t: at_top(root="/" + t), lambda i: i.nodes[0].root.removeprefix("/")),
    "interface": (lambda t: at_top(interfaces={"nccl": t}), lambda i: i.nodes[0].interfaces.nccl),
    "rdma": (
        lambda t: at_top(interfaces={"rdma": [t]}),
        lambda i: (i.nodes[0].interfaces.rdma or ("",))[0],
    ),
    "port": (lambda t: at_top(ports={"master": t}), lambda i: i.master_port),
    "gpus": (
        lambda t: at_top(gpus={"count": 8, "model": t}),
        lambda i: i.nodes[0].gpus and i.nodes[0].gpus.model,
    ),
    "gpus use": (
        lambda t: at_top(gpus={"count": 8, "use": t}),
        lambda i: i.nodes[0].gpus and i.nodes[0].gpus.use,
    ),
    "require": (
        lambda t: at_top(require={"fs.mount": t}),
        lambda i: i.nodes[0].require["fs.mount"],
    ),
    "require kernel": (
        lambda t: at_top(require={"kernel": t}),
        lambda i: i.nodes[0].require["kernel.version"],
    ),
    "require name": (lambda t: at_top(require={t: "1"}), lambda i: next(iter(i.nodes[0].require))),
    "silence": (
        lambda t: at_top(silence=[{"check": "pcie.acs", "nodes": "n1", "reason": t}]),
        lambda i: i.silences[0].reason,
    ),
    "a key": (lambda t: at_top(**{t: "1"}), lambda i: None),
    "transport": (lambda t: at_top(transport=t), lambda i: i.nodes[0].transport),
}
# Text for people, paths on the controller, and values that shells get quoted: there something
# must get through.
WIDE = {"env value", "cluster", "silence", "identity_file", "known_hosts", "config", "gpus"}


def refused(tell: Callable[[], object]) -> bool:
    """Whether it is refused, each problem with line and key, without control characters."""
    with pytest.raises(InputError) as raised:
        tell()
    assert raised.value.code == 2
    for problem in raised.value.problems:
        assert problem.line, problem
        assert (
            problem.key
            or problem.file == "/etc/passwd"
            or "not YAML" in problem.message
            or "not allowed in YAML" in problem.message
        ), problem
        assert str(problem).isprintable(), problem
    return True


# Blanks around a range of names mean nothing, two slashes in a path are one, and a dot is nothing.
SAME = {" x": ("x",), "x ": ("x",), "/etc/passwd": ("etc/passwd",), ".": ("",)}


def outcome(load: Callable[[], Any], value: Callable[[Any], object], text: str) -> str:
    """`refused` or `exact`; anything else fails."""
    try:
        loaded = load()
    except InputError:
        refused(load)
        return "refused"
    assert value(loaded) in {text, *SAME.get(text, ())}, f"{text!r} arrived as {value(loaded)!r}"
    return "exact"


@pytest.mark.parametrize("place", INVENTORY)
def test_an_inventory_says_what_it_says_or_nothing(place: str, tmp_path: Path) -> None:
    make, value = INVENTORY[place]
    file = tmp_path / "inventory.yaml"
    ends = {}
    for text in TRICKS:
        file.write_text(json.dumps(make(text)))
        ends[text] = outcome(lambda: load_inventory(file), value, text)
    if place in WIDE:
        assert ends["{{ node }}"] == ends[f"$({TOUCH})"] == "exact", ends
    elif place not in ("require", "python behind /", "root"):
        assert {ends[text] for text in TRICKS if TOUCH in text} == {"refused"}, ends
    for text in ("x\0y", f"x\n{TOUCH}", f"x\r{TOUCH}", "\x1b]0;title\x07"):
        assert ends[text] == "refused" or place in ("silence", "require"), (place, text)


# ---------------------------------------------------------------- playbooks

Step = Callable[[str], dict[str, Any]]
STEPS: dict[str, tuple[Step, Callable[[Any], object]]] = {
    "name": (lambda t: {"name": t, "file": {"path": "/srv/x", "content": "x"}}, lambda s: s.name),
    "nodes": (
        lambda t: {"nodes": t, "file": {"path": "/srv/x", "content": "x"}},
        lambda s: s.nodes,
    ),
    "when": (lambda t: {"when": t, "file": {"path": "/srv/x", "content": "x"}}, lambda s: s.when),
    "tags": (
        lambda t: {"tags": [t], "file": {"path": "/srv/x", "content": "x"}},
        lambda s: s.tags[0],
    ),
    "include": (lambda t: {"include": t}, lambda s: s),
    "notify": (
        lambda t: {"notify": [t], "file": {"path": "/srv/x", "content": "x"}},
        lambda s: s.notify[0],
    ),
    "file path": (lambda t: {"file": {"path": t, "content": "x"}}, lambda s: s.params["path"]),
    "file path below": (
        lambda t: {"file": {"path": "/srv/" + t, "content": "x"}},
        lambda s: s.params["path"].removeprefix("/srv/"),
    ),
    "file content": (
        lambda t: {"file": {"path": "/srv/x", "content": t}},
        lambda s: s.params["content"],
    ),
    "file mode": (
        lambda t: {"file": {"path": "/srv/x", "content": "x", "mode": t}},
        lambda s: s.params["mode"],
    ),
    "file owner": (
        lambda t: {"file": {"path": "/srv/x", "content": "x", "owner": t}},
        lambda s: s.params["owner"],
    ),
    "file template": (
        lambda t: {"file": {"path": "/srv/x", "template": t}},
        lambda s: "/etc/passwd" if "root:" in s.params["content"] else s,
    ),
    "line marker": (
        lambda t: {"line": {"path": "/srv/x", "marker": t, "block": "x"}},
        lambda s: s.params["marker"],
    ),
    "line block": (
        lambda t: {"line": {"path": "/srv/x", "marker": "m", "block": t}},
        lambda s: s.params["block"],
    ),
    "line comment": (
        lambda t: {"line": {"path": "/srv/x", "marker": "m", "block": "x", "comment": t}},
        lambda s: s.params["comment"],
    ),
    "limits": (lambda t: {"limits": {"memlock": t}}, lambda s: s.params["memlock"]),
    "sysctl name": (lambda t: {"sysctl": {t: "1"}}, lambda s: next(iter(s.params))),
    "sysctl name below": (
        lambda t: {"sysctl": {"net." + t: "1"}},
        lambda s: next(iter(s.params)).removeprefix("net."),
    ),
    "sysctl value": (
        lambda t: {"sysctl": {"net.core.somaxconn": t}},
        lambda s: s.params["net.core.somaxconn"],
    ),
    "service": (lambda t: {"service": {"name": t, "running": True}}, lambda s: s.params["name"]),
    "package": (lambda t: {"package": {"name": t}}, lambda s: s.params["name"]),
    "package version": (
        lambda t: {"package": {"name": "chrony", "version": t}},
        lambda s: s.params["version"],
    ),
    "kernel args": (lambda t: {"kernel": {"at_least": t}}, lambda s: s.params["at_least"]),
    "module": (lambda t: {"module": {"name": t}}, lambda s: s.params["name"]),
    "module options": (
        lambda t: {"module": {"name": "x", "options": t}},
        lambda s: s.params["options"],
    ),
    "command run": (
        lambda t: {"command": {"run": ["true", t], "creates": "/srv/x"}},
        lambda s: s.params["run"][1],
    ),
    "command creates": (
        lambda t: {"command": {"run": ["true"], "creates": t}},
        lambda s: s.params["creates"],
    ),
    "firewall": (lambda t: {"firewall": {"allow": [t]}}, lambda s: s.params["allow"][0]),
    "clock": (lambda t: {"clock": {"servers": [t]}}, lambda s: s.params["servers"][0]),
    "shm": (lambda t: {"shm": {"size": t}}, lambda s: s.params["size"]),
    "a resource": (lambda t: {t: {}}, lambda s: s),
    "a parameter": (lambda t: {"file": {"path": "/srv/x", "content": "x", t: "x"}}, lambda s: s),
}
# Places that hold any text: contents of files, and words of a command, which no shell reads.
TEXTS = {"file content", "line block", "command run", "sysctl value"}
KERNELS = {f"x\n{TOUCH}", f"x\r{TOUCH}", "x\0y", "\x1b]0;title\x07"}


@pytest.mark.parametrize("place", STEPS)
def test_a_playbook_says_what_it_says_or_nothing(place: str, tmp_path: Path) -> None:
    make, value = STEPS[place]
    (tmp_path / "inventory.yaml").write_text(json.dumps(base()))
    inventory = load_inventory(tmp_path / "inventory.yaml")
    file = tmp_path / "book.yaml"
    ends = {}
    for text in TRICKS:
        file.write_text(json.dumps([make(text)]))
        ends[text] = outcome(lambda: load_playbook(str(file), inventory).steps[0], value, text)
    if place in TEXTS:
        assert ends[f"$({TOUCH})"] == "exact", ends
    elif place not in FREE:
        assert {ends[text] for text in TRICKS if TOUCH in text} == {"refused"}, ends
    if place not in {"file content", "line block", "command run"}:
        assert {ends[text] for text in KERNELS} == {"refused"}, ends


FREE = {"name", "file path below", "line marker", "tags", "command creates", "limits"}


# ---------------------------------------------------------------- YAML itself

BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
YAMLS: dict[str, tuple[str, str]] = {
    "python object": (
        "cluster: !!python/object/apply:os.system ['touch /srv/hostile-ran']\n",
        "tag",
    ),
    "python name": ("cluster: !!python/name:os.system\n", "tag"),
    "own tag": ("cluster: !mine x\n", "tag"),
    "binary": ("cluster: !!binary aGk=\n", "tag"),
    "a set": ("cluster: !!set {a, b}\n", "tag"),
    "billion laughs": (BOMB, "alias"),
    "billion merges": (
        "x: &m0 {a: 1}\n"
        + "".join(
            f"y{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
        ),
        "",
    ),
    "an alias of itself": ("cluster: &a [*a]\n", ""),
    "merge of itself": ("x: &a {<<: *a}\n", ""),
    "deep lists": ("cluster: " + "[" * 100_000, "deep"),
    "deep mappings": ("cluster: " + "{a: " * 100_000, "deep"),
    "deep blocks": ("".join(" " * n + "a:\n" for n in range(300)), "deep"),
    "a key of a list": ("? [a, b]\n: c\n", ""),
    "two documents": ("cluster: a\n---\ncluster: b\n", "second document"),
    "NUL": ("cluster: a\0b\n", "not allowed in YAML"),
    "a directive": ("%YAML 9.9\n---\ncluster: a\n", ""),
    "a tag directive": (
        "%TAG ! tag:yaml.org,2002:python/\n---\ncluster: !name:os.system x\n",
        "tag",
    ),
}


@pytest.mark.parametrize("name", YAMLS)
@pytest.mark.parametrize("kind", ["inventory", "playbook"])
def test_what_yaml_can_be_made_to_do_is_not_done(kind: str, name: str, tmp_path: Path) -> None:
    text, words = YAMLS[name]
    file = tmp_path / f"{kind}.yaml"
    file.write_text(text if kind == "inventory" else playbook_of(text))
    with pytest.raises(InputError) as raised:
        (load_inventory if kind == "inventory" else load_playbook)(str(file))
    assert all(problem.line for problem in raised.value.problems)
    if kind == "inventory":
        assert words in " ".join(str(problem) for problem in raised.value.problems)


def playbook_of(text: str) -> str:
    """The same in a list of one step."""
    if text.startswith("%"):
        head, rest = text.split("---\n", 1)
        return f"{head}---\n- {rest}"
    return "- " + "  ".join(text.splitlines(keepends=True))


LONG = ["cluster", "env value", "python behind /", "identity_file", "silence", "a key"]


@pytest.mark.parametrize("place", LONG)
def test_a_text_of_megabytes_is_whole_or_refused_in_a_few_words(place: str, tmp_path: Path) -> None:
    make, value = INVENTORY[place]
    text = "x" * 3_000_000
    file = tmp_path / "inventory.yaml"
    file.write_text(json.dumps(make(text)))
    try:
        found = value(load_inventory(file))
    except InputError as error:
        found, text = max(len(str(problem)) for problem in error.problems) < 1000, ""
    assert found is True or found == text


@pytest.mark.parametrize("load", [load_inventory, load_playbook])
def test_a_text_without_end_is_not_even_read(load: Callable[[str], object], tmp_path: Path) -> None:
    file = tmp_path / "inventory.yaml"
    with file.open("wb") as sink:
        sink.write(b"cluster: x")
        sink.truncate(100_000_000_000)  # it takes no room: what is not written is zeros
    with pytest.raises(InputError, match="more than 64 MiB is not a"):
        load(str(file))
