"""NVLink between machines: one domain, two racks, cliques, trays that joined none, no such GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.environment import Setting
from clusterprep.facts.nvlink_domain import ALONE, NO_FABRIC, NOT_JOINED, Domain
from clusterprep.model import Gpus
from tests.support.fleet import absent, findings, fleet, told

CHECK = "nvl.domain"
# leptonai/gpud#1106, kubernetes-sigs/dra-driver-nvidia-gpu#626 and NVIDIA/nccl#1769.
RACK_1 = Domain("9c6f5af3-53bf-49b5-a436-b66766c413c3", 4026)
RACK_2 = Domain("dc6e40c4-d722-4357-9ba6-5291dd461278", 4026)
CUT = Domain("9c6f5af3-53bf-49b5-a436-b66766c413c3", 2)


def tray(*domains: Domain, **more: Any) -> dict[str, Any]:
    """Four GPUs of these domains, by turns."""
    return {"nvlink.domain": {index: domains[index % len(domains)] for index in range(4)}, **more}


def declared(name: str | bool | None) -> dict[str, Any]:
    return {"gpus": Gpus(4, "NVIDIA GB200", domain="" if name is True else name)}


@pytest.mark.parametrize(
    ("trays", "expected"),
    [
        pytest.param([RACK_1] * 3, ["pass"] * 3, id="one"),
        pytest.param([RACK_1, RACK_2, RACK_1], ["pass", "fail error", "pass"], id="another-rack"),
        pytest.param([RACK_1, CUT, RACK_1], ["pass", "fail error", "pass"], id="another-clique"),
        pytest.param([RACK_1, RACK_2], ["fail error"] * 2, id="no-majority"),
        pytest.param([RACK_1, RACK_1, ALONE], ["pass", "pass", "fail error"], id="joined-none"),
        pytest.param([ALONE] * 2, ["fail error"] * 2, id="all-joined-none"),
        pytest.param([NO_FABRIC] * 2, ["fail error"] * 2, id="no-nvswitch"),
    ],
)
@pytest.mark.parametrize("name", [True, "rack1"])
def test_a_declared_domain_is_one(
    trays: list[Domain], expected: list[str], name: str | bool
) -> None:
    nodes = {f"n{number}": tray(domain) for number, domain in enumerate(trays, 1)}
    seen = fleet(each=declared(name), **nodes)
    assert list(told(seen, CHECK).values()) == expected


def test_each_declared_domain_is_judged_by_itself() -> None:
    nodes = {"n1": tray(RACK_1), "n2": tray(RACK_1), "n3": tray(RACK_2), "n4": tray(RACK_2)}
    some = {name: declared("a" if name in ("n1", "n2") else "b") for name in nodes}
    assert set(told(fleet(some=some, **nodes), CHECK).values()) == {"pass"}


def test_without_a_declaration_domains_are_told() -> None:
    trays = {"n1": RACK_1, "n2": RACK_2, "n3": RACK_1, "n4": ALONE, "n5": NO_FABRIC}
    seen = fleet(**{name: tray(domain) for name, domain in trays.items()})
    assert told(seen, CHECK) == {
        **dict.fromkeys(("n1", "n2", "n3", "n4"), "pass"),
        "n5": "skip not_applicable",
    }
    texts = {finding.nodes: (finding.message, finding.seen) for finding in findings(seen, CHECK)}
    assert texts["n1", "n3"] == (
        "NVLink joins these nodes",
        "clique 4026 of 9c6f5af3-53bf-49b5-a436-b66766c413c3",
    )
    assert "none of this inventory" in texts[("n2",)][0]


def test_gpus_of_one_node_in_two_domains() -> None:
    seen = fleet(n1=tray(RACK_1, CUT), n2=tray(RACK_1))
    assert told(seen, CHECK) == {"n1": "fail error", "n2": "pass"}
    found = next(finding for finding in findings(seen, CHECK) if finding.verdict == "fail")
    assert "GPU 0,2: clique 4026 of 9c6f5af3" in found.seen


@pytest.mark.parametrize(
    ("name", "value", "warned"),
    [
        ("NCCL_CUMEM_ENABLE", "0", True),  # vllm-project/vime#103: MNNVL 0 on every communicator
        ("NCCL_MNNVL_ENABLE", "0", True),
        ("NCCL_P2P_LEVEL", "LOC", True),
        ("NCCL_CUMEM_ENABLE", "1", False),
        ("NCCL_MNNVL_ENABLE", "2", False),
        ("NCCL_P2P_LEVEL", "NVL", False),
    ],
)
def test_variables_that_keep_nccl_from_the_domain(name: str, value: str, warned: bool) -> None:
    paths = {"login shell": (Setting(name, value, "/root/.bashrc", 3),), "nccl": ()}
    nodes = {f"n{number}": tray(RACK_1, **{"env.paths": paths}) for number in (1, 2)}
    seen = fleet(each=declared(True), **nodes)
    warnings = [f for f in findings(seen, CHECK) if f.severity == "warning"]
    assert [(f.verdict, f.nodes) for f in warnings] == ([("fail", ("n1", "n2"))] if warned else [])
    assert not [f for f in findings(fleet(**nodes), CHECK) if f.verdict == "fail"]


@pytest.mark.parametrize(
    ("domains", "expected"),
    [
        (absent("hung"), "unknown error hung"),
        (absent("not_applicable"), "skip not_applicable"),
        ({0: absent("denied")}, "unknown error denied"),
        ({0: NOT_JOINED}, "unknown error gpu.fabricmanager"),
    ],
)
def test_what_is_not_known(domains: Any, expected: str) -> None:
    seen = fleet(each=declared(True), n1={"nvlink.domain": domains}, n2=tray(RACK_1))
    assert told(seen, CHECK)["n1"] == expected
