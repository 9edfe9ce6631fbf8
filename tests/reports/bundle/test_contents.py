"""What is inside of a bundle, in what order, how much of it, and that no canary is."""

from __future__ import annotations

import gzip
import html
import io
import json
import stat
import tarfile
import zlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterprep.model import Culprit, Finding, Inventory, Node, NodeSnapshot, Report, VerifyResult
from clusterprep.remedies import shell_line
from clusterprep.reports.bundle import archive
from clusterprep.reports.bundle.contents import (
    Contents,
    Material,
    NodeEvidence,
    Text,
    chosen_nodes,
    contents_of,
    safe_name,
)
from clusterprep.reports.bundle.index_page import with_index
from clusterprep.reports.bundle.node_answers import Evidence
from clusterprep.reports.bundle.sources import NAMES, Source

# What must not be in a bundle: the first ones never, the others not with names replaced.
SECRETS = ("canary-key-0123456789", "hf_canarytoken0123")
HOST, ADDRESS, USER, SERIAL = "canaryhost7", "10.83.0.7", "canaryuser", "CANARY0SN77"
CLUSTER, DOMAIN, MACHINE = "canarycluster", "canary.example", "0c42a15c6d7e4f00a1b2c3d4e5f60718"
NAMED = (HOST, ADDRESS, USER, SERIAL, CLUSTER, DOMAIN, MACHINE, f"/srv/{USER}")
LOG = Source("kernel-log", "kernel log", ("dmesg",))
SMI = Source("nvidia-smi", "all GPUs", ("nvidia-smi",))


def answered(source: Source, text: str, note: str = "") -> Evidence:
    packed = gzip.compress(text.encode())
    return Evidence(source, "present", note, packed, len(text))


def failing_report() -> Report:
    """A report with a canary wherever a text may stand."""
    nodes = (
        NodeSnapshot(
            HOST, ADDRESS, True, facts={"host.machine_id": MACHINE, "dmi": {"sn": SERIAL}}
        ),
        NodeSnapshot("other", "10.83.0.8", reached=True),
    )
    finding = Finding(
        "eth.mtu",
        "fail",
        "error",
        (HOST,),
        f"{HOST} of {USER}@{HOST}.{DOMAIN} has another MTU than {ADDRESS}",
        seen=f"1500 on {HOST}",
        remedy=shell_line("ssh {host} ip link set mtu 9000", host=HOST),
    )
    fine = Finding("eth.link", "pass", "error", ("other",), "up")
    culprit = Culprit("node", (HOST,), 0.9, f"{HOST} is slow", (f"/srv/{USER}/x.log says so",))
    return Report(
        command="check",
        run="20261121-093000-4f2a",
        cluster=CLUSTER,
        started="2026-11-21T09:30:00Z",
        seconds=1.0,
        verdict="fail",
        code=1,
        nodes=nodes,
        findings=(finding, fine),
        verify=VerifyResult("fail", "gloo", 2, 1, f"{ADDRESS}:29500", culprits=(culprit,)),
        notices=(f"limited to {HOST}", f"token {SECRETS[1]}"),
        inventory=f"/srv/{USER}/cluster.yaml",
    )


def material() -> Material:
    kernel = (
        f"{HOST} kernel: eth0 up\nWANDB_API_KEY={SECRETS[0]}\nmachine {MACHINE} at {ADDRESS}\n"
        f"Serial Number: {SERIAL}\n{USER} logged in on {HOST}_x from www.{DOMAIN}\n"
    )
    names = f"{HOST}\n{HOST}.{DOMAIN}\n{DOMAIN}\n==\nroot\n{USER}\n==\n"
    answers = (answered(LOG, kernel), answered(SMI, f"part {SERIAL}\n"), answered(NAMES, names))
    log = f"[rank0] {HOST} as {USER}: --api-key {SECRETS[0]} {SECRETS[1]}\n"
    inventory = Inventory(CLUSTER, (Node(HOST, ADDRESS, 0), Node("other", "10.83.0.8", 1)))
    text = f"# asset {SERIAL}, call {USER}\nnodes: [{{name: {HOST}, address: {ADDRESS}}}]\n"
    return Material(
        report=failing_report(),
        tool="0.1.0",
        inventory=inventory,
        inventory_text=Text("cluster.yaml", text),
        inventory_note=f"/srv/{USER}/cluster.yaml has changed",
        logs=(Text(f"{HOST}.log", log),),
        evidence=(
            NodeEvidence(HOST, answers),
            NodeEvidence("other", (Evidence(LOG, "absent", "not installed"),)),
        ),
        not_asked=(f"{HOST}",),
    )


def files_of(contents: Contents, folder: Path) -> dict[str, bytes]:
    """Write the archive, and return what tar finds in it."""
    path = folder / "b.tar.gz"
    assert archive.write(path, contents.name, with_index(contents), 1795253400) == ""
    files = {}
    with tarfile.open(path) as opened:
        for entry in opened:
            body = opened.extractfile(entry)
            assert body is not None
            files[entry.name.removeprefix(f"{contents.name}/")] = body.read()
    return files


def found(canaries: tuple[str, ...], files: dict[str, bytes]) -> dict[str, list[str]]:
    """Return the canaries by file, looked for in names, texts, escapes and what is packed."""
    seen: dict[str, list[str]] = {}
    for name, data in files.items():
        is_packed = data[:2] == b"\x1f\x8b"
        body = (gzip.decompress(data) if is_packed else data).decode()
        text = f"{name}\n{body}\n{html.unescape(body)}".lower()
        some = [canary for canary in canaries if canary.lower() in text]
        if some:
            seen[name] = some
    return seen


def test_no_canary_is_in_a_redacted_bundle(tmp_path: Path) -> None:
    files = files_of(contents_of(material(), redact=True), tmp_path)
    assert found((*SECRETS, *NAMED), files) == {}
    assert sorted(files) == [
        "contents.json",
        "index.html",
        "inventory.json",
        "logs/host-1.log",
        "nodes/host-1/kernel-log.txt",
        "nodes/host-1/nvidia-smi.txt",
        "report.html",
        "report.json",
        "report.txt",
    ]
    assert b"host-1 kernel: eth0 up" in files["nodes/host-1/kernel-log.txt"]
    assert b"part serial-" in files["nodes/host-1/nvidia-smi.txt"]
    assert json.loads(files["report.json"])["findings"][0]["nodes"] == ["host-1"]


def test_secrets_are_in_no_bundle_and_names_are_in_one_as_it_is(tmp_path: Path) -> None:
    files = files_of(contents_of(material(), redact=False), tmp_path)
    assert found(SECRETS, files) == {}
    everywhere = found(NAMED, files)
    assert {name for names in everywhere.values() for name in names} == set(NAMED)
    assert files["inventory.yaml"].startswith(b"# asset")


def test_the_password_of_sudo_is_taken_out(tmp_path: Path) -> None:
    told = replace(material(), without_password=lambda text: text.replace("eth0 up", "******"))
    files = files_of(contents_of(told, redact=False), tmp_path)
    assert f"{HOST} kernel: ******\n" in files[f"nodes/{HOST}/kernel-log.txt"].decode()


def test_the_same_contents_are_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.tar.gz", "b.tar.gz")]
    for path in paths:
        contents = contents_of(material(), redact=True)
        archive.write(path, contents.name, with_index(contents), 1795253400)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert stat.S_IMODE(paths[0].stat().st_mode) == 0o600
    with tarfile.open(paths[0]) as opened:
        entries = opened.getmembers()
    assert {(one.uid, one.gid, one.mtime, one.mode) for one in entries} == {
        (0, 0, 1795253400, 0o600)
    }
    names = [one.name for one in entries]
    assert names == sorted(names)


def test_what_there_is_no_room_for_is_listed(tmp_path: Path) -> None:
    whole = contents_of(material(), redact=False)
    others = sum(one.size for one in whole.members if not one.path.startswith("nodes/"))
    contents = contents_of(material(), redact=False, most=others + 50)
    files = files_of(contents, tmp_path)
    assert "report.json" in files
    nodes = [name for name in files if name.startswith("nodes/")]
    assert nodes == [f"nodes/{HOST}/nvidia-smi.txt"]  # which is short
    listed = json.loads(files["contents.json"])["answers"]
    left = [row["title"] for row in listed if row["state"] == "left out"]
    assert left == ["kernel log"]
    assert "there is no room for it in the archive" in files["index.html"].decode()


def test_the_index_says_what_is_missing_and_why(tmp_path: Path) -> None:
    evidence = (
        NodeEvidence("n1", (Evidence(LOG, "refused", "it needs root"),)),
        NodeEvidence("n2", (Evidence(LOG, "refused", "it needs root"),)),
        NodeEvidence("n3", (answered(LOG, "x", "the last 1 B of 9 MiB"),)),
    )
    contents = contents_of(replace(material(), evidence=evidence), redact=False)
    page = files_of(contents, tmp_path)["index.html"].decode()
    assert '<td>it needs root</td><td class="nodes">n[1-2]</td>' in page
    assert '<td>the last 1 B of 9 MiB</td><td class="nodes">n3</td>' in page
    assert '<a href="nodes/n3/kernel-log.txt">' in page


def test_names_and_answers_of_nodes_are_no_markup_and_no_paths(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    evidence = (
        NodeEvidence("../../etc/x", (answered(LOG, evil, evil),)),
        NodeEvidence(".._.._etc_x", (answered(LOG, "second"),)),
        NodeEvidence(evil, (answered(LOG, "third"),)),
    )
    contents = contents_of(replace(material(), evidence=evidence), redact=False)
    files = files_of(contents, tmp_path)
    nodes = [name for name in files if name.startswith("nodes/")]
    assert len(nodes) == 3
    assert not [name for name in nodes if ".." in name.split("/") or "<" in name]
    assert evil not in files["index.html"].decode()
    assert evil in files["nodes/_.._etc_x/kernel-log.txt"].decode()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gpu-1.x_y", "gpu-1.x_y"), ("../a", "_a"), ("", "_"), ("..", "_"), ("a/b c", "a_b_c")],
)
def test_names_of_files(name: str, expected: str) -> None:
    assert safe_name(name) == expected


def test_nodes_with_findings_are_asked_first() -> None:
    report = failing_report()
    names = ["a", "b", HOST, "c"]
    assert chosen_nodes(report, names, 2) == ([HOST, "a"], ["b", "c"])


def test_a_report_that_is_too_large_is_without_facts() -> None:
    facts = {"log.kernel": "x" * (65 << 20)}
    nodes = (NodeSnapshot(HOST, ADDRESS, True, facts=facts),)
    report = replace(failing_report(), nodes=nodes)
    contents = contents_of(Material(report=report, tool=""), redact=False)
    (member,) = [one for one in contents.members if one.path == "report.json"]
    document = json.loads(zlib.decompress(member.packed))
    assert document["nodes"][0]["facts"] == {}
    assert "64.0 MiB" in next(row.note for row in contents.rows if row.path == "report.json")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    contents = contents_of(Material(report=failing_report(), tool=""), redact=False)
    path = tmp_path / "none" / "b.tar.gz"
    assert "No such file" in archive.write(path, contents.name, contents.members, 0)
    assert list(tmp_path.iterdir()) == []


def test_an_archive_may_hold_nothing(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    assert archive.write(path, "x", (), 0) == ""
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as opened:
        assert opened.getnames() == []
