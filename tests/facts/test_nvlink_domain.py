"""The NVLink domain of a GPU, of what NVML says of its fabric."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.nvlink_domain import ALONE, NO_FABRIC, NOT_JOINED, Domain
from clusterprep.model import Absent
from tests.support.fleet import learned

RACK_1 = Domain("9c6f5af3-53bf-49b5-a436-b66766c413c3", 4026)  # leptonai/gpud#1106
UUID = "9c6f5af353bf49b5a436b66766c413c3"


def row(fabric: Any, cluster: Any = UUID) -> list[Any]:
    return ["ok", {"gpus": [{"index": 0, "fabric": fabric, "cluster": cluster}]}]


@pytest.mark.parametrize(
    ("fabric", "cluster", "expected"),
    [
        pytest.param([3, 0, 4026, 0, 0], UUID, RACK_1, id="gb200"),
        # torchcomms#1385: an H100 says completed, with a cluster of zeros.
        pytest.param([3, 0, 0, 0, 0], "0" * 32, ALONE, id="hgx"),
        pytest.param([0, 0, 0, 0, 0], "0" * 32, NO_FABRIC, id="no-fabric"),
        pytest.param(["no", "not_applicable"], ["no", "not_applicable"], NO_FABRIC, id="none"),
        pytest.param(["no", "missing_tool"], ["no", "missing_tool"], ALONE, id="old-driver"),
        pytest.param(["no", "denied"], ["no", "denied"], "denied", id="denied"),
        pytest.param([2, 0, 0, 0, 0], "0" * 32, NOT_JOINED, id="in-progress"),
        # Azure/azhpc-images#506: completed, «Insufficient Resources»
        pytest.param([3, 14, 0, 0, 0], "0" * 32, NOT_JOINED, id="insufficient"),
    ],
)
def test_the_domain_is_cluster_and_clique(fabric: Any, cluster: Any, expected: Any) -> None:
    answer = learned("nvlink.domain", row(fabric, cluster))
    found = answer if isinstance(answer, Absent) else answer[0]
    assert (found.reason if isinstance(found, Absent) else found) == expected


@pytest.mark.parametrize("cluster", ["", "9c6f", 7, "zz" * 16])
def test_what_is_no_uuid_is_garbled(cluster: Any) -> None:
    found = learned("nvlink.domain", row([3, 0, 1, 0, 0], cluster))
    assert isinstance(found, Absent)
    assert found.reason == "garbled"
