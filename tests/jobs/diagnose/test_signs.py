"""Every sign of every cause is fired by its example, and the example by itself speaks for that cause before others."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import pytest

from clusterprep.checks import Check
from clusterprep.inventory.demands import check_names
from clusterprep.jobs.diagnose.forms import TABLE, WORDS
from clusterprep.jobs.diagnose.known import causes
from clusterprep.jobs.diagnose.model import Cause, Sign, Weight, form_of
from clusterprep.jobs.diagnose.prefixes import line_of
from clusterprep.jobs.diagnose.ranking import diagnose, needles
from clusterprep.jobs.verify.pages import PAGES
from clusterprep.reports.diagnosis import render
from clusterprep.survey.registry import checks

SIGNS = [
    pytest.param(cause, sign, id=f"{cause.name}-{number}")
    for cause in causes().values()
    for number, sign in enumerate(cause.signs)
]

# One log for each cause whose signs take more than one line, or which has none but a look at the whole log.
TOLD_BY_SEVERAL_LINES = {
    "no_usable_ip_interface": """\
n1:7:7 [0] NCCL INFO Bootstrap: Using default interface list
n1:7:7 [0] bootstrap.cc:115 NCCL WARN Bootstrap : no socket interface found""",
    "socket_ifname_not_found": """\
n1:7:7 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth9
n1:7:7 [0] bootstrap.cc:115 NCCL WARN Bootstrap : no socket interface found""",
    "virtual_interface_selected": """\
n1:7:7 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>
n1:7:9 [0] NCCL INFO Call to connect returned Connection refused, retrying""",
    "container_bridge_network": """\
4f1c2ab09d7e:7:7 [0] NCCL INFO Bootstrap : Using eth0:172.18.0.5<0>
4f1c2ab09d7e:7:9 [0] NCCL INFO Call to connect returned Connection timed out, retrying""",
    "loopback_hostname_resolution": """\
what(): [gloo/transport/tcp/pair.cc:724] connect [127.0.1.1]:4127: Connection refused""",
    "ipv6_ipv4_mismatch": """\
[W socket.cpp:558] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 97 - Address family not supported by protocol).
[E socket.cpp:800] [c10d] The client socket has failed to connect to any network address of (n1, 29500).""",
    "rail_cross_nic": """\
n1:7:9 [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1, curr state INIT, \
next state RTR, local GID index 3, local GID ::ffff:10.4.2.11, remote GID ::ffff:10.4.3.60""",
    "mtu_mismatch": """\
n1:7:9 [0] NCCL INFO NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 290 mtu 5 LID 1
n2:7:9 [0] NCCL INFO NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 291 mtu 3 LID 2
n1:7:9 [0] transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129""",
    "benign_ipv6_fallback": """\
[W socket.cpp:401] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family not supported by protocol).""",
    "benign_no_net_plugin": "n1:7:7 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.",
    "benign_rdma_probe_noise": "libibverbs: Warning: couldn't load driver 'libefa-rdmav34.so': cannot open shared object file",
    "benign_device_unknown_barrier": """\
[rank3]:[W304 17:41:12.735149131 ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank 3] using GPU 3 to perform barrier as devices used \
by this process are currently unknown.""",
    "duplicate_gpu": """\
n1:7:7 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000""",
    "world_size_mismatch": "n1:7:7 [7] init.cc:981 NCCL WARN Invalid rank requested : 7/4",
    "rendezvous_misconfigured": """\
master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified.
torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError""",
    "external_termination": """\
torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -15) local_rank: 0 (pid: 83) of binary: python""",
    "host_oom_kill": "E0101 10:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:8] failed (exitcode: -9) local_rank: 1 (pid: 9)",
    "ib_fabric_unreachable": "n1:7:9 [0] NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129",
    "gpu_hardware_fault": "[  77.123456] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
    "rank_desync_uneven_data": """\
[E ProcessGroupNCCL.cpp:563] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=90210, OpType=_ALLGATHER_BASE, \
NumelIn=262675456, NumelOut=1050701824, Timeout(ms)=600000) ran for 600068 milliseconds before timing out.""",
    "slow_work_exceeds_timeout": """\
[rank1]:[E563 ProcessGroupNCCL.cpp:563] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, \
NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600068 milliseconds before timing out.""",
    "topo_or_graph_file_bad": """\
n1:7:7 [0] NCCL INFO NCCL_GRAPH_FILE set by environment to /opt/graph.xml
n1:7:7 [0] graph/search.cc:703 NCCL WARN XML Import Channel : dev 1 not found.""",
}


def found_in(log: str) -> list[str]:
    """Causes of a log, most likely first, the harmless ones only where nothing else is."""
    lines = [
        line_of("log", number, text, number) for number, text in enumerate(log.splitlines(), 1)
    ]
    said = diagnose(lines).causes
    grave = [one.cause.name for one in said if one.severity != "benign"]
    return grave or [one.cause.name for one in said]


@pytest.mark.parametrize(("cause", "sign"), SIGNS)
def test_each_sign_is_fired_by_its_example(cause: Cause, sign: Sign) -> None:
    line = line_of("log", 1, sign.example)
    assert form_of(sign.needle) in form_of(line.text), (
        "the needle does not stand in the line, so reading would drop it"
    )
    assert re.search(
        sign.pattern, line.text if sign.searches_whole_line else line.message, re.IGNORECASE
    )


PARSER: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
MOST = 400  # wordings of one pattern
ANY = "\0"  # a character that may be one of several


def wordings(parsed: Any) -> list[str]:
    """What a pattern can match, each alternative once; what may stand there or not, both ways."""
    found = [""]
    for kind, what in parsed:
        found = [before + word for before in found for word in words(str(kind), what)][:MOST]
    return found


def words(kind: str, what: Any) -> list[str]:
    if kind == "LITERAL":
        return [chr(what)]
    if kind == "BRANCH":
        return [word for branch in what[1] for word in wordings(branch)]
    if kind == "SUBPATTERN":
        return wordings(what[3])
    if kind in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
        least, _, repeated = what
        return [*[""] * (least == 0), *(word * max(least, 1) for word in wordings(repeated))]
    if kind == "IN":
        (first, value), *_ = what
        if any("DIGIT" in str(one) for _, one in what):
            return ["0"]
        return [chr(value) if str(first) == "LITERAL" else ANY]
    return [""] if kind in {"AT", "ASSERT", "ASSERT_NOT"} else [ANY]


def test_wordings_are_those_of_the_pattern() -> None:
    assert wordings(PARSER.parse(r"^a(?:b|cd)? \d+.(?!x)")) == [
        f"a 0{ANY}",
        f"ab 0{ANY}",
        f"acd 0{ANY}",
    ]


@pytest.mark.parametrize(("cause", "sign"), SIGNS)
def test_every_wording_of_a_sign_holds_its_needle(cause: Cause, sign: Sign) -> None:
    """Lines without a needle are dropped while reading, however well a pattern fits them."""
    needle = form_of(sign.needle)
    without = [
        word
        for word in wordings(PARSER.parse(sign.pattern))
        if needle not in form_of(word).replace(ANY, " ")
    ]
    assert without == [], cause.name


@pytest.mark.parametrize(("cause", "sign"), SIGNS)
def test_an_example_alone_speaks_for_its_cause_first(cause: Cause, sign: Sign) -> None:
    assert found_in(sign.example)[0] == cause.name or sign.weight == Weight.SYMPTOM


@pytest.mark.parametrize("name", TOLD_BY_SEVERAL_LINES)
def test_a_cause_that_several_lines_tell_is_told_first(name: str) -> None:
    assert found_in(TOLD_BY_SEVERAL_LINES[name])[0] == name


def test_every_cause_has_a_sign_or_a_log_here() -> None:
    assert {name for name, cause in causes().items() if not cause.signs} <= set(
        TOLD_BY_SEVERAL_LINES
    )


@pytest.mark.parametrize("name", TOLD_BY_SEVERAL_LINES)
def test_reading_keeps_every_line_that_a_look_at_the_log_needs(name: str) -> None:
    wanted = needles()
    for text in TOLD_BY_SEVERAL_LINES[name].splitlines():
        form = text.encode().translate(TABLE)
        assert any(needle in form for needle in wanted), text


# Nothing in these lines stands out, so they are found in logs of ordinary size alone.
RARE = frozenset(
    {
        "dpt=",
        "fallen off the bus",
        "missing ranks:",
        "oom-kill",
        *("segmentation fault", "illegal instruction", "return code = -", "free or corruption"),
        *("smashing detected", "corrupted ", "can't open file", "no module named"),
        *(
            "scancel: ",
            "timeout",
            "preempted",
            "sending ctrl-c to",
            "job allocation ",
            "low on resource",
        ),
        *("longer than specified deadline", "imminent node shutdown", "out_of_me", "oom_reaper"),
        *("exit status", "code: 139", "pbs: job killed: ", "term_"),
        *("executable file not found", "command not found", "panicked at"),
    }
)
PLAIN = [
    one
    for one in SIGNS
    if one.values[1].weight == Weight.PLAIN and one.values[1].needle not in RARE
]


@pytest.mark.parametrize(("cause", "sign"), PLAIN)
def test_plain_signs_are_seen_in_oceans_of_text_too(cause: Cause, sign: Sign) -> None:
    """Where there is too much new text to search all of it for every needle, some words are searched for."""
    form = sign.example.encode().translate(TABLE)
    assert any(word in form for word in WORDS)


def test_checks_of_causes_are_checks() -> None:
    named = {cause.check for cause in causes().values() if cause.check}
    assert named <= set(check_names())
    built = {*checks(), *PAGES}
    assert all(isinstance(checks().get(name), Check) or name in PAGES for name in named & built)


def test_causes_that_explain_others_are_there() -> None:
    for cause in causes().values():
        assert cause.yields_to <= set(causes()), cause.name
        assert cause.name not in cause.yields_to


@pytest.mark.parametrize("cause", causes().values(), ids=lambda cause: cause.name)
def test_each_cause_says_what_a_reader_needs(cause: Cause) -> None:
    assert cause.message.endswith(".")
    assert cause.looks.endswith(".")
    assert cause.unlike.endswith(".")
    assert cause.remedy
    assert cause.severity in {"fatal", "degraded", "benign"}
    assert cause.name.startswith("benign_") == (cause.severity == "benign")


@pytest.mark.parametrize(
    ("cause", "finds"),
    [
        ("rank_desync_uneven_data", "other packages, settings or declared files on a rank"),
        ("rank_gpu_oom", "memory that other processes hold"),
        ("socket_ifname_not_found", "this"),
    ],
)
def test_a_check_is_said_to_find_no_more_than_it_can_see(cause: str, finds: str) -> None:
    """A trial has other steps than the job, and no check knows what a job will take of memory."""
    example = TOLD_BY_SEVERAL_LINES.get(cause) or causes()[cause].signs[0].example
    lines = [
        line_of("log", number, text, number) for number, text in enumerate(example.splitlines(), 1)
    ]
    shown = render(diagnose(lines), "console", color=False, verbose=0, width=200, ascii_only=False)
    assert f"{causes()[cause].check} finds {finds} before the job starts" in shown
