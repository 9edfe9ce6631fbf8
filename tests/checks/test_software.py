"""torch, NCCL and the driver: equal, odd, missing, built for CPUs, and required."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.model import Gpus
from tests.support.fleet import (
    NO_TORCH,
    SYSTEM_NCCL,
    WHEEL_NCCL,
    absent,
    findings,
    fleet,
    libraries,
    same,
    silent,
    told,
    torch,
)

CPU = torch("2.6.0+cpu", None, None)
OTHER = torch("2.5.1+cu124", "12.4", "2.21.5")
NO_NCCL = torch(nccl=None)  # built from source, or by conda: NCCL is elsewhere
TOO_FEW = "unknown error fewer than two nodes have a value to compare"


# ---------------------------------------------------------------- torch


@pytest.mark.parametrize(
    ("builds", "expected"),
    [
        pytest.param([torch()] * 3, ["pass"] * 3, id="equal"),
        pytest.param([torch(), OTHER, torch()], ["pass", "fail error", "pass"], id="one-odd"),
        pytest.param([torch(), OTHER], ["fail error"] * 2, id="two-nodes"),
        pytest.param([torch(), torch(), OTHER, OTHER], ["fail error"] * 4, id="two-against-two"),
        pytest.param(
            [torch(), torch(), torch("2.6.0+cu126", "12.6")],
            ["pass", "pass", "fail error"],
            id="other-cuda",
        ),
        pytest.param([torch()], ["skip not_applicable"], id="one-node"),
        pytest.param(
            [NO_TORCH, torch(), torch()], ["fail error", "pass", "pass"], id="missing-on-one"
        ),
        pytest.param([torch(), NO_TORCH], [TOO_FEW, "fail error"], id="missing-on-one-of-two"),
        pytest.param([NO_TORCH, NO_TORCH], ["unknown error missing_tool"] * 2, id="missing-on-all"),
        pytest.param([NO_TORCH], ["unknown error missing_tool"], id="missing-on-the-only-node"),
        pytest.param(
            [torch(), torch(), absent("hung")],
            ["pass", "pass", "unknown error hung"],
            id="not-known-on-one",
        ),
        pytest.param([absent(), absent()], ["unknown error denied"] * 2, id="not-known-on-all"),
    ],
)
def test_torch_is_the_same_on_all_nodes(builds: list[Any], expected: list[str]) -> None:
    assert list(told(fleet(**same("torch.build", *builds)), "torch.version").values()) == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param("==2.6.0", ["pass", "fail error", "fail error"], id="pinned"),
        pytest.param("2.6.0", ["pass", "fail error", "fail error"], id="bare"),
        pytest.param(">=2.5", ["pass", "pass", "fail error"], id="at-least"),
        pytest.param("==2.5.*", ["fail error", "pass", "fail error"], id="a-series"),
    ],
)
def test_a_required_torch_is_compared_node_by_node(wanted: str, expected: list[str]) -> None:
    builds = [
        torch("2.6.0+cu124"),
        torch("2.5.1+cu124"),
        torch("2.10.0+cu128") if ">" not in wanted else NO_TORCH,
    ]
    seen = fleet(each={"require": {"torch.version": wanted}}, **same("torch.build", *builds))
    assert list(told(seen, "torch.version").values()) == expected


def test_the_cure_for_a_missing_torch_names_the_interpreter_and_the_version() -> None:
    seen = fleet(
        each={"python": "/opt/venv/bin/python"}, **same("torch.build", torch(), torch(), NO_TORCH)
    )
    (bad,) = [f for f in findings(seen, "torch.version") if f.verdict == "fail"]
    assert bad.remedy == "/opt/venv/bin/python -m pip install torch==2.6.0+cu124"


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        pytest.param(Gpus(8), "fail error", id="gpus-declared"),
        pytest.param(Gpus(0), "pass", id="declared-as-none"),
        pytest.param(None, "pass", id="nothing-declared"),
    ],
)
def test_a_cpu_build_fails_where_gpus_are_declared(gpus: Any, expected: str) -> None:
    seen = fleet(each={"gpus": gpus}, **same("torch.build", CPU, CPU, CPU))
    assert set(told(seen, "torch.version").values()) == {expected}


def test_a_cpu_build_as_required_still_fails_where_gpus_are_declared() -> None:
    seen = fleet(
        each={"gpus": Gpus(8), "require": {"torch.version": "2.6.0"}}, **same("torch.build", CPU)
    )
    assert told(seen, "torch.version") == {"n1": "fail error"}


# ---------------------------------------------------------------- NCCL


def loading(*builds: Any, found: Any = None) -> dict[str, dict[str, Any]]:
    """Nodes with these builds, and the NCCL beside torch unless told otherwise."""
    beside = libraries() if found is None else found
    return {
        n: {**facts, "nccl.libraries": beside} for n, facts in same("torch.build", *builds).items()
    }


@pytest.mark.parametrize(
    ("builds", "gpus", "expected"),
    [
        pytest.param([torch()] * 3, None, ["pass"] * 3, id="equal"),
        pytest.param(
            [torch(), torch(nccl="2.26.2"), torch()],
            None,
            ["pass", "fail error", "pass"],
            id="one-odd",
        ),
        pytest.param([torch(), torch(nccl="2.26.2")], None, ["fail error"] * 2, id="two-nodes"),
        pytest.param([torch()], None, ["skip not_applicable"], id="one-node"),
        pytest.param([CPU, CPU], None, ["skip not_applicable"] * 2, id="cpu-builds"),
        pytest.param(
            [CPU, CPU], Gpus(0), ["skip not_applicable"] * 2, id="cpu-builds-on-cpu-nodes"
        ),
        pytest.param(
            [CPU, CPU], Gpus(8), ["unknown error missing_tool"] * 2, id="cpu-builds-on-gpu-nodes"
        ),
        pytest.param(
            [NO_NCCL] * 2,
            None,
            ["unknown error missing_tool"] * 2,
            id="cuda-build-with-nccl-elsewhere",
        ),
        pytest.param(
            [torch(), torch(), NO_NCCL],
            Gpus(8),
            ["pass", "pass", "unknown error missing_tool"],
            id="on-one",
        ),
        pytest.param(
            [torch(), torch(), CPU],
            None,
            ["pass", "pass", "skip not_applicable"],
            id="a-cpu-build-beside",
        ),
        pytest.param(
            [torch(), CPU], None, ["skip not_applicable"] * 2, id="nothing-else-needs-nccl"
        ),
        pytest.param([NO_TORCH] * 2, None, ["unknown error missing_tool"] * 2, id="no-torch"),
        pytest.param(
            [torch(), torch(), absent("denied")],
            None,
            ["pass", "pass", "unknown error denied"],
            id="denied",
        ),
    ],
)
def test_nccl_is_the_same_wherever_it_is_needed(
    builds: list[Any], gpus: Any, expected: list[str]
) -> None:
    seen = fleet(each={"gpus": gpus}, **loading(*builds))
    assert list(told(seen, "nccl.torch").values()) == expected


def test_every_node_has_an_answer_where_cpu_and_gpu_nodes_mix() -> None:
    settings = {"n1": {"gpus": Gpus(8)}, "n2": {"gpus": Gpus(0)}}
    seen = fleet(some=settings, **loading(CPU, CPU))
    assert told(seen, "nccl.torch") == {
        "n1": "unknown error missing_tool",
        "n2": "skip not_applicable",
    }


def test_a_required_nccl_is_an_error_where_it_differs() -> None:
    seen = fleet(
        each={"require": {"nccl.torch": "2.21.5"}}, **loading(torch(), torch(nccl="2.26.2"))
    )
    assert told(seen, "nccl.torch") == {"n1": "pass", "n2": "fail error"}


@pytest.mark.parametrize(
    ("found", "nccl", "expected"),
    [
        pytest.param(libraries(), "2.21.5", "pass", id="the-wheels-own"),
        pytest.param(
            libraries(loaded="/opt/nccl/libnccl.so.2", library_path="/opt/nccl"),
            "2.26.2",
            "fail warning",
            id="other",
        ),
        pytest.param(
            libraries(loaded="/opt/nccl/libnccl.so.2", preload="/opt/nccl/libnccl.so.2"),
            "2.21.5",
            "fail warning",
            id="the-same-version-from-elsewhere",
        ),
        pytest.param(
            libraries(loaded=SYSTEM_NCCL, wheel=None),
            "2.21.5",
            "pass",
            id="an-image-without-the-wheel",
        ),
    ],
)  # fmt: skip
def test_an_environment_that_hides_torchs_own_nccl_is_a_warning(
    found: Any, nccl: str, expected: str
) -> None:
    seen = fleet(**loading(*[torch(nccl=nccl)] * 3, found=found))
    assert set(told(seen, "nccl.torch").values()) == {expected}


def test_what_is_loaded_is_compared_and_not_what_came_with_torch() -> None:
    shadow = libraries(
        loaded="/opt/nccl/libnccl.so.2", preload="/opt/nccl/libnccl.so.2", library_path="/opt/nccl"
    )
    facts = loading(torch(), torch(), torch(nccl="2.18.3"))
    facts["n3"]["nccl.libraries"] = shadow
    seen = fleet(**facts)
    assert told(seen, "nccl.torch") == {
        "n1": "pass",
        "n2": "pass",
        "n3": "fail error + fail warning",
    }
    (bad,) = [
        f for f in findings(seen, "nccl.torch") if f.severity == "warning" and f.verdict == "fail"
    ]
    assert "LD_PRELOAD" in bad.message
    assert bad.seen == "2.18.3 from /opt/nccl/libnccl.so.2"
    assert bad.wanted == f"2.21.5 from {WHEEL_NCCL}"


def test_another_nccl_that_is_required_was_meant() -> None:
    found = libraries(loaded="/opt/nccl/libnccl.so.2", library_path="/opt/nccl")
    seen = fleet(
        each={"require": {"nccl.torch": "2.26.2"}}, **loading(torch(nccl="2.26.2"), found=found)
    )
    assert told(seen, "nccl.torch") == {"n1": "pass"}


def test_a_library_that_does_not_say_its_version_is_named() -> None:
    seen = fleet(**loading(NO_NCCL, NO_NCCL))
    assert {f.seen for f in findings(seen, "nccl.torch")} == {WHEEL_NCCL}


@pytest.mark.parametrize("reason", ["denied", "hung", "timed_out", "garbled"])
def test_libraries_that_are_not_known_are_no_pass(reason: str) -> None:
    seen = fleet(**loading(torch(), torch(), found=absent(reason)))
    assert set(told(seen, "nccl.torch").values()) == {f"unknown error {reason}"}


# ---------------------------------------------------------------- the driver

BUS = ("0000:17:00.0",)


def loaded(version: Any, bus: Any = BUS) -> dict[str, Any]:
    return {"nv.driver": version, "gpu.pci": bus}


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param([loaded("550.54.15")] * 3, ["pass"] * 3, id="equal"),
        pytest.param(
            [loaded("550.54.15"), loaded("535.183.01"), loaded("550.54.15")],
            ["pass", "fail error", "pass"],
            id="odd",
        ),
        pytest.param(
            [loaded("550.54.15"), loaded("550.54.14")], ["fail error"] * 2, id="two-nodes"
        ),
        pytest.param([loaded("550.54.15")], ["skip not_applicable"], id="one-node"),
        pytest.param(
            [loaded(None), loaded("550.54.15"), loaded("550.54.15")],
            ["fail error", "pass", "pass"],
            id="gone",
        ),
        pytest.param(
            [loaded(None, ()), loaded(None, ())], ["skip not_applicable"] * 2, id="no-gpu-anywhere"
        ),
        pytest.param(
            [loaded("550.54.15"), loaded(None, ()), loaded(None, ())],
            ["skip not_applicable"] * 3,
            id="one-gpu-node",
        ),
        pytest.param(
            [loaded("550.54.15"), loaded("550.54.15"), loaded(None, ())],
            ["pass", "pass", "skip not_applicable"],
            id="two-gpu-nodes-of-three",
        ),
        pytest.param(
            [loaded("550.54.15"), silent("n2"), loaded(None, ())],
            [TOO_FEW, "skip not_applicable"],
            id="lost",
        ),
        pytest.param([loaded(absent("hung"))] * 2, ["unknown error hung"] * 2, id="hung"),
        pytest.param(
            [loaded("550.54.15", absent())] * 2,
            ["unknown error denied"] * 2,
            id="no-view-of-the-bus",
        ),
    ],
)
def test_the_driver_is_the_same_wherever_gpus_are(nodes: list[Any], expected: list[str]) -> None:
    seen = fleet(**{f"n{number}": facts for number, facts in enumerate(nodes, 1)})
    assert list(told(seen, "nv.driver").values()) == expected


def test_declared_gpus_need_a_driver_also_where_the_bus_shows_none() -> None:
    assert told(fleet(each={"gpus": Gpus(8)}, n1=loaded(None, ())), "nv.driver") == {
        "n1": "fail error"
    }


def test_a_required_driver_is_no_matter_for_nodes_without_gpus() -> None:
    seen = fleet(
        each={"require": {"nv.driver": ">=550.54"}},
        n1=loaded("550.54.15"),
        n2=loaded("535.1"),
        n3=loaded(None, ()),
    )
    assert told(seen, "nv.driver") == {
        "n1": "pass",
        "n2": "fail error",
        "n3": "skip not_applicable",
    }
