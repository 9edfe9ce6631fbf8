"""What NCCL's own lines mean, of releases from before 2.12 to 2.32.

And that strange ones mean nothing.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from clusterprep.jobs.verify.nccl_log import LONGEST, Hop, TransportDevice, Wiring, parse
from clusterprep.jobs.verify.schedule import NCCL_LOGGING
from clusterprep.remote.agent.nccl_lines import Output
from tests.jobs.verify import nccl_logs
from tests.support import real_nccl

ANY = {name: text for name, text in vars(nccl_logs).items() if name.isupper()}


def wiring(rank: int, text: str) -> Wiring:
    """The way that lines take: through what the agent keeps of them."""
    output = Output()
    output.hear(text.encode())
    return parse(rank, output.lines, output.cut)


def ways(said: Wiring) -> list[tuple[int, int, str, bool]]:
    return [(hop.source, hop.target, hop.way, hop.direct) for hop in said.hops]


@pytest.mark.parametrize(
    ("text", "interface", "address", "network"),
    [
        (nccl_logs.ROCE, "enp24s0np0", "10.10.10.1", "IB"),
        (nccl_logs.TWO_ROCE, "enp220s0np0", "11.1.128.136", "IB"),
        (nccl_logs.SHARP, "eth0", "10.7.147.73", "IBext_v8"),
        (
            nccl_logs.ASSIGNED,
            "eth0",
            "172.25.30.42",
            "IB",
        ),  # OOB, where BOOTSTRAP is not among the subsystems
        (nccl_logs.SOCKETS, "ibp12s0", "10.149.0.32", "Socket"),
        (nccl_logs.OLD, "eno1", "172.28.40.41", "Socket"),
        (nccl_logs.FORMED, "eth0:1", "10.0.0.1", None),
        (nccl_logs.GPUDIRECT, None, None, None),
    ],
)
def test_interface_and_network(
    text: str, interface: str | None, address: str | None, network: str | None
) -> None:
    said = wiring(0, text)
    assert (said.interface, said.address, said.network) == (interface, address, network)


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("Bootstrap: Using eth0:fe80::1c0d:b1ff%eth0<0>", ("eth0", "fe80::1c0d:b1ff")),
        ("Bootstrap: Using ib0.8001:10.0.0.7<53124>", ("ib0.8001", "10.0.0.7")),
        ("NET/Socket : Using [0]ens7:10.128.0.31<0>", ("ens7", "10.128.0.31")),
        ("Bootstrap: Using mlx5_0:1", (None, None)),  # NCCL_OOB_NET_ENABLE: a device and its port
        ("Bootstrap : Using bond0:X.X.X.X<0>", (None, None)),
        ("Bootstrap : Using", (None, None)),
    ],
)
def test_places(words: str, place: tuple[str | None, str | None]) -> None:
    said = wiring(0, f"n:1:1 [0] NCCL INFO {words}\n")
    assert (said.interface, said.address) == place


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        (nccl_logs.ROCE, ["mlx5_4:1/RoCE"]),
        (nccl_logs.TWO_ROCE, ["mlx5_10:1/RoCE", "mlx5_11:1/RoCE"]),
        (nccl_logs.SHARP, ["ibp0:1/IB", "ibp1:1/IB"]),
        (nccl_logs.FORMED, ["mlx5_0:1/IB", "mlx5_1:1/RoCE", "mlx5_2:1/IB", "mlx5_3:2/IB"]),
        (nccl_logs.SOCKETS, []),
        (nccl_logs.GPUDIRECT, None),
    ],
)
def test_devices(text: str, devices: list[str] | None) -> None:
    said = wiring(0, text)
    told = None if said.devices is None else [f"{d.name}:{d.port}/{d.link}" for d in said.devices]
    assert (told, said.whole) == (devices, True)


def test_data_direct_is_the_device_by_another_way() -> None:
    (device,) = (
        parse(0, ["NET/IB : Using [0]mlx5_0_dma:1/IB [RO]; OOB eth0:10.0.0.1<0>"]).devices or ()
    )
    assert device == TransportDevice("mlx5_0", "1", "IB")


def test_no_device_is_told_in_two_lines_since_2_24() -> None:
    lines = ["NET/IB : No device found.", "NET/IB : Using  ; OOB eth0:10.0.0.1<0>"]
    said = parse(0, lines)
    assert (said.devices, said.interface, said.why) == ((), "eth0", "NET/IB : No device found.")


def test_a_list_of_devices_that_was_cut_is_not_the_whole() -> None:
    said = parse(0, ["NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1"])
    assert (said.devices, said.whole) == ((TransportDevice("mlx5_0", "1", "IB"),), False)


@pytest.mark.parametrize(
    ("rank", "text", "expected"),
    [
        (
            3,
            nccl_logs.GPUDIRECT,
            [(1, 3, "NET/IB", True), (3, 1, "NET/IB", True), (3, 2, "P2P/CUMEM", False)],
        ),
        (32, nccl_logs.PLUG_IN, [(25, 32, "NET/IBext_v8", False), (32, 39, "P2P/CUMEM", False)]),
        (15, nccl_logs.SOCKETS, [(15, 6, "NET/Socket", False), (15, 14, "P2P/IPC", False)]),
        (0, nccl_logs.OLD, [(0, 1, "NET/Socket", False)]),
        (
            1,
            nccl_logs.LIBFABRIC,
            [
                (0, 1, "NET/AWS Libfabric", True),
                (1, 0, "NET/AWS Libfabric", True),
                (7, 1, "NET/AWS Libfabric", True),
                (1, 5, "P2P/direct pointer", False),
            ],
        ),
        (10, nccl_logs.SHARED, [(10, 11, "SHM", False)]),
        (0, nccl_logs.ONE_TRAY, [(0, 1, "P2P/MNNVL", False)]),
        (9, nccl_logs.THROUGH_ANOTHER, [(9, 0, "NET/IB", True)]),
        (8, nccl_logs.THROUGH_ANOTHER, [(1, 8, "NET/IB", True)]),
        (
            0,
            nccl_logs.FORMED,
            [
                (0, 9, "NET/IB", True),
                (0, 1, "P2P/MNNVL", False),
                (0, 2, "P2P/indirect", False),
                (0, 3, "SHM", False),
            ],
        ),
    ],
)
def test_hops(rank: int, text: str, expected: list[tuple[int, int, str, bool]]) -> None:
    assert ways(wiring(rank, text)) == expected


def test_a_rank_is_not_believed_about_others() -> None:
    assert wiring(4, nccl_logs.GPUDIRECT).hops == ()


def test_what_nccl_read_and_could_do() -> None:
    said = wiring(0, nccl_logs.SHARP)
    assert said.read == {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_PCI_RELAXED_ORDERING": "1."}
    assert said.nvls
    assert not parse(
        0, ["NVLS multicast support is not available on dev 0 (NVLS_NCHANNELS 0)"]
    ).nvls
    assert wiring(10, nccl_logs.SHARED).collnet == "SHARP"
    assert parse(0, ["Failed to load libibverbs: libibverbs.so.1: no such file"]).why.startswith(
        "Failed to load"
    )


HOSTILE = [
    "Channel 00/0 : 0[0] -> 1[1] via",
    "Channel 00/0 : 0[0] -> 1[1] [send] via NET/",
    "Channel 00/0 : -1[0] -> 1[1] via P2P/IPC",
    f"Channel 00/0 : {'9' * 40}[0] -> 0[1] via P2P/IPC",
    "Channel 00/0 : 0[0] -> 1host:1:2 [0] NCCL INFO",
    "CollNet 00/0 : 0 [send] via COLLNET",
    "NET/IB : Using [0]:1/IB [1]mlx5_0/IB []{}",
    "Bootstrap : Using :::::<<<0>>>",
    "Bootstrap: Using " + ":" * 3000 + "<0>",
    "NET/IB : Using " + "[0]" * 3000,
    "Using network ",
    "NCCL_X set to",
    "\x00\udcff",
]


def test_strange_lines_say_nothing() -> None:
    said = parse(0, [*HOSTILE, None, 5, ["Using network IB"]])
    assert said == Wiring(devices=(), whole=False)


@pytest.mark.parametrize("seed", range(20))
def test_spoiled_lines_are_parsed_without_an_error(seed: int) -> None:
    dice = random.Random(seed)
    letters = list("".join(ANY.values()))
    for _ in range(300):
        at = dice.randrange(len(letters))
        letters[at] = dice.choice("[]{}:/<>()0 \x00é\n")
    output = Output()
    output.hear("".join(letters).encode())
    said = parse(dice.randrange(16), output.lines)
    assert all(isinstance(hop, Hop) and hop.way for hop in said.hops)


def test_long_lines_take_no_time() -> None:
    lines = [
        f"NET/IB : Using {'[0]mlx5_0:1/IB ' * 90_000}",
        f"Channel 00/0 : 0[0] -> 1[1] via {'/' * 900_000}",
    ]
    devices = parse(0, lines * 200).devices
    assert devices is not None
    assert 0 < len(devices) < LONGEST / 10


ASK = """
import ctypes, os, sys
ctypes.CDLL(sys.argv[1]).ncclGetUniqueId((ctypes.c_char * 128)())
os._exit(0)  # as a rank ends: what C's stdout still held would be lost
"""


@pytest.mark.machine
@pytest.mark.parametrize("release", real_nccl.RELEASES)
def test_nvidias_own_library_says_its_interface_as_it_is_told_to(
    release: str, tmp_path: Path
) -> None:
    """Its choice of an interface needs no GPU.

    A conf file sends the lines elsewhere, and must not succeed.
    """
    try:
        library = real_nccl.library(release)
    except LookupError as why:
        pytest.skip(str(why))
    conf, elsewhere = tmp_path / "nccl.conf", tmp_path / "log"
    conf.write_text(f"NCCL_DEBUG=WARN\nNCCL_DEBUG_FILE={elsewhere}\n")
    env = {
        **NCCL_LOGGING,
        "NCCL_CONF_FILE": str(conf),
        "NCCL_SOCKET_IFNAME": "=lo",
        "PYTHONUNBUFFERED": "1",
        "HOME": "/",
    }
    argv = [sys.executable, "-c", ASK, str(library)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60)
    said = wiring(0, done.stdout)
    assert (said.interface, said.address) == ("lo", "127.0.0.1")
    assert said.read["NCCL_SOCKET_IFNAME"] == "=lo"
    assert not elsewhere.exists()
