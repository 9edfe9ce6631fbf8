"""Files that come back as they were: with their labels, on full disks, from a damaged journal."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.test_cut_off import RUNS, STOPPING, quiet
from tests.support.command import Answer, clusterprep
from tests.support.full_disks import ACL, without_nobody
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults.files import inside

pytestmark = pytest.mark.hosts

FILE = "/srv/t/x.conf"
LARGE = "x" * 300_000
LABEL = "system_u:object_r:shadow_t:s0"


@pytest.fixture
def lab(lab4: Lab) -> Iterator[Lab]:
    for host in lab4.hosts:
        host.run(["sh", "-c", f"rm -rf {RUNS} /srv/t; mkdir -p /srv/t"])
        host.write(FILE, "old\n")
    yield lab4
    quiet(lab4)


def words(lab: Lab, content: str) -> list[str]:
    book = lab.folder / "come-back.yaml"
    book.write_text(f"- file: {{path: {FILE}, content: {json.dumps(content)}}}\n")
    return ["--playbook", str(book), "--no-verify", "--only", "ssh."]


def apply(lab: Lab, content: str) -> Answer:
    return clusterprep(lab, "apply", *words(lab, content))


def texts(lab: Lab) -> list[str]:
    return [inside(host, FILE).read_text() for host in lab.hosts]


def attributes(host: Host) -> dict[str, str]:
    script = (
        "import json, os, sys; path = sys.argv[1]; "
        "print(json.dumps({name: os.getxattr(path, name).hex() for name in os.listxattr(path)}))"
    )
    return dict(json.loads(host.run(["python3", "-c", script, FILE]).stdout))


def test_labels_and_access_lists_stay_with_a_file_and_come_back_with_it(lab: Lab) -> None:
    host = lab.host("n1")
    wanted = {ACL: without_nobody().hex(), "user.origin": b"puppet".hex()}
    wanted["security.selinux"] = LABEL.encode().hex()
    script = "import os, sys; os.setxattr(*sys.argv[1:3], bytes.fromhex(sys.argv[3]))"
    for name, value in wanted.items():
        host.run(["python3", "-c", script, FILE, name, value])
    assert host.run(["cat", FILE], user="nobody", check=False).returncode, "it may not be read"
    assert apply(lab, "new\n").code == 0
    assert (texts(lab), attributes(host)) == (["new\n"] * 4, wanted)
    assert host.run(["cat", FILE], user="nobody", check=False).returncode
    assert clusterprep(lab, "rollback").code == 0
    assert (texts(lab), attributes(host)) == (["old\n"] * 4, wanted)


@pytest.mark.parametrize("command", ["rollback", pytest.param("apply", marks=pytest.mark.slow)])
def test_a_disk_that_is_full_after_the_commit_keeps_no_node_from_the_end(
    lab: Lab, command: str
) -> None:
    """Neither the old bytes nor the journal need room then."""
    host = lab.host("n2")
    with contextlib.ExitStack() as stack:
        for folder in (str(Path(FILE).parent), RUNS):
            stack.enter_context(faults.tmpfs(host, folder, "mode=0755,size=1m"))
        host.write(FILE, LARGE)
        argv = [*STOPPING, "kill", "commit answered", "apply", str(lab.inventory())]
        assert lab.controller.run([*argv, *words(lab, "new\n")], check=False).returncode
        quiet(lab)
        assert texts(lab) == ["new\n"] * 4
        with faults.filled(host, str(Path(FILE).parent)), faults.filled(host, RUNS):
            done = clusterprep(lab, "rollback") if command == "rollback" else apply(lab, "new\n")
            if command == "rollback":
                assert (done.code, done.failed()) == (0, {}), done.report
            seen = inside(host, FILE).read_text()
            assert (seen == LARGE, texts(lab)[0]) == (True, "old\n")
        assert apply(lab, "newer\n").code == 0
        assert texts(lab) == ["newer\n"] * 4
        assert clusterprep(lab, "rollback").code == 0
        assert inside(host, FILE).read_text() == LARGE
        assert host.run(["ls", "-A", "/srv/t"]).stdout.split() == ["x.conf"]


@pytest.mark.parametrize(
    "text", ["", pytest.param('{"run": "of-another"}', marks=pytest.mark.slow)]
)
def test_a_damaged_record_stops_all_writing_until_one_command_moves_it_aside(
    lab: Lab, text: str
) -> None:
    host = lab.host("n2")
    assert apply(lab, "a\n").code == 0
    (manifest,) = inside(host, f"{RUNS}/runs").glob("*/manifest.json")
    manifest.write_text(text)
    place = f"{RUNS}/runs/{manifest.parent.name}/manifest.json"
    seen = clusterprep(lab, "check", "--only", "state.")
    assert (seen.code, seen.failed()) == (1, {"state.journal": ["n2"]})
    (bad,) = (row for row in seen.report["findings"] if row["verdict"] == "fail")
    assert place in bad["seen"]
    assert "rollback" in bad["remedy"]
    assert "--force" in bad["remedy"]
    for done in (apply(lab, "b\n"), clusterprep(lab, "rollback")):
        message = done.report["error"]["message"]
        assert (done.code, message.startswith(f"n2: {place} cannot be read")) == (4, True), message
        assert "rollback --force` moves this record aside" in message
    assert texts(lab) == ["a\n"] * 4
    aside = clusterprep(lab, "rollback", "--force")
    assert (aside.code, aside.failed()) == (0, {}), aside.report
    assert texts(lab) == ["a\n"] * 4
    kept = inside(host, f"{RUNS}/damaged-{manifest.parent.name}")
    assert sorted(path.name for path in kept.iterdir())[:2] == ["0.after", "0.before"]
    assert clusterprep(lab, "check", "--only", "state.").code == 0
    assert apply(lab, "b\n").code == 0
    assert texts(lab) == ["b\n"] * 4
    assert clusterprep(lab, "rollback").code == 0
    assert texts(lab) == ["a\n"] * 4
