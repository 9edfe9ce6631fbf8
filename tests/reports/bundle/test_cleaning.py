"""Which secrets and names are taken out of texts, and what stays readable."""

from __future__ import annotations

import pytest

from clusterprep.model import Inventory, Node, SshSettings
from clusterprep.reports.bundle.anonymous import Anonymizer
from clusterprep.reports.bundle.cleaning import SecretCleaner, cleaned_json, without_secrets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("export WANDB_API_KEY=f00\nA=1\n", "export WANDB_API_KEY=<redacted>\nA=1\n"),
        ("python x.py --api-key f00 -p 3", "python x.py --api-key <redacted> -p 3"),
        ("curl -H 'Authorization: Bearer abcdef12'", "curl -H 'Authorization: Bearer <redacted>'"),
        (
            "pip install https://bob:f00@packages.example/x",
            "pip install https://bob:<redacted>@packages.example/x",
        ),
        ("loaded hf_abcdefghijkl now", "loaded <redacted> now"),
        (
            "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\nx",
            "<redacted>\nx",
        ),
        ("KeyError: 'rank'", "KeyError: 'rank'"),
        ("RSS hash key:\n00:11\n", "RSS hash key:<redacted>\n00:11\n"),
        ("    Serial Number : 1320921", "    Serial Number : 1320921"),
        ("key " * 2000 + "= x", "key " * 1024 + "… <redacted>"),
    ],
)
def test_secrets_are_taken_out(text: str, expected: str) -> None:
    assert without_secrets(text) == expected


def anonymizer() -> Anonymizer:
    nodes = (
        Node("gpu1", "10.9.0.1", 0, ssh=SshSettings(user="alice")),
        Node("gpu2", "gpu2.acme-hpc.fr", 1, job_user="root"),
    )
    made = Anonymizer()
    made.know_inventory(Inventory("tenant7", nodes, groups={"rack-a": ("gpu1",)}))
    made.know_node("gpu2\ngpu2.acme-hpc.fr\nacme-hpc.fr\n==\nroot\nbwayne\n==\n hpc.example\n")
    return made


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu1 and gpu10 and 10.9.0.1", "host-1 and gpu10 and addr-1"),
        ("slurm-12-gpu1_rank0.log", "slurm-12-host-1_rank0.log"),
        ("1500 on gpu[1-2]", "1500 on host-[1-2]"),
        ("block[1-2] of gpus", "block[1-2] of gpus"),
        ("gpu2.acme-hpc.fr, www.acme-hpc.fr", "host-1, www.domain-1"),
        ("alice runs as root in rack-a", "user-1 runs as root in group-1"),
        ("bwayne_job of tenant7", "user-1_job of cluster-1"),
        ("ntp.hpc.example", "ntp.domain-1"),
        (
            "\tSerial Number: PF0XK21\nslot of PF0XK21",
            "\tSerial Number: serial-1\nslot of serial-1",
        ),
        ("Serial Number: Not Specified", "Serial Number: Not Specified"),
        ("GPU-1a2b3c4d-1111-2222-3333-444455556666", "GPU-serial-1"),
        ("CA 'mlx5_0'\n  Node GUID: 0x1070fd0300a1b2c4", "CA 'mlx5_0'\n  Node GUID: serial-1"),
        ("node_guid: 1070:fd03:00a1:b2c4, 0x1070fd0300a1b2c4", "node_guid: serial-1, serial-1"),
        ("Board ID: 0x1800, GUID 0x0000000000000000", "Board ID: 0x1800, GUID 0x0000000000000000"),
        (
            "link/ether 0c:42:a1:5c:6d:7e brd ff:ff:ff:ff:ff:ff",
            "link/ether addr-1 brd ff:ff:ff:ff:ff:ff",
        ),
        (
            "link/infiniband 00:00:10:28:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:5c:6d:7e x",
            "link/infiniband serial-1 x",
        ),
        ("Device Serial Number 10-70-fd-ff-ff-a1-b2-c4", "Device Serial Number serial-1"),
        (
            "0000:3b:00.0 3D controller [0302]: NVIDIA [10de:2330] (rev a1)",
            "0000:3b:00.0 3D controller [0302]: NVIDIA [10de:2330] (rev a1)",
        ),
        ("VBIOS 96.00.74.00.01, driver 550.54.15", "VBIOS 96.00.74.00.01, driver 550.54.15"),
        ("/home/alice/run/train.py and /etc/os-release", "/path-1/train.py and /etc/os-release"),
    ],
)
def test_names_are_replaced(text: str, expected: str) -> None:
    assert anonymizer().lines(text) == expected


def test_keys_of_facts_tell_what_a_value_is() -> None:
    facts = {"gpu": {"serial": "1320921012345", "model": "H200", "gpu1": ["gpu1", 3, None]}}
    cleaned = cleaned_json(facts, anonymizer())
    assert cleaned == {
        "gpu": {"serial": "serial-1", "model": "H200", "host-1": ["host-1", 3, None]}
    }
    assert cleaned_json(facts, SecretCleaner()) == facts
