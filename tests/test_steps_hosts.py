"""Steps that cannot be all or none, on real hosts: predicted, done once, stopped where one fails, and undone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.command import Answer, clusterprep
from tests.lab import Host, Lab
from tests.test_cut_off import quiet
from tests.test_playbook_hosts import said

pytestmark = pytest.mark.lab

MADE, CONF = "/etc/lab-made", "/etc/lab-step.conf"
BOOK = r"""
- name: conf
  file: {path: /etc/lab-step.conf, content: "of {{ node }}\n"}
  notify: [reread]
- name: made
  notify: [reread]
  command:
    run: mkdir -p /etc/lab-made/of-{{ node }}
    undo: [rm, -r, /etc/lab-made]
    creates: /etc/lab-made
- name: counted
  nodes: n[1-3]
  serial: 2
  command:
    run: [sh, -c, 'echo "$1" >> /etc/lab-made/count', sh, "{{ node }}"]
    undo: rm /etc/lab-made/count
    unless: grep -q n /etc/lab-made/count
- name: reread
  handler: true
  command: {run: [sh, -c, 'cp /etc/lab-step.conf /run/lab-read'], undo: rm /run/lab-read}
"""


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Iterator[Lab]:
    yield lab4
    quiet(lab4)


def run(lab: Lab, command: str, book: str, *words: str) -> Answer:
    path = lab.folder / "steps.yaml"
    path.write_text(book)
    if command != "rollback":
        words = ("--playbook", str(path), "--only", "ssh.", *words)
    return clusterprep(lab, command, *words)


def apply(lab: Lab, book: str, *words: str) -> Answer:
    return run(lab, "apply", book, "--no-verify", *words)


def files(host: Host, *roots: str) -> str:
    """Every file below these with its text."""
    script = 'for f; do [ -e "$f" ] && find "$f" -print -type f -exec cat {} +; done; true'
    return host.run(["sh", "-c", script, "sh", *(roots or (MADE, CONF, "/run/lab-read"))]).stdout


def state(lab: Lab) -> list[str]:
    return [files(host) for host in lab.hosts]


def outcomes(found: Answer) -> list[tuple[str, str, list[str]]]:
    return [(row["resource"], row["outcome"], row["nodes"]) for row in found.report["changes"]]


def test_every_deed_is_predicted_done_once_and_undone(lab: Lab) -> None:
    before = state(lab)
    predicted = run(lab, "plan", BOOK, "--detailed-exitcode")
    assert (predicted.code, predicted.outcomes()) == (5, {"planned"}), predicted.report
    assert state(lab) == before
    done = apply(lab, BOOK)
    assert (done.code, done.outcomes()) == (0, {"done"}), done.report
    assert said(done) == said(predicted)
    after = state(lab)
    assert "/etc/lab-made/of-n2\n" in after[1]
    assert lab.host("n3").read(f"{MADE}/count") == "n3\n"
    assert [files(host, "/run/lab-read") for host in lab.hosts] == [
        f"/run/lab-read\nof {host.name}\n" for host in lab.hosts
    ]
    again = apply(lab, BOOK)
    assert (again.code, again.outcomes()) == (0, {"unchanged"}), said(again)
    assert run(lab, "plan", BOOK, "--detailed-exitcode").code == 0
    assert state(lab) == after
