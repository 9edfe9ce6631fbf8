"""The reader of the kernel's log, on logs as files and on this machine's own."""

from __future__ import annotations

import os
from typing import Any

import pytest

from clusterprep.model import Inventory, Node, Read
from clusterprep.remote.agent.kernel_log import (
    KEPT,
    LINE,
    PIECE,
    lines_with,
    read_kernel_log,
)
from tests.machines import Machine
from tests.machines.play import answers

pytestmark = pytest.mark.machine

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
UPTIME = "9000.00 1.0\n"
# Of one word: what makes a kind, and what is grave.
RULES = (("kind ", r"kind (\w+) (\w+)", "grave"),)


def read(text: str | None, *words: str, uptime: str = UPTIME) -> Any:
    """The raw answer of the reader where /dev/kmsg holds this text."""
    files = (
        {"/proc/uptime": uptime} if text is None else {"/proc/uptime": uptime, "/dev/kmsg": text}
    )
    node = Node("n1", "10.0.0.1", 0)
    asked = Read("kernel_log", (words, RULES))
    return answers(Machine("n1", "10.0.0.1", files), [asked], Inventory("test", (node,)))[asked]


def told(text: str, *words: str) -> Any:
    status, value = read(text, *words)
    assert status == "ok"
    return value


LOG = """\
5,0,0,-;Linux version 6.8.0
6,1,1500000,-;usb 1-1: a line that does not matter
 SUBSYSTEM=usb
 DEVICE=+usb:1-1
3,2,2500000,-;I/O error, dev sda, sector 8
30,3,2600000,-;systemd[1]: I/O error, says a process
4,4,2700000,c;BUG: soft lockup; with; semicolons
"""


@needs_root
def test_lines_with_a_word_come_home_with_number_time_and_level() -> None:
    value = told(LOG, "I/O error", "BUG: ")
    assert value["records"] == [
        [2, 2.5, 3, 1, 2.5, "I/O error, dev sda, sector 8"],
        [4, 2.7, 4, 1, 2.7, "BUG: soft lockup; with; semicolons"],
    ]
    assert (value["now"], value["first"], value["cut"]) == (9000.0, [0, 0.0], {})


@needs_root
def test_a_ring_that_wrapped_says_where_it_begins() -> None:
    assert told("6,7001,3600500000,-;the oldest\n", "x")["first"] == [7001, 3600.5]


@needs_root
def test_lines_that_begin_alike_are_one_with_the_newest_text_and_the_first_time() -> None:
    text = "".join(
        f"3,{n},{n}000000,-;NVRM: Xid (PCI:0000:1b:00): 13, pid={n}\n" for n in range(1, 1000)
    )
    text += "3,1000,1000000000,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1\n"
    first, second = told("6,0,0,-;x\n" + text, "NVRM: Xid")["records"]
    assert first == [999, 999.0, 3, 999, 1.0, "NVRM: Xid (PCI:0000:1b:00): 13, pid=999"]
    assert second[5].startswith("NVRM: Xid (PCI:0000:1b:00): 79")


@needs_root
def test_a_flood_of_one_word_is_cut_and_the_other_words_are_kept() -> None:
    text = "3,1,1000000,-;Oops: 0000\n"
    text += "".join(f"3,{n},{n}000000,-;flood {n} {'y' * 40}\n" for n in range(2, 1002))
    value = told("6,0,0,-;x\n" + text, "flood", "Oops")
    assert len(value["records"]) == KEPT
    assert value["records"][0][5] == "Oops: 0000"
    assert value["records"][-1][0] == 1001
    assert value["cut"] == {"flood": 1001 - KEPT}


@needs_root
def test_a_rule_says_what_makes_a_kind_and_lines_without_it_are_kept_apart_by_device() -> None:
    lines = ("kind a b of c", "kind a b of d", "kind a c of c", "kind a", "kind a and so on")
    lines += ("nvme nvme0: timeout kind", "nvme nvme3: timeout kind", "task python:1: timeout kind")
    text = "".join(f"3,{n},{n}000000,-;{line}\n" for n, line in enumerate(lines, 1))
    kinds = [row[3:] for row in told("6,0,0,-;x\n" + text, "kind ", "timeout")["records"]]
    assert kinds == [
        [2, 1.0, "kind a b of d"],
        [1, 3.0, "kind a c of c"],
        [1, 4.0, "kind a"],
        [1, 5.0, "kind a and so on"],
        [1, 6.0, "nvme nvme0: timeout kind"],
        [1, 7.0, "nvme nvme3: timeout kind"],
        [1, 8.0, "task python:1: timeout kind"],
    ]


@needs_root
def test_what_is_grave_is_dropped_last() -> None:
    lines = ["kind a grave"] + [f"kind b n{number} lesser" for number in range(KEPT + 50)]
    text = "".join(f"3,{n},{n}000000,-;{line}\n" for n, line in enumerate(lines, 1))
    value = told("6,0,0,-;x\n" + text, "kind ")
    assert value["records"][0][5] == "kind a grave"
    assert (len(value["records"]), value["cut"]) == (KEPT, {"kind ": 51})


@needs_root
def test_a_line_is_cut_and_pieces_of_a_file_are_put_together() -> None:
    long = "Oops " + "z" * 5000
    value = told(
        "6,0,0,-;x\n" + "6,1,0,-;filler " + "a" * 40000 + f"\n3,2,1000000,-;{long}\n", "Oops"
    )
    assert value["records"] == [[2, 1.0, 3, 1, 1.0, long[:LINE]]]


@needs_root
def test_a_long_log_is_searched_in_pieces_of_whole_lines() -> None:
    filler = "".join(f"6,{n},{n},-;{'a' * 180}\n" for n in range(2, 12000))
    text = "6,0,0,-;x\n3,1,1000000,-;Oops first\n" + filler + "3,12000,2000000,-;Oops last\n"
    assert len(text) > 2 * PIECE
    # A line without its end is not whole, and is left.
    records = told(text + "3,12001,3000000,-;Oops never", "Oops")["records"]
    assert [row[0] for row in records] == [1, 12000]


@pytest.mark.parametrize(
    ("piece", "lines"),
    [
        (b"", []),
        (b"one\ntwo\nthree one", [b"one", b"two", b"three one"]),
        (b"two one\none one two", [b"two one", b"one one two"]),
        (b"three\n\nfour", []),
    ],
)
def test_each_line_with_a_word_comes_once_and_in_its_order(
    piece: bytes, lines: list[bytes]
) -> None:
    assert lines_with(piece, [b"two", b"one"]) == lines


@needs_root
@pytest.mark.parametrize("text", ["", "no record at all\n", " SUBSYSTEM=x\n"])
def test_a_log_without_records_is_no_silence(text: str) -> None:
    assert read(text, "x")[:2] == ["no", "garbled"]


@needs_root
def test_a_node_without_the_device_says_so() -> None:
    assert read(None, "x")[:2] == ["no", "missing"]


@needs_root
def test_bytes_that_are_no_text_do_not_end_the_read() -> None:
    assert told(
        "6,0,0,-;x\n3,1,1000000,-;Oops \udcff\n".encode("utf-8", "replace").decode(), "Oops"
    )["records"]


def may_read_the_log() -> bool:
    """Try it: where dmesg is restricted, the device's mode allows it and the kernel does not."""
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not may_read_the_log(), reason="this user may not read the kernel's log")
def test_this_machines_log_ends() -> None:
    """A device never ends: the read stops where a new message would have to be waited for."""
    value = read_kernel_log(("a word that no kernel says",), ())
    assert value["records"] == []
    assert value["first"][1] <= value["now"]
