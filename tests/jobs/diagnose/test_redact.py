"""What is replaced for posting, and that it is the same word everywhere."""

from __future__ import annotations

import random

import pytest

from clusterprep.jobs.diagnose.redact import Redactor


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n4: connect to 10.9.0.7<41001> failed", "host-1: connect to addr-1<41001> failed"),
        ("10.9.0.7 and 10.9.0.8 and 10.9.0.7", "addr-1 and addr-2 and addr-1"),
        ("at 12:30:15 and 127.0.0.1 and 0.0.0.0", "at 12:30:15 and 127.0.0.1 and 0.0.0.0"),
        ("Using docker0:172.17.0.1<0>", "Using docker0:172.17.0.1<0>"),
        ("to fe80::1c0d:b1ff:fe5b:54d2%eth0<0>", "to addr-1<0>"),
        ("remote GID ::ffff:10.84.3.60", "remote GID addr-1"),
        ("(trainhead, 29500)", "(host-1, 29500)"),
        ("srun: error: gpu-07: task 3: Killed", "srun: error: host-1: task 3: Killed"),
        ("host      : gpu-07.lab.corp", "host      : host-1"),
        ("alice@gpu-07.lab.corp", "user-1@host-1"),
        ('File "/home/alice/secret/train.py", line 3', 'File "/path-1/train.py", line 3'),
        ("/home/alice/secret/model.bin", "/path-1/file-1"),
        (
            "/home/alice/env/lib/python3.11/site-packages/torch/x.py",
            "/path-1/site-packages/torch/x.py",
        ),
        (r"C:\Users\alice\job\train.py", "/path-1/train.py"),
        ("/dev/shm/nccl-Xy and /usr/lib/libc.so", "/dev/shm/nccl-Xy and /usr/lib/libc.so"),
        ("NCCL version 2.21.5+cuda12.4", "NCCL version 2.21.5+cuda12.4"),
        (
            "NET/IB : No device found. 3/4 clients joined",
            "NET/IB : No device found. 3/4 clients joined",
        ),
        ("token hf_abcdefghijklmnop12", "token secret-1"),
        ("api_key=0123456789abcdef", "api_key=secret-1"),
        ("key 3 of 4, key=3, tokens: 128", "key 3 of 4, key=3, tokens: 128"),
        ("to s3://acme/x and https://a.example/y", "to s3://url-1 and https://url-2"),
        ("mount nfs-1:/vol/acme", "mount host-1:/path-1"),
        ("alice.smith@gpu-07.lab.corp", "user-1@host-1"),
        (
            "srun: error: gpu[03-04],m1: tasks 0-2: Killed, gpu04 and m1",
            "srun: error: host-1,host-2: tasks 0-2: Killed, host-3 and host-2",
        ),
        ("node 'n9' has failed, n9 again", "node 'host-1' has failed, host-1 again"),
    ],
)
def test_what_is_replaced(text: str, expected: str) -> None:
    assert Redactor(["n4"]).text(text) == expected


def test_the_same_name_is_the_same_word_in_every_line() -> None:
    redactor = Redactor(["gpu-1", "gpu-10"])
    assert (
        redactor.text("gpu-10 waits for gpu-1 at 10.0.0.1") == "host-1 waits for host-2 at addr-1"
    )
    assert (
        redactor.text("10.0.0.1 is gpu-1, gpu-1.lab.internal not") == "addr-1 is host-2, host-3 not"
    )


@pytest.mark.parametrize("seed", range(20))
def test_no_address_survives(seed: int) -> None:
    source = random.Random(seed)
    addresses = [".".join(str(source.randrange(1, 120)) for _ in range(4)) for _ in range(5)]
    text = " ".join(f"x {one}:29500 [{one}] <{one}>" for one in addresses)
    assert not [one for one in addresses if one in Redactor([]).text(text)]
