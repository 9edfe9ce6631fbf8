"""The same texts on real hosts.

What is allowed arrives byte for byte at every reader, and none of it is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.changes.test_hostile_values import TRICKS
from tests.support import readers
from tests.support.command import CLI, clusterprep
from tests.support.lab import Lab
from tests.support.lab.faults.files import inside

pytestmark = pytest.mark.hosts

RAN = "/srv/hostile-ran"
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
VALUES = {f"V{number:02}": text for number, text in enumerate(TRICKS) if not CONTROL.search(text)}
WORDS = [text for text in TRICKS if "\0" not in text and "{{" not in text]
CONF = "NCCL_DEBUG_FILE"
PRINTED = ["sh", "-c", "printf '%s\\0' \"$@\" > /srv/words", "sh", *WORDS]


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Iterator[Lab]:
    yield lab4
    places = [*(host.run for host in lab4.hosts), lab4.controller.run]
    found = [run(["sh", "-c", f"ls -d {RAN} 2>/dev/null; true"]).stdout for run in places]
    assert found == [""] * 5, "something of it was run"


def test_no_reader_runs_a_value_and_each_gets_all_of_it(lab: Lab) -> None:
    env = {**VALUES, CONF: "/srv/$(touch /srv/hostile-ran)"}
    inventory = lab.inventory(env=env, env_targets=["profile.d", "slurm-task-prolog", "nccl.conf"])
    done = clusterprep(lab, "apply", "--no-verify", "--only", "ssh.", inventory=inventory)
    assert (done.code, done.outcomes()) == (0, {"done"}), done.report
    host = lab.host("n2")
    script = "/etc/profile.d/clusterprep-nccl.sh"
    found = {shell: readers.sourced(host.run, shell, script) for shell in ("bash", "dash")}
    if host.run(["sh", "-c", "command -v zsh"], check=False).returncode == 0:
        found["zsh"] = readers.sourced(host.run, "zsh", script)
    found["login"] = readers.login_shell(host.run)
    found["slurm"] = readers.slurm(host.run, "/etc/clusterprep/task_prolog.sh")
    for reader, got in found.items():
        assert {name: got.get(name) for name in env} == env, reader
    assert f"{CONF}={env[CONF]}\n" in host.read("/etc/nccl.conf")
    assert clusterprep(lab, "rollback", inventory=inventory).code == 0


def test_what_a_file_cannot_hold_is_refused_before_any_node_is_asked(lab: Lab) -> None:
    """Readers of an env-file differ in what they make of such a value, and a shell would run it."""
    inventory = lab.inventory(env={"LABEL": f"$(touch {RAN})"}, env_targets=["env-file"])
    done = lab.controller.run([*CLI, "apply", inventory], check=False)
    assert done.returncode == 2
    assert "env.LABEL" in done.stderr
    assert f"{inventory}:" in done.stderr


def test_words_content_and_blocks_arrive_as_they_are(lab: Lab) -> None:
    text = "".join(f"{word}\n" for word in WORDS)
    block = "".join(f"{word}\n" for word in WORDS if "\r" not in word)
    book = [
        {"file": {"path": "/srv/hostile/a $(touch b)'\"; c", "content": text}},
        {"line": {"path": "/srv/hostile/lines", "marker": "mine", "block": block}},
        {"command": {"run": PRINTED, "creates": "/srv/words", "undo": ["rm", "-f", "/srv/words"]}},
    ]
    (lab.folder / "hostile.yaml").write_text(json.dumps(book))
    words = ("--playbook", str(lab.folder / "hostile.yaml"), "--no-verify", "--only", "ssh.")
    done = clusterprep(lab, "apply", *words)
    assert (done.code, done.outcomes()) == (0, {"done"}), done.report
    host = lab.host("n3")
    names = host.run(["find", "/srv/hostile", "-type", "f", "-print0"]).stdout
    assert set(names.split("\0")) == {"/srv/hostile/a $(touch b)'\"; c", "/srv/hostile/lines", ""}
    assert read(lab, "/srv/hostile/a $(touch b)'\"; c") == text.encode()
    assert block.encode() in read(lab, "/srv/hostile/lines")
    assert read(lab, "/srv/words") == b"".join(word.encode() + b"\0" for word in WORDS)
    assert clusterprep(lab, "rollback").code == 0
    assert host.run(["ls", "-A", "/srv"]).stdout == ""


def read(lab: Lab, path: str) -> bytes:
    return inside(lab.host("n3"), path).read_bytes()
