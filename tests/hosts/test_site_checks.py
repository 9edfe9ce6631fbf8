"""Checks of a site on real hosts: declared and in Python, one host with a fault, one that hangs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.support.command import clusterprep
from tests.support.lab import Lab
from tests.support.lab.faults.files import inside

pytestmark = pytest.mark.hosts

SETTING = "/etc/site-setting"
DECLARED = f"""\
- name: site.setting
  file: {SETTING}
  expect: {{same: all}}
  remedy: "ssh {{node}} cp {{wanted}} {SETTING}"
- name: site.tool
  command: [sh, /etc/site-tool]
  limit: 1s
  expect: {{equals: fine}}
- name: site.unreadable
  command: [no-such-tool-of-the-site]
  expect: {{equals: fine}}
  severity: warning
"""
HANGS = "n2"
DIFFERS = "n3"


@pytest.fixture
def lab(lab4: Lab) -> Iterator[Lab]:
    folder = lab4.inventory().parent / "checks.d"
    folder.mkdir()
    (folder / "site.yaml").write_text(DECLARED)
    for host in lab4.hosts:
        inside(host, SETTING).write_text("b\n" if host.name == DIFFERS else "a\n")
        body = "sleep 60" if host.name == HANGS else "echo fine"
        inside(host, "/etc/site-tool").write_text(f"{body}\n")
    yield lab4
    shutil.rmtree(folder)
    for host in lab4.hosts:
        inside(host, SETTING).unlink()
        inside(host, "/etc/site-tool").unlink()


def test_the_host_at_fault_is_named_and_one_that_hangs_holds_up_none(lab: Lab) -> None:
    done = clusterprep(lab, "check", "--only", "site.,os.release")
    found: dict[str, dict[str, str]] = {}
    for finding in done.report["findings"]:
        for node in finding["nodes"]:
            verdict = f"{finding['verdict']} {finding.get('reason') or ''}".strip()
            found.setdefault(finding["check"], {})[node] = verdict
    names = [host.name for host in lab.hosts]
    assert found["site.setting"] == {**dict.fromkeys(names, "pass"), DIFFERS: "fail"}
    assert found["site.tool"] == {**dict.fromkeys(names, "pass"), HANGS: "unknown hung"}
    assert found["site.unreadable"] == dict.fromkeys(names, "unknown missing_tool")
    assert found["os.release"] == dict.fromkeys(names, "pass")
    assert done.code == 1
    assert done.report["seconds"] < 10
