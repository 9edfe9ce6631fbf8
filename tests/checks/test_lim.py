"""Locked memory: unlimited, enough, too little, and how grave that is."""

from __future__ import annotations

import math
from typing import Any

import pytest

from clusterprep.model import Interfaces
from tests.fleet import absent, findings, fleet, hca, told

GIB = 1 << 30
DECLARED = {"interfaces": Interfaces(rdma=("mlx5_0",))}


def node(limit: Any, ports: Any = ()) -> dict[str, Any]:
    return {"lim.memlock": limit, "rdma.ports": ports}


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
        pytest.param((hca(),), {}, "error", id="rdma-present"),
        pytest.param((hca(active=False),), {}, "error", id="rdma-present-and-down"),
        pytest.param((), DECLARED, "error", id="rdma-declared"),
        pytest.param((), {"interfaces": Interfaces(rdma=())}, "warning", id="rdma-declared-as-none"),
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
    seen = fleet(n1=node(math.inf), n2=node(65536.0), n3=node(math.inf, (hca(),)))
    assert told(seen, "lim.memlock") == {"n1": "pass", "n2": "fail warning", "n3": "pass"}


@pytest.mark.parametrize(
    ("facts", "settings", "expected"),
    [
        pytest.param(node(absent()), {}, "unknown warning denied", id="no-rdma"),
        pytest.param(node(absent(), (hca(),)), {}, "unknown error denied", id="rdma-present"),
        pytest.param(node(absent()), DECLARED, "unknown error denied", id="rdma-declared"),
        pytest.param(node(math.inf, absent("hung")), {}, "unknown error hung", id="nobody-knows-whether-rdma-is-there"),
    ],
)
def test_not_knowing_is_as_grave_as_failing_would_be(
    facts: dict[str, Any], settings: dict[str, Any], expected: str
) -> None:
    assert told(fleet(each=settings, n1=facts), "lim.memlock") == {"n1": expected}
