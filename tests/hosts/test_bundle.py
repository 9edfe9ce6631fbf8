"""`bundle` of nodes as they are: what they answer, without names, and that nothing stays there."""

from __future__ import annotations

import gzip
import html
import json
import re
import tarfile
from pathlib import Path

import pytest

from tests.support.command import clusterprep
from tests.support.lab import Lab, faults

pytestmark = pytest.mark.hosts

USER = "canaryuser"
# An API key and a token, in a file that is collected and in a log.
KEY, TOKEN = "canary-key-0123456789", "hf_canarytoken0123"
SERIAL = "CANARY0SN77"
SMI = f"""\
#!/bin/sh
echo "Serial Number : {SERIAL}"; echo "{USER} at $(hostname): WANDB_API_KEY={KEY}"; ip address
"""


def members(path: Path) -> dict[str, str]:
    """Return the text of each file of an archive by its path, also of what gzip has packed."""
    texts = {}
    with tarfile.open(path) as opened:
        for entry in opened:
            body = opened.extractfile(entry)
            assert body is not None
            data = body.read()
            is_packed = data[:2] == b"\x1f\x8b"
            text = (gzip.decompress(data) if is_packed else data).decode()
            texts[entry.name.partition("/")[2]] = text
    return texts


def test_evidence_of_a_failing_fleet_without_names(lab4: Lab) -> None:
    host = lab4.host("n2")
    for node in lab4.hosts:
        faults.add_user(node, USER, "password", "correct-horse")
    host.write("/usr/local/bin/nvidia-smi", SMI, 0o755)
    host.write("/etc/nccl.conf", f"# {USER}\nNCCL_SITE_TOKEN={KEY}\n")
    content = lab4.inventory_content()
    nodes = [*content["nodes"], {"name": "n9", "address": "10.255.255.1"}]
    ssh = {**content["ssh"], "connect_timeout": 1}
    inventory = lab4.inventory(lab4.folder / "bundle.yaml", nodes=nodes, ssh=ssh)
    log = lab4.folder / "train.log"
    log.write_text(f"[rank0] n2 as {USER}: {TOKEN} --api-key {KEY}\n")
    path = lab4.folder / "bundle.tar.gz"
    before = {
        node.name: node.run(["ls", "-A", "/tmp", "/var/tmp", "/root"]).stdout for node in lab4.hosts
    }

    words = ("--redact", "--log", str(log), "--output", str(path), "--limit", "n[1-2,9]")
    told = clusterprep(lab4, "bundle", *words, inventory=inventory)

    assert told.code == 3, told.report
    assert [one["name"] for one in told.report["nodes"] if not one["reached"]] == ["n9"]
    files = members(path)
    addresses = [node["address"] for node in nodes]
    of_host = [host.read("/etc/machine-id"), host.read("/sys/class/net/eth0/address")]
    canaries = [KEY, TOKEN, SERIAL, USER, *addresses, *map(str.strip, of_host), str(lab4.folder)]
    seen = {}
    for name, text in files.items():
        searched = f"{name}\n{text}\n{html.unescape(text)}".lower()
        seen[name] = [canary for canary in canaries if canary.lower() in searched]
        if not name.endswith(".html"):  # whose style has short words
            seen[name] += re.findall(r"(?<![\w.])n[1-49](?![\w.])", searched)
    assert {name: some for name, some in seen.items() if some} == {}

    asked = json.loads(files["contents.json"])["answers"]
    of_smi = [row for row in asked if row["title"] == "all GPUs"]
    states = {row["state"] for row in of_smi}
    assert states == {"present", "absent", "unknown"}
    (smi,) = [row["path"] for row in of_smi if row["path"]]
    assert "Serial Number : serial-" in files[smi]
    folder = smi.rpartition("/")[0]
    assert "NCCL_SITE_TOKEN=<redacted>" in files[f"{folder}/file-etc-nccl.conf.txt"]
    assert "the node was not reached: " in files["index.html"]
    assert "host-" in files["logs/train.log"]
    for node in lab4.hosts:
        assert node.run(["ls", "-A", "/tmp", "/var/tmp", "/root"]).stdout == before[node.name]
        assert node.processes("evidence") == []
