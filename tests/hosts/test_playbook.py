"""Steps on real hosts: plan says each change, apply makes it and no other, rollback undoes all.

A second apply changes nothing.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.test_agent_killed import killed_at
from tests.hosts.test_cut_off import leftovers, quiet
from tests.support.command import Answer, clusterprep
from tests.support.lab import Host, Lab

pytestmark = pytest.mark.hosts

BANNER, CONF = "/etc/lab-banner", "/etc/lab.conf"
LIMITS = (
    "/etc/security/limits.d/90-clusterprep.conf",
    "/etc/systemd/system.conf.d/90-clusterprep.conf",
    "/etc/systemd/user.conf.d/90-clusterprep.conf",
)
SYSCTL = "/etc/sysctl.d/90-clusterprep.conf"
KEYS = ("net/core/somaxconn", "net/ipv4/ip_local_port_range", "net/ipv4/tcp_keepalive_time")
BOOK = r"""
- name: banner
  tags: [files]
  file: {path: /etc/lab-banner, template: banner.txt, mode: "0600", owner: nobody}
- name: block
  tags: [files]
  line: {path: /etc/lab.conf, marker: job, block: "node={{ node }}\nkernel={{ kernel }}"}
- name: only two
  nodes: n[1-2]
  when: node in group front and nodes.count == 4 and kernel >= 3.10
  line: {path: /etc/lab.conf, marker: front, block: front, position: top}
- hosts: {}
- limits: {memlock: 64M, nofile: 4096}
- name: kernel
  tags: [kernel]
  sysctl:
    net.core.somaxconn: 5000
    net.ipv4.ip_local_port_range: 33000   60000
"""


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Iterator[Lab]:
    for host in lab4.hosts:
        host.write(BANNER, "old\n", mode=0o644)
        host.write(CONF, "a=1\r\nlast", mode=0o640)
        name = host.name
        host.write(
            "/etc/hosts",
            f"127.0.0.1\tlocalhost\n127.0.1.1\t{name}.example {name}  # installer\n",
            mode=0o644,
        )
    (lab4.folder / "banner.txt").write_text(
        "{{ node }} at {{ address }} of {{ nodes.count }}: \\{{ kept }}\n"
    )
    book(lab4).write_text(BOOK)
    yield lab4
    quiet(lab4)


def book(lab: Lab) -> Path:
    return lab.folder / "book.yaml"


def inventory(lab: Lab) -> Path:
    return lab.inventory(lab.folder / "grouped.yaml", groups={"front": {"nodes": "n[1,3]"}})


def run(lab: Lab, command: str, *words: str, playbook: Path | None = None) -> Answer:
    if command != "rollback":
        words = ("--playbook", str(playbook or book(lab)), "--only", "ssh.", *words)
    return clusterprep(lab, command, *words, inventory=inventory(lab))


def apply(lab: Lab, *words: str, playbook: Path | None = None) -> Answer:
    return run(lab, "apply", "--no-verify", *words, playbook=playbook)


def seen(host: Host) -> dict[str, str]:
    """Owner, mode and bytes of every file that a step may touch, and the kernel's values."""
    files = (BANNER, CONF, "/etc/hosts", SYSCTL, *LIMITS)
    script = 'for f; do [ -e "$f" ] && stat -c "%a %U %G" "$f" && base64 "$f"; echo ,; done'
    rows = host.run(
        ["sh", "-c", script, "sh", *files, *(f"/proc/sys/{key}" for key in KEYS)]
    ).stdout.split(",")
    return dict(zip((*files, *KEYS), rows, strict=False))


def value(host: Host, key: str) -> str:
    return host.read(f"/proc/sys/{key}")


def state(lab: Lab) -> list[dict[str, str]]:
    return [seen(host) for host in lab.hosts]


def said(found: Answer) -> list[tuple[str, str, str, str]]:
    return [
        (node, change["target"], change["action"], change["diff"])
        for change in found.report["changes"]
        for node in change["nodes"]
    ]


def test_every_change_is_predicted_made_once_and_undone(lab: Lab) -> None:
    before = state(lab)
    predicted = run(lab, "plan", "--detailed-exitcode")
    assert predicted.code == 5
    assert state(lab) == before
    done = apply(lab)
    assert (done.code, done.outcomes()) == (0, {"done"}), done.report
    assert said(done) == said(predicted)
    after = state(lab)
    as_wanted(lab, after)
    again = apply(lab)
    assert (again.code, again.outcomes()) == (0, {"unchanged"}), said(again)
    assert run(lab, "plan", "--detailed-exitcode").code == 0
    assert state(lab) == after
    back = run(lab, "rollback")
    assert (back.code, back.outcomes()) == (0, {"undone"}), back.report
    assert {change["resource"] for change in back.report["changes"]} == {
        "file", "line", "hosts", "limits", "sysctl"
    }  # fmt: skip
    assert state(lab) == before
    assert leftovers(lab) == []


def test_the_shipped_preflight_is_all_or_none_and_takes_nothing_that_it_does_not_say(
    lab: Lab,
) -> None:
    before = state(lab)
    preflight = ("--playbook", "preflight", "--only", "ssh.")
    done = clusterprep(lab, "apply", *preflight, "--no-verify", inventory=inventory(lab))
    assert (done.code, done.outcomes()) == (0, {"done"}), done.report
    assert {change["resource"] for change in done.report["changes"]} == {
        "hosts",
        "limits",
        "sysctl",
        "env",
    }
    assert [value(host, KEYS[0]) for host in lab.hosts] == ["8192\n"] * 4
    again = clusterprep(lab, "apply", *preflight, "--no-verify", inventory=inventory(lab))
    assert (again.code, again.outcomes()) == (0, {"unchanged"}), said(again)
    assert run(lab, "rollback").outcomes() == {"undone"}
    assert state(lab) == before


def as_wanted(lab: Lab, after: list[dict[str, str]]) -> None:
    assert [row[BANNER].split("\n")[0] for row in after] == ["600 nobody nogroup"] * 4
    assert lab.host("n2").read(BANNER) == f"n2 at {lab.host('n2').address} of 4: {{{{ kept }}}}\n"
    kernel = lab.host("n1").run(["uname", "-r"]).stdout.strip()
    block = (
        "# BEGIN job: kept by clusterprep\r\n"
        f"node=%s\r\nkernel={kernel}\r\n"
        "# END job: kept by clusterprep\r\n"
    )
    front = "# BEGIN front: kept by clusterprep\r\nfront\r\n# END front: kept by clusterprep\r\n"
    raw = {host.name: host.run(["base64", "-w0", CONF]).stdout for host in lab.hosts}
    found = {name: base64.b64decode(text).decode() for name, text in raw.items()}
    assert found["n1"] == front + "a=1\r\nlast\r\n" + block % "n1"
    assert found["n3"] == "a=1\r\nlast\r\n" + block % "n3"
    for host in lab.hosts:
        answers = {
            other.name: {
                line.split()[0]
                for line in other.run(["getent", "ahosts", host.name]).stdout.splitlines()
            }
            for other in lab.hosts
        }
        assert {tuple(addresses) for addresses in answers.values()} == {(host.address,)}
    assert all("installer" in host.read("/etc/hosts") for host in lab.hosts)
    assert [value(host, KEYS[0]) for host in lab.hosts] == ["5000\n"] * 4
    assert [value(host, KEYS[1]) for host in lab.hosts] == ["33000\t60000\n"] * 4
    assert "root - memlock 65536\n" in lab.host("n4").read(LIMITS[0])
    assert "DefaultLimitMEMLOCK=67108864\n" in lab.host("n4").read(LIMITS[1])


def test_tags_select_steps_and_limit_nodes_but_names_are_those_of_all(lab: Lab) -> None:
    before = state(lab)
    found = run(lab, "plan", "--tags", "kernel", "--limit", "n2")
    assert {(node, target.split("/")[1]) for node, target, _, _ in said(found)} == {
        ("n2", "etc"),
        ("n2", "proc"),
    }
    found = run(lab, "plan", "--skip-tags", "files,kernel", "--limit", "n2,n4")
    hosts = next(
        text for node, target, _, text in said(found) if (node, target) == ("n2", "/etc/hosts")
    )
    assert all(f"+{host.address}\t{host.name}\n" in hosts for host in lab.hosts)
    assert state(lab) == before


def test_a_value_that_the_kernel_refuses_on_one_host_leaves_all_as_they_were(lab: Lab) -> None:
    before = state(lab)
    wrong = lab.folder / "wrong.yaml"
    wrong.write_text(
        "- file: {path: /etc/lab-banner, content: new}\n"
        "- sysctl: {net.ipv4.tcp_keepalive_time: 600}\n"
        "- nodes: n3\n  sysctl: {net.ipv4.tcp_congestion_control: nosuch}\n"
    )
    found = apply(lab, playbook=wrong)
    assert (found.code, found.outcomes()) == (1, {"failed", "rolled-back"}), found.report
    told = {
        node: change["detail"]
        for change in found.report["changes"]
        for node in change["nodes"]
        if change.get("detail")
    }
    assert list(told) == ["n3"]
    assert "tcp_congestion_control does not take 'nosuch'" in told["n3"]
    assert state(lab) == before
    assert leftovers(lab) == []


@pytest.mark.parametrize(
    ("step", "code", "why"),
    [
        ("when: gpus.model == 'NVIDIA L20'", 3, "not_applicable: when: gpus.model: no GPU here"),
        ("nodes: n2\n  when: not driver < 535", 3, "driver"),
    ],
)
def test_a_condition_that_cannot_be_judged_writes_nothing(
    lab: Lab, step: str, code: int, why: str
) -> None:
    before = state(lab)
    unknown = lab.folder / "unknown.yaml"
    unknown.write_text(
        f"- file: {{path: /etc/lab-banner, content: new}}\n"
        f"- {step}\n  file: {{path: /etc/lab-other, content: x}}\n"
    )
    found = apply(lab, playbook=unknown)
    assert (found.code, found.outcomes()) == (code, {"not-started"}), found.report
    assert any(why in change.get("detail", "") for change in found.report["changes"])
    assert state(lab) == before


def test_a_setting_that_the_kernel_does_not_have_is_a_failure_before_anything_is_written(
    lab: Lab,
) -> None:
    before = state(lab)
    lacking = lab.folder / "lacking.yaml"
    lacking.write_text("- sysctl: {net.core.somaxconn: 6000, net.core.no_such_thing: 1}\n")
    found = apply(lab, playbook=lacking)
    assert (found.code, found.outcomes()) == (1, {"not-started"})
    assert "no setting net.core.no_such_thing" in str(found.report["changes"])
    assert state(lab) == before


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize(
    ("number", "command"), [pytest.param(2, "rollback", marks=pytest.mark.slow), (3, "apply")]
)
def test_an_agent_that_dies_at_a_running_value(lab: Lab, number: int, command: str) -> None:
    """The lock's own word is the first such write; then come two values, after all files."""
    before = state(lab)
    with killed_at(lab.host("n3"), "pwrite64", number):
        found = apply(lab)
        quiet(lab)
    assert (found.code, found.failed().get("state.journal")) == (1, ["n3"]), found.report
    now = state(lab)
    assert (value(lab.host("n3"), KEYS[0]) == "5000\n") == (number == 3)
    assert [now[at] for at in (0, 1, 3)] == [before[at] for at in (0, 1, 3)]
    assert now[2] != before[2]
    done = run(lab, "rollback") if command == "rollback" else apply(lab)
    assert done.code == 0, done.report
    if command == "apply":
        as_wanted(lab, state(lab))
        assert run(lab, "rollback").code == 0
    assert state(lab) == before
    assert leftovers(lab) == []


def test_a_value_that_somebody_set_since_is_not_taken_back(lab: Lab) -> None:
    before = state(lab)
    only = lab.folder / "kernel.yaml"
    only.write_text("- sysctl: {net.ipv4.tcp_keepalive_time: 600}\n")
    assert apply(lab, playbook=only).code == 0
    lab.host("n2").run(["sh", "-c", "echo 700 > /proc/sys/net/ipv4/tcp_keepalive_time"])
    refused = run(lab, "rollback")
    assert refused.code == 4
    assert "tcp_keepalive_time was edited" in refused.stderr
    assert run(lab, "rollback", "--force").code == 0
    assert state(lab) == before
