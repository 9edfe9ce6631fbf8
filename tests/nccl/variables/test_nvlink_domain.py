"""NCCL_MNNVL_ENABLE is 0 where the inventory keeps NVLink within nodes, and is left alone else."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.model import Gpus
from clusterprep.nccl.interfaces import Choice
from clusterprep.nccl.variables import Basis
from clusterprep.nccl.variables.nvlink_domain import derive
from tests.support.fleet import env, fleet


def derived(*domains: Any, **each: Any) -> list[tuple[str | None, tuple[str, ...]]]:
    some = {
        f"n{number}": {"gpus": Gpus(4, domain=domain)} for number, domain in enumerate(domains, 1)
    }
    seen = fleet(each=each, some=some, **{name: {} for name in some})
    return [(item.value, item.nodes) for item in derive(Basis(seen, Choice()))]


@pytest.mark.parametrize(
    ("domains", "expected"),
    [
        pytest.param((None, None), [], id="nothing-declared"),
        pytest.param(("", ""), [], id="one-domain"),
        pytest.param(("rack1", "rack2"), [], id="two-domains"),
        pytest.param((False, False), [("0", ("n1", "n2"))], id="kept-within-nodes"),
        pytest.param((False, None), [("0", ("n1", "n2"))], id="all-ranks-must-agree"),
    ],
)
def test_nvlink_between_nodes(domains: tuple[Any, ...], expected: Any) -> None:
    assert derived(*domains) == expected


def test_what_is_declared_stays() -> None:
    assert derived(False, False, env=env(NCCL_MNNVL_ENABLE="2")) == []
