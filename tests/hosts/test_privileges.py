"""A host read by root, and by a user without root's rights: each fact says which it needs."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterprep.checks import Check
from clusterprep.cli.commands.explain import page
from clusterprep.facts.pci import parse_acs
from clusterprep.remote.agent import devices
from clusterprep.remote.agent.light import dumps, loads
from clusterprep.survey import registry
from tests.support import privileges_page, readme
from tests.support.command import Answer, clusterprep
from tests.support.lab import Host, Lab, faults

KMSG = "/dev/kmsg"
SUDOERS = re.search(r"```sudoers\n(.*?)```", readme.PRIVILEGES.read_text(), re.DOTALL)
# What is asked only where the inventory declares something.
UNDECLARED = {"net.reached", "fs.shared", "ssh.mesh", "rt.setup", "rt.inside"}
ALONE = {
    name
    for name, fact in registry.facts().items()
    if (fact.needs.who, fact.needs.partly) == ("root", False)
}
JOBS = {name for name, fact in registry.facts().items() if fact.needs.who == "job_user"}


@pytest.fixture(scope="module")
def host(lab4: Lab) -> Iterator[Host]:
    """A log that root alone may read, as most systems have it; the user has no sudo."""
    host = lab4.host("n1")
    faults.add_user(host, "alice")
    host.run(["chmod", "600", KMSG])
    return host


def looked(lab: Lab, user: str, *words: str, **more: Any) -> Answer:
    content = lab.inventory_content()
    content["ssh"] = {**content["ssh"], "user": user}
    path = lab.inventory(lab.folder / f"{user}.yaml", ssh=content["ssh"], **more)
    return clusterprep(lab, "check", "--limit", "n1", *words, inventory=path)


def facts(answer: Answer, name: str = "n1") -> dict[str, Any]:
    (node,) = (node for node in answer.report["nodes"] if node["name"] == name)
    return dict(node["facts"])


def reasons(answer: Answer, node: str = "n1") -> dict[str, str]:
    """Facts that are absent, and why."""
    return {
        name: value["absent"]
        for name, value in facts(answer, node).items()
        if isinstance(value, dict) and "absent" in value
    }


@pytest.fixture(scope="module")
def root(host: Host, lab4: Lab) -> Answer:
    return looked(lab4, "root")


@pytest.fixture(scope="module")
def alice(host: Host, lab4: Lab) -> Answer:
    return looked(lab4, "alice")


@pytest.mark.hosts
def test_an_ordinary_user_is_denied_exactly_what_facts_say_that_root_needs(
    root: Answer, alice: Answer
) -> None:
    there = {name for name in ALONE if reasons(root).get(name) != "not_applicable"}
    assert {"net.filter", "log.records"} <= there, "what root learns here"
    denied = {name for name, reason in reasons(alice).items() if reason == "denied"}
    assert denied == there
    others = facts(root).keys() - ALONE
    assert {name: reasons(alice).get(name) for name in others} == {
        name: reasons(root).get(name) for name in others
    }


@pytest.mark.hosts
def test_what_was_denied_is_unknown_with_its_cure_and_counts_as_its_severity_says(
    alice: Answer,
) -> None:
    denied = {name for name, reason in reasons(alice).items() if reason == "denied"}
    needing = {name for name, check in registry.checks().items() if denied & set(check.facts)}
    unknown = [
        f for f in alice.report["findings"] if (f["verdict"], f["reason"]) == ("unknown", "denied")
    ]
    assert needing <= {finding["check"] for finding in unknown}
    told = [finding for finding in unknown if finding["check"] in needing]
    assert told
    assert all("--become" in finding["remedy"] for finding in told), told
    assert not any(
        finding["check"] in needing
        for finding in alice.report["findings"]
        if finding["verdict"] == "pass"
    )


@pytest.mark.hosts
def test_the_exit_code_is_that_of_the_severity(host: Host, lab4: Lab) -> None:
    for required, code in ((None, 0), ({"log.kernel": "any"}, 3)):
        done = looked(
            lab4, "alice", "--only", "log.kernel", **({"require": required} if required else {})
        )
        (found,) = [f for f in done.report["findings"] if f["check"] == "log.kernel"]
        assert (found["verdict"], found["severity"], done.code) == (
            "unknown",
            "error" if code else "warning",
            code,
        )


@pytest.mark.hosts
def test_only_root_becomes_the_jobs_user(host: Host, root: Answer, lab4: Lab) -> None:
    """Its limits, shells and interpreter are then unknown; those of the login user do not count."""
    done = looked(lab4, "alice", job_user="root")
    there = {
        name for name in JOBS & facts(root).keys() if reasons(root).get(name) != "not_applicable"
    }
    denied = {name for name, reason in reasons(done).items() if reason == "denied"}
    assert {"lim.memlock", "env.paths", "torch.build", "nccl.address"} <= there
    assert denied - ALONE == there - UNDECLARED


@pytest.mark.hosts
def test_the_rule_for_sudo_is_enough_and_is_what_it_says(lab4: Lab) -> None:
    assert SUDOERS is not None
    host = lab4.host("n2")
    faults.add_user(host, "clusterprep")
    host.write("/etc/sudoers.d/clusterprep", SUDOERS[1], 0o440)
    assert (
        host.run(["visudo", "-c", "-f", "/etc/sudoers.d/clusterprep"], check=False).returncode == 0
    )
    ssh = {**lab4.inventory_content()["ssh"], "user": "clusterprep"}
    path = lab4.inventory(lab4.folder / "sudo.yaml", ssh=ssh)
    done = clusterprep(
        lab4, "check", "--limit", "n2", "--only", "ssh.,log.", "--become", inventory=path
    )
    assert done.blamed("ssh.sudo", "pass") == ["n2"]
    assert "denied" not in reasons(done, "n2").values()
    other = host.run(["sudo", "-n", "/usr/bin/id", "-u"], user="clusterprep", check=False)
    assert other.returncode
    assert host.run(["sudo", "-n", "/bin/sh", "-c", "id -u"], user="clusterprep").stdout == "0\n", (
        "it is root, as told"
    )


# ---------------------------------------------------------------- without a lab


@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_acs_is_shown_to_root_alone(tmp_path: Path) -> None:
    """The read itself is tested, on a file with the contents of a bridge's configuration space."""
    config = tmp_path / "config"
    config.write_bytes(
        bytes(0x100) + (0x000D | 1 << 16).to_bytes(4, "little") + bytes([0, 0, 0x1D, 0])
    )
    tmp_path.chmod(0o755)
    config.chmod(stat.S_IRUSR)
    words = {uid: as_user(uid, str(config)) for uid in (0, 4711)}
    assert words == {0: 0x1D, 4711: "denied"}
    answer = {
        "virtual": False,
        "devices": [{"above": ["a", "b"]}],
        "bridges": {"b": {"acs": words[4711]}},
    }
    assert parse_acs(answer).reason == "denied"  # type: ignore[union-attr]
    config.chmod(0o644)
    config.write_bytes(bytes(64))  # what others see of it
    assert as_user(4711, str(config)) == "denied"


def as_user(uid: int, path: str) -> Any:
    """What a process of that user reads of a bridge's ACS.

    The folders above are root's, so it is opened from them.
    """
    source, sink = os.pipe()
    folder, name = os.path.split(path)
    pid = os.fork()
    if pid == 0:
        try:
            os.chdir(folder)
            os.setgid(uid)
            os.setuid(uid)
            os.write(sink, dumps(devices._acs(name)).encode())
        finally:
            os._exit(0)
    os.close(sink)
    os.waitpid(pid, 0)
    with os.fdopen(source) as told:
        return loads(told.read())


def test_a_fact_that_needs_more_says_why() -> None:
    for name, fact in registry.facts().items():
        assert bool(fact.needs.why) == (fact.needs.who != "any_user"), name
        assert not fact.needs.partly or fact.needs.who == "root", name


def test_every_kind_of_read_is_told() -> None:
    assert all(privileges_page.reads(fact) for fact in registry.facts().values())


@pytest.mark.parametrize("check", registry.checks().values(), ids=lambda check: check.name)
def test_explain_says_whose_rights_a_check_takes(check: Check) -> None:
    told = " ".join(page(check.name).split())
    needs = {registry.facts()[name].needs for name in (*check.facts, *check.uses)}
    assert "Who may know it" in told
    for need in needs:
        assert need.why in told
    assert ("Any user who may log in." in told) == all(need.who == "any_user" for need in needs)
