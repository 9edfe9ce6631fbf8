"""Steps on real hosts that cannot be all or none: planned, done once, failed, and undone."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator

import pytest

from tests.hosts.test_cut_off import leftovers, quiet
from tests.hosts.test_playbook import said
from tests.support import systemd
from tests.support.command import Answer, clusterprep
from tests.support.lab import Host, Lab

pytestmark = pytest.mark.hosts

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
    undo: rm -f /etc/lab-made/count
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
    lab.host("n3").run(["rm", f"{MADE}/count"])
    newer = apply(lab, BOOK)
    assert [outcome for _, outcome, nodes in outcomes(newer) if nodes == ["n3"]].count("done") == 1
    refused = run(lab, "rollback", "", "--run", done.report["run"])
    assert (refused.code, f"n3: run {newer.report['run']} changed command" in refused.stderr) == (
        4,
        True,
    )
    assert run(lab, "rollback", "").code == 0
    back = run(lab, "rollback", "", "--run", done.report["run"])
    assert (back.code, back.outcomes()) == (0, {"undone"}), back.report
    assert [row["target"].split()[0] for row in back.report["changes"]][:2] == ["sh", "sh"]
    assert state(lab) == before
    assert run(lab, "rollback", "").code == 0
    assert state(lab) == before
    assert leftovers(lab) == []


FAILS = """
- file: {path: /etc/lab-step.conf, content: new}
- name: first
  notify: [last]
  command: {run: mkdir /etc/lab-made, undo: rmdir /etc/lab-made, creates: /etc/lab-made}
- name: second
  serial: 1
  command:
    run: [sh, -c, 'echo "no\\033[31m room" >&2; test "$1" != n2', sh, "{{ node }}"]
    unless: test -e /etc/lab-made/n1 -o -e /etc/lab-second
    undo: rm /etc/lab-second
- name: last
  handler: true
  command: {run: touch /run/lab-read}
"""


def test_a_step_that_fails_undoes_its_node_and_stops_the_others(lab: Lab) -> None:
    before = state(lab)
    lab.host("n1").write("/etc/lab-second", "")
    found = apply(lab, FAILS)
    assert found.code == 1, found.report
    assert outcomes(found) == [
        ("file", "done", ["n1", "n2", "n3", "n4"]),
        ("command", "done", ["n1", "n3", "n4"]),
        ("command", "undone", ["n2"]),
        ("command", "unchanged", ["n1"]),
        ("command", "failed", ["n2"]),
        ("command", "not-started", ["n3"]),
        ("command", "not-started", ["n4"]),
        ("command", "not-started", ["n1", "n2", "n3", "n4"]),
    ]
    (bad,) = [row for row in found.report["changes"] if row["outcome"] == "failed"]
    for word in ("n2", "«second» (line 6)", "sh -c", "exit code 1", "no", "room"):
        assert word in bad["detail"], bad["detail"]
    assert "\033" not in bad["detail"]
    assert "no\\x1b[31m room" in bad["detail"]
    assert [MADE in text for text in state(lab)] == [True, False, True, True]
    lab.host("n1").run(["rm", "/etc/lab-second"])
    assert run(lab, "rollback", "").code == 0
    assert state(lab) == before


SERVICES = """
- name: conf
  file: {path: /etc/lab-step.conf, content: new}
  notify: [restart]
- service: {name: lab-a, enabled: true, running: true}
- service: {name: lab-b.service, enabled: false, running: false}
- name: brings another one
  command: {run: mkdir /etc/lab-units/lab-c.service, creates: &c /etc/lab-units/lab-c.service,
            undo: [rm, -r, *c]}
- service: {name: lab-c, running: true}
- name: restart
  handler: true
  service: {name: lab-a}
"""


def test_services_are_predicted_changed_once_and_as_they_were_after_a_rollback(lab: Lab) -> None:
    hosts = lab.hosts[:2]
    for host in hosts:
        systemd.install(host, "lab-a.service", "lab-b.service")
        host.run(["sh", "-c", "cd /etc/lab-units/lab-b.service && touch enabled active"])
    before = {"lab-a.service": "0", "lab-b.service": "active enabled 0"}
    assert [systemd.units(host) for host in hosts] == [before] * 2
    limit = ("--limit", "n[1-2]")
    predicted = run(lab, "plan", SERVICES, *limit)
    done = apply(lab, SERVICES, *limit)
    assert (done.code, done.outcomes()) == (0, {"done"}), done.report
    assert said(done) == said(predicted)
    assert [row["diff"] for row in done.report["changes"] if row["resource"] == "service"] == [
        "enabled, started", "disabled, stopped", "started", "restarted"
    ]  # fmt: skip
    after = {"lab-a.service": "active enabled 2", "lab-b.service": "0", "lab-c.service": "active 1"}
    assert [systemd.units(host) for host in hosts] == [after] * 2
    again = apply(lab, SERVICES, *limit)
    assert (again.code, again.outcomes()) == (0, {"unchanged"}), said(again)
    assert [systemd.units(host) for host in hosts] == [after] * 2
    back = run(lab, "rollback", "")
    assert (back.code, back.outcomes()) == (0, {"undone"}), back.report
    before = {"lab-a.service": "2", "lab-b.service": "active enabled 1"}
    assert [systemd.units(host) for host in hosts] == [before] * 2


REBOOT = """
- serial: 1
  reboot: {limit: %s}
- name: later
  command: {run: touch /etc/lab-made, creates: /etc/lab-made, undo: rm /etc/lab-made}
"""


def wants_reboot(*hosts: Host) -> None:
    for host in hosts:
        systemd.install(host)
        host.write("/run/reboot-required", "*** System restart required ***\n")


def boots(lab: Lab) -> list[str]:
    return [host.read("/proc/sys/kernel/random/boot_id") for host in lab.hosts]


def test_nodes_start_anew_one_after_the_other_where_they_have_to(lab: Lab) -> None:
    wants_reboot(lab.host("n1"), lab.host("n3"))
    before, made = boots(lab), state(lab)
    predicted = run(lab, "plan", REBOOT % "60s")
    done = apply(lab, REBOOT % "60s")
    assert (done.code, done.outcomes()) == (0, {"done", "unchanged"}), done.report
    assert said(done) == said(predicted)
    assert [one == other for one, other in zip(before, boots(lab), strict=True)] == [
        False,
        True,
        False,
        True,
    ]
    (kept,) = [one for one in done.report["notices"] if "from before the reboot" in one]
    assert kept.startswith("evidence of n[1,3] from before the reboot: ")
    with tarfile.open(kept.rpartition(" ")[2]) as opened:
        names = [name.partition("/")[2] for name in opened.getnames()]
    assert {name.split("/")[1] for name in names if name.startswith("nodes/")} == {"n1", "n3"}
    again = apply(lab, REBOOT % "60s")
    assert (again.code, again.outcomes()) == (0, {"unchanged"}), said(again)
    back = run(lab, "rollback", "")
    assert back.code == 0, back.report
    assert {
        (row["resource"], row["outcome"], row.get("detail")) for row in back.report["changes"]
    } == {("command", "undone", None), ("reboot", "unchanged", "nothing takes it back")}
    assert state(lab) == made
    assert leftovers(lab) == []


def test_a_node_that_does_not_come_back_stops_the_roll_out(lab: Lab) -> None:
    wants_reboot(*lab.hosts)
    before = boots(lab)
    lab.host("n2").write("/usr/local/sbin/systemctl", "#!/bin/sh\nexit 0\n")
    found = apply(lab, REBOOT % "4s")
    assert found.code == 1, found.report
    assert [row for row in outcomes(found) if row[0] == "reboot"] == [
        ("reboot", "done", ["n1"]),
        ("reboot", "unanswered", ["n2"]),
        ("reboot", "not-started", ["n3", "n4"]),
    ]
    assert "its boot id is the same, 4 s after" in str(found.report["changes"])
    assert [one == other for one, other in zip(before, boots(lab), strict=True)] == [
        False,
        True,
        True,
        True,
    ]
    assert MADE not in "".join(state(lab))
    for host in lab.hosts:
        host.run(["rm", "-f", "/run/reboot-required"])
    quiet(lab)
    assert apply(lab, REBOOT % "60s").code == 0
    assert run(lab, "rollback", "").code == 0


def test_a_module_that_cannot_be_loaded_stops_all_before_anything_is_written(lab: Lab) -> None:
    before = state(lab)
    found = apply(
        lab, "- file: {path: /etc/lab-step.conf, content: x}\n- module: {name: no_such_module}\n"
    )
    assert (found.code, found.outcomes()) == (1, {"not-started"}), found.report
    assert "no_such_module cannot be loaded" in str(found.report["changes"])
    assert state(lab) == before
