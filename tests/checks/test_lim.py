"""Limits of the job's user: unlimited, enough, too small, how much is in use, and severities."""

from __future__ import annotations

import math
from typing import Any

import pytest

from clusterprep.checks.lim import open_files, processes
from clusterprep.facts.tasks import Ids, Tasks
from clusterprep.model import Interfaces
from tests.support.fleet import absent, findings, fleet, rdma_device, told

GIB = 1 << 30
DECLARED = {"interfaces": Interfaces(rdma=("mlx5_0",))}


def node(limit: Any, ports: Any = ()) -> dict[str, Any]:
    return {"lim.memlock": limit, "rdma.devices": ports}


@pytest.mark.parametrize(
    ("limit", "good"),
    [
        pytest.param(math.inf, True, id="unlimited"),
        pytest.param(64.0 * GIB, True, id="64-gib"),
        pytest.param(32.0 * GIB, True, id="exactly-the-floor"),
        pytest.param(32.0 * GIB - 4096, False, id="a-page-less"),
        pytest.param(8.0 * (1 << 20), False, id="systemds-8-mib"),
        pytest.param(65536.0, False, id="the-old-64-kib"),
        pytest.param(0.0, False, id="none"),
    ],
)
@pytest.mark.parametrize(
    ("ports", "settings", "grade"),
    [
        pytest.param((), {}, "warning", id="sockets-only"),
        pytest.param((rdma_device(),), {}, "error", id="rdma-present"),
        pytest.param((rdma_device(active=False),), {}, "error", id="rdma-present-and-down"),
        pytest.param((), DECLARED, "error", id="rdma-declared"),
        pytest.param(
            (), {"interfaces": Interfaces(rdma=())}, "warning", id="rdma-declared-as-none"
        ),
    ],
)
def test_too_little_is_an_error_where_rdma_is(
    limit: float, good: bool, ports: Any, settings: dict[str, Any], grade: str
) -> None:
    expected = "pass" if good else f"fail {grade}"
    assert told(fleet(each=settings, n1=node(limit, ports)), "lim.memlock") == {"n1": expected}


@pytest.mark.parametrize(
    ("wanted", "limit", "expected"),
    [
        pytest.param("unlimited", math.inf, "pass", id="unlimited"),
        pytest.param("unlimited", 64.0 * GIB, "fail error", id="much-is-not-unlimited"),
        pytest.param("1GiB", 1.0 * GIB, "pass", id="less-than-the-floor-on-purpose"),
        pytest.param("64G", 63.0 * GIB, "fail error", id="more-than-the-floor"),
    ],
)
def test_what_is_required_replaces_the_floor(wanted: str, limit: float, expected: str) -> None:
    seen = fleet(each={"require": {"lim.memlock": wanted}}, n1=node(limit))
    assert told(seen, "lim.memlock") == {"n1": expected}
    assert findings(seen, "lim.memlock")[0].wanted == wanted


def test_only_the_node_with_the_low_limit_is_blamed() -> None:
    seen = fleet(n1=node(math.inf), n2=node(65536.0), n3=node(math.inf, (rdma_device(),)))
    assert told(seen, "lim.memlock") == {"n1": "pass", "n2": "fail warning", "n3": "pass"}


@pytest.mark.parametrize(
    ("facts", "settings", "expected"),
    [
        pytest.param(node(absent()), {}, "unknown warning denied", id="no-rdma"),
        pytest.param(
            node(absent(), (rdma_device(),)), {}, "unknown error denied", id="rdma-present"
        ),
        pytest.param(node(absent()), DECLARED, "unknown error denied", id="rdma-declared"),
        pytest.param(
            node(math.inf, absent("hung")),
            {},
            "unknown error hung",
            id="not-known-whether-rdma-is-there",
        ),
    ],
)
def test_not_knowing_is_as_grave_as_failing_would_be(
    facts: dict[str, Any], settings: dict[str, Any], expected: str
) -> None:
    assert told(fleet(each=settings, n1=facts), "lim.memlock") == {"n1": expected}


# ---------------------------------------------------------------- open files, stack


@pytest.mark.parametrize(
    ("check", "limit", "wanted", "expected"),
    [
        ("lim.nofile", math.inf, None, "pass"),
        ("lim.nofile", 65536.0, None, "pass"),
        ("lim.nofile", 65535.0, None, "fail warning"),
        ("lim.nofile", 1024.0, None, "fail warning"),
        ("lim.nofile", math.nan, None, "fail warning"),
        ("lim.nofile", 1024.0, "1024", "pass"),
        ("lim.nofile", 1048576.0, "unlimited", "fail error"),
        ("lim.nofile", math.inf, "unlimited", "pass"),
        ("lim.nofile", 65536.0, "65537", "fail error"),
        ("lim.nofile", absent("denied"), None, "unknown warning denied"),
        ("lim.nofile", absent("missing_tool"), "1024", "unknown error missing_tool"),
        ("lim.stack", 8388608.0, None, "pass"),
        ("lim.stack", 67108864.0, None, "pass"),
        ("lim.stack", 8388607.0, None, "fail warning"),
        ("lim.stack", math.inf, None, "fail warning"),
        ("lim.stack", math.nan, None, "fail warning"),
        ("lim.stack", math.inf, "unlimited", "pass"),
        ("lim.stack", math.inf, "16M", "pass"),
        ("lim.stack", 8388608.0, "16M", "fail error"),
        ("lim.stack", 4194304.0, "4M", "pass"),
        ("lim.stack", absent("hung"), None, "unknown warning hung"),
        ("lim.stack", absent("garbled"), None, "unknown warning garbled"),
    ],
)
def test_limits_against_their_floor_or_what_is_required(
    check: str, limit: Any, wanted: Any, expected: str
) -> None:
    each = {"require": {check: wanted}} if wanted else {}
    assert told(fleet(each=each, n1={check: limit}), check) == {"n1": expected}


def test_a_stack_without_limit_says_what_glibc_makes_of_it() -> None:
    (bad,) = findings(fleet(n1={"lim.stack": math.inf}), "lim.stack")
    assert "2 MiB" in bad.message
    assert bad.seen == "unlimited"


# ---------------------------------------------------------------- processes


def crowd(
    limit: Any = math.inf,
    threads: Any = 400,
    uid: Any = 1000,
    all_threads: int = 3000,
    pid_max: int = 32768,
) -> dict[str, Any]:
    tasks, ids = Tasks(uid, threads), Ids(all_threads, pid_max, 1 << 20)
    return {"lim.nproc": limit, "proc.tasks": tasks, "proc.ids": ids}


@pytest.mark.parametrize(
    ("facts", "wanted", "expected"),
    [
        pytest.param(crowd(), None, "pass", id="without-limit"),
        pytest.param(crowd(1000.0, 799), None, "pass", id="just-under"),
        pytest.param(crowd(1000.0, 800), None, "fail warning", id="on-the-mark"),
        pytest.param(crowd(1000.0, 4000), None, "fail warning", id="more-than-a-new-session-may"),
        pytest.param(crowd(1000.0, 4000, uid=0), None, "pass", id="root-is-not-held-to-it"),
        pytest.param(crowd(0.0, 0), None, "fail warning", id="none-allowed"),
        pytest.param(crowd(all_threads=26214), None, "pass", id="process-ids-just-under"),
        pytest.param(crowd(all_threads=26215), None, "fail warning", id="process-ids-run-out"),
        pytest.param(crowd(all_threads=26215, uid=0), None, "fail warning", id="for-root-too"),
        pytest.param(crowd(4096.0), "65536", "fail error", id="less-than-required"),
        pytest.param(crowd(65536.0), "65536", "pass", id="as-required"),
        pytest.param(crowd(65536.0), "unlimited", "fail error", id="much-is-not-unlimited"),
        pytest.param(crowd(math.nan), "1", "fail error", id="no-number"),
        pytest.param(
            crowd(threads=None, uid=None), None, "unknown warning missing", id="no-such-user"
        ),
        pytest.param(
            {**crowd(), "proc.tasks": absent("denied")},
            None,
            "unknown warning denied",
            id="hidepid",
        ),
        pytest.param(
            {**crowd(), "proc.ids": absent("garbled")}, None, "unknown warning garbled", id="no-ids"
        ),
        pytest.param(
            {**crowd(), "lim.nproc": absent("hung")}, None, "unknown warning hung", id="no-session"
        ),
    ],
)
def test_there_is_room_for_the_jobs_threads(
    facts: dict[str, Any], wanted: str | None, expected: str
) -> None:
    each = {"require": {"lim.nproc": wanted}} if wanted else {}
    assert told(fleet(each=each, n1=facts), "lim.nproc") == {"n1": expected}


def test_what_is_scarce_is_named_with_its_cure() -> None:
    (bad,) = findings(fleet(n1=crowd(all_threads=32768)), "lim.nproc")
    assert bad.seen == "32768 of 32768 threads (kernel.pid_max)"
    assert bad.remedy.startswith("sysctl -w kernel.pid_max=")


def test_nodes_with_room_for_more_threads_are_one_finding() -> None:
    seen = fleet(n1=crowd(all_threads=300), n2=crowd(all_threads=310))
    (good,) = findings(seen, "lim.nproc")
    assert good.nodes == ("n1", "n2")
    assert good.seen == "up to 1% of 32768 threads (kernel.pid_max)"


@pytest.mark.parametrize("text", ["", "many", "1k", "-1", "²"])
@pytest.mark.parametrize(("read", "what"), [(open_files, "open files"), (processes, "processes")])
def test_a_number_that_is_none_is_refused(text: str, read: Any, what: str) -> None:
    with pytest.raises(ValueError, match=f"expected a number of {what} such as 65536"):
        read(text)
