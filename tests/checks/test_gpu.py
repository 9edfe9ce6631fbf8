"""GPUs by NVML, on the bus and as declared: all there, one gone, none meant, and not seen."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.checks.gpu import fits
from clusterprep.facts.environment import Setting
from clusterprep.facts.gpu import DeviceNodes, Function, Gone, Gpu, Listed, Model, Nvml
from clusterprep.model import Absent, Gpus
from tests.support.fleet import absent, findings, fleet, nvml, same, told


def node(by_nvml: Any, on_bus: int, gone: int = 0, **nodes: str) -> dict[str, Any]:
    """`gone` of the functions answer nothing; `nodes` are closed device nodes, as n3="hidden"."""
    places = tuple(f"0000:{i:02x}:00.0" for i in range(on_bus))
    states = {
        **dict.fromkeys(range(on_bus), "open"),
        **{int(key[1:]): state for key, state in nodes.items()},
    }
    return {
        "gpu.nvml": by_nvml,
        "gpu.pci": places,
        "gpu.functions": tuple(
            Function(at, False, 0, number < gone) for number, at in enumerate(places)
        ),
        "gpu.nodes": DeviceNodes(states, places),
        "gpu.listed": None
        if by_nvml is None or isinstance(by_nvml, Absent)
        else Listed(len(by_nvml.gpus)),
    }


@pytest.mark.parametrize(
    ("by_nvml", "on_bus", "declared", "expected"),
    [
        pytest.param(nvml(8), 8, None, "pass", id="eight"),
        pytest.param(nvml(8), 8, 8, "pass", id="eight-as-declared"),
        pytest.param(nvml(7), 8, None, "fail error", id="one-fell-out-of-the-driver"),
        pytest.param(nvml(7), 7, 8, "fail error", id="one-fell-off-the-bus"),
        pytest.param(
            nvml(7, ("GPU 7: gpu_lost",)), 8, 8, "pass", id="one-lost-while-the-driver-counts-it"
        ),
        pytest.param(
            nvml(7, ("GPU 7: gpu_lost",)), 8, 9, "fail error", id="one-lost-and-another-missing"
        ),
        pytest.param(
            nvml(8, ("GPU 8: gpu_lost",)), 8, 8, "fail error", id="more-with-the-lost-one"
        ),
        pytest.param(None, 8, None, "fail error", id="no-library-and-gpus-on-the-bus"),
        pytest.param(nvml(8), 8, 10, "fail error", id="fewer-than-declared"),
        pytest.param(nvml(8), 8, 4, "fail error", id="more-than-declared"),
        pytest.param(nvml(8), 8, 0, "fail error", id="declared-as-none"),
        pytest.param(nvml(8), 7, 8, "fail error", id="more-than-the-bus-has"),
        pytest.param(nvml(4), 0, 4, "pass", id="no-view-of-the-bus"),
        pytest.param(nvml(4), 0, None, "pass", id="no-view-of-the-bus-and-nothing-declared"),
        pytest.param(None, 0, None, "skip not_applicable", id="no-gpu-and-none-meant"),
        pytest.param(None, 0, 0, "skip not_applicable", id="no-gpu-and-none-declared"),
        pytest.param(nvml(0), 0, None, "skip not_applicable", id="a-library-and-no-gpu"),
        pytest.param(None, 0, 8, "fail error", id="none-where-eight-are-declared"),
        pytest.param(absent("denied"), 8, 8, "unknown error denied", id="nvml-denied"),
        pytest.param(
            absent("driver_library_mismatch"),
            8,
            8,
            "unknown error driver_library_mismatch",
            id="mismatch",
        ),
        pytest.param(absent("hung"), 8, 8, "unknown error hung", id="nvml-hung"),
    ],
)
def test_nvml_the_bus_and_the_inventory_say_the_same(
    by_nvml: Any, on_bus: int, declared: int | None, expected: str
) -> None:
    settings = {"gpus": None if declared is None else Gpus(declared)}
    assert told(fleet(each=settings, n1=node(by_nvml, on_bus)), "gpu.count") == {"n1": expected}


def test_a_job_on_some_devices_still_declares_all_of_them() -> None:
    seen = fleet(
        each={"gpus": Gpus(10, use=(6, 7, 8, 9))}, n1=node(nvml(10), 10), n2=node(nvml(9), 10)
    )
    assert told(seen, "gpu.count") == {"n1": "pass", "n2": "fail error"}


@pytest.mark.parametrize(
    ("seen", "words"), [(nvml(7), "missing from the driver"), (nvml(9), "more GPUs than declared")]
)
def test_fewer_and_more_are_told_apart(seen: Any, words: str) -> None:
    (bad,) = findings(fleet(each={"gpus": Gpus(8)}, n1=node(seen, 9)), "gpu.count")
    assert words in bad.message
    assert bad.wanted == "8 declared"


def test_a_bus_that_was_not_read_is_not_an_empty_bus() -> None:
    seen = fleet(n1={**node(nvml(8), 8), "gpu.pci": absent("timed_out")})
    assert told(seen, "gpu.count") == {"n1": "unknown error timed_out"}


def test_undeclared_numbers_are_compared_between_the_nodes_that_have_gpus() -> None:
    """A GPU that left the bus altogether leaves NVML and PCI agreeing with each other."""
    seen = fleet(n1=node(nvml(8), 8), n2=node(nvml(8), 8), n3=node(nvml(7), 7), head=node(None, 0))
    assert told(seen, "gpu.count") == {
        "n1": "pass",
        "n2": "pass",
        "n3": "fail error",
        "head": "skip not_applicable",
    }


def test_what_answers_nothing_on_the_bus_and_left_the_driver_is_the_lost_ones_business() -> None:
    assert told(fleet(each={"gpus": Gpus(8)}, n1=node(nvml(7), 8, gone=1)), "gpu.count") == {
        "n1": "pass"
    }
    assert told(fleet(each={"gpus": Gpus(8)}, n1=node(nvml(6), 8, gone=1)), "gpu.count") == {
        "n1": "fail error"
    }
    assert told(fleet(each={"gpus": Gpus(8)}, n1=node(nvml(8), 8, gone=1)), "gpu.count") == {
        "n1": "pass"
    }


@pytest.mark.parametrize("reason", ["denied", "missing_tool", "hung", "timed_out", "garbled"])
@pytest.mark.parametrize("fact", ["gpu.nvml", "gpu.pci", "gpu.functions", "gpu.nodes"])
def test_nothing_is_counted_where_anything_is_not_known(fact: str, reason: str) -> None:
    seen = fleet(n1={**node(nvml(8), 8), fact: absent(reason)})
    assert told(seen, "gpu.count") == {"n1": f"unknown error {reason}"}


# ---------------------------------------------------------------- hidden


@pytest.mark.parametrize(
    ("facts", "declared", "hidden", "count"),
    [
        pytest.param(node(nvml(8), 8), 8, "pass", "pass", id="all-open"),
        pytest.param(
            node(nvml(0), 8, n0="hidden"),
            8,
            "unknown warning hidden",
            "unknown warning hidden",
            id="by-a-cgroup",
        ),
        pytest.param(
            node(nvml(6), 8, n3="hidden"),
            None,
            "unknown warning hidden",
            "unknown warning hidden",
            id="some",
        ),
        pytest.param(
            node(nvml(4), 8, n3="hidden"), 4, "pass", "pass", id="the-job-counts-on-fewer"
        ),
        pytest.param(
            node(nvml(8), 8, n3="denied"),
            8,
            "unknown warning denied",
            "pass",
            id="by-the-files-mode",
        ),
        pytest.param(node(None, 0), 0, "skip not_applicable", "skip not_applicable", id="no-gpu"),
        pytest.param(node(nvml(7), 8), 8, "pass", "fail error", id="one-missing-and-none-hidden"),
    ],
)
def test_hidden_gpus_are_not_known_and_never_failed(
    facts: Any, declared: Any, hidden: str, count: str
) -> None:
    seen = fleet(each={"gpus": None if declared is None else Gpus(declared)}, n1=facts)
    assert told(seen, "gpu.hidden") == {"n1": hidden}
    assert told(seen, "gpu.count") == {"n1": count}


def test_a_container_that_was_given_a_part_of_the_gpus() -> None:
    """The driver has eight, /dev and NVML four: nothing is missing, unless eight are declared."""
    given = {
        **node(nvml(4), 8),
        "gpu.nodes": DeviceNodes(dict.fromkeys(range(4), "open"), ("",) * 8),
    }
    for declared, said in (
        (None, "unknown warning hidden"),
        (8, "unknown warning hidden"),
        (4, "pass"),
    ):
        seen = fleet(each={"gpus": None if declared is None else Gpus(declared)}, n1=given)
        assert told(seen, "gpu.hidden") == told(seen, "gpu.count") == {"n1": said}


def test_gpus_without_a_driver_are_not_hidden() -> None:
    facts = {**node(None, 8), "gpu.nodes": DeviceNodes(dict.fromkeys(range(4), "open"), ("",) * 8)}
    assert told(fleet(n1=facts), "gpu.hidden") == {
        "n1": "unknown warning hidden"
    }  # and no NVML to contradict
    facts = {**node(None, 8), "gpu.nodes": DeviceNodes({}, ())}
    assert told(fleet(n1=facts), "gpu.hidden") == {"n1": "skip not_applicable"}
    facts = {**node(nvml(8), 8), "gpu.nodes": DeviceNodes({}, ())}
    assert told(fleet(n1=facts), "gpu.hidden") == {"n1": "pass"}


def test_the_way_to_hidden_gpus_is_the_scheduler() -> None:
    (found,) = findings(fleet(n1=node(nvml(0), 8, n0="hidden", n5="hidden")), "gpu.hidden")
    assert found.seen == "/dev/nvidia[0,5] may not be opened"
    assert found.remedy.startswith("srun ")


@pytest.mark.parametrize("reason", ["denied", "hung", "garbled"])
def test_device_nodes_that_are_not_known(reason: str) -> None:
    seen = fleet(n1={**node(nvml(8), 8), "gpu.nodes": absent(reason)})
    assert told(seen, "gpu.hidden") == {"n1": f"unknown warning {reason}"}


# ---------------------------------------------------------------- lost


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        (Gone(), "pass"),
        (Gone(lost=("GPU 3: gpu_lost",)), "fail error"),
        (Gone(reset=("GPU 3: reset_required",)), "fail error"),
        (Gone(broken=("GPU 3: …",)), "fail error"),
        (Gone(silent=("GPU 3: GPU 3 answered 999",)), "unknown error nvml_error"),
        (Gone(stopped="nvmlInit answered 999"), "fail error"),
        (Gone(missing="no libnvidia-ml.so.1 here"), "unknown error no_nvml_library"),
        (absent("hung"), "unknown error hung"),
        (absent("denied"), "unknown error denied"),
        (absent("not_applicable"), "skip not_applicable"),
    ],
)
def test_a_lost_gpu_fails(gone: Any, expected: str) -> None:
    assert told(fleet(**same("gpu.gone", gone)), "gpu.lost") == {"n1": expected}


def test_lost_gpus_are_named() -> None:
    (found,) = findings(
        fleet(
            **same("gpu.gone", Gone(lost=("GPU 3: gpu_lost", "0000:3a:00.0 (GPU): reads all ones")))
        ),
        "gpu.lost",
    )
    assert found.seen == "GPU 3: gpu_lost; 0000:3a:00.0 (GPU): reads all ones"


def test_a_gpu_that_needs_a_reset_is_told_so() -> None:
    (found,) = findings(
        fleet(**same("gpu.gone", Gone(reset=("GPU 3: reset_required",)))), "gpu.lost"
    )
    assert "must be reset" in found.message
    assert found.remedy.startswith("nvidia-smi --gpu-reset")


def test_gpus_without_a_driver_did_not_fall_off_the_bus() -> None:
    facts = {**node(None, 8), "gpu.nodes": DeviceNodes({}, ())}
    (found,) = findings(fleet(each={"gpus": Gpus(8)}, n1=facts), "gpu.count")
    assert "no driver has the GPUs" in found.message
    assert "fell off" not in found.remedy


def test_a_gpu_that_may_not_be_shown_is_told_by_hidden() -> None:
    facts = {**node(nvml(8), 8), "gpu.listed": Listed(8, (2,))}
    (found,) = findings(fleet(n1=facts), "gpu.hidden")
    assert (found.verdict, found.seen) == ("unknown", "NVML may not show GPU 2")


# ---------------------------------------------------------------- models

SPARK = Model("NVIDIA GB10", None, "12.1")
H100 = Model("NVIDIA H100 80GB HBM3", 85520809984, "9.0")
H100_96 = Model("NVIDIA H100 80GB HBM3", 96 << 30, "9.0")
L20, L20_NO_ECC = Model("NVIDIA L20", 46068 << 20, "8.9"), Model("NVIDIA L20", 49140 << 20, "8.9")
L40S = Model("NVIDIA L40S", 46068 << 20, "8.9")


@pytest.mark.parametrize(
    ("models", "gpus", "expected"),
    [
        pytest.param([H100] * 8, None, "pass", id="alike"),
        pytest.param([SPARK], Gpus(1, "NVIDIA GB10"), "pass", id="no-memory-of-its-own"),
        pytest.param([H100] * 7 + [H100_96], None, "fail warning", id="another-memory"),
        pytest.param([L20] * 3 + [L20_NO_ECC], None, "pass", id="ecc-takes-some-memory"),
        pytest.param([L40S] * 6 + [L20] * 4, None, "fail warning", id="mixed"),
        pytest.param(
            [L40S] * 6 + [L20] * 4,
            Gpus(10, None, (6, 7, 8, 9)),
            "pass",
            id="mixed-and-the-job-on-like-ones",
        ),
        pytest.param(
            [L40S] * 6 + [L20] * 4, Gpus(10, "NVIDIA L20", (6, 7, 8, 9)), "pass", id="as-declared"
        ),
        pytest.param(
            [L40S] * 6 + [L20] * 4,
            Gpus(10, "NVIDIA L20", (5, 6, 7)),
            "fail warning",
            id="one-not-declared",
        ),
        pytest.param([L40S] * 4, Gpus(4, "NVIDIA L40"), "fail warning", id="nearly-as-declared"),
        pytest.param([H100] * 8, Gpus(8, "H100"), "pass", id="declared-in-short"),
        pytest.param([H100] * 7 + [absent()], None, "unknown warning denied", id="one-not-known"),
    ],
)
def test_the_devices_of_the_job_are_of_one_model(
    models: list[Any], gpus: Gpus | None, expected: str
) -> None:
    seen = fleet(each={"gpus": gpus}, **same("gpu.model", dict(enumerate(models))))
    assert told(seen, "gpu.model_mix") == {"n1": expected}


def test_models_are_compared_between_nodes_for_which_the_same_is_declared() -> None:
    facts = same("gpu.model", *({0: model} for model in (H100, H100, L20, L40S)))
    assert told(fleet(**facts), "gpu.model_mix") == dict.fromkeys(
        ("n1", "n2", "n3", "n4"), "fail warning"
    )
    kinds = {"n3": {"gpus": Gpus(1, "NVIDIA L20")}, "n4": {"gpus": Gpus(1, "NVIDIA L40S")}}
    assert set(told(fleet(some=kinds, **facts), "gpu.model_mix").values()) == {"pass"}
    seen = fleet(**same("gpu.model", {0: H100}, {0: H100}, {0: L20}))
    assert told(seen, "gpu.model_mix") == {"n1": "pass", "n2": "pass", "n3": "fail warning"}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        pytest.param(
            absent("hung"),
            {
                "n1": "unknown warning fewer than two nodes have a value to compare",
                "n2": "unknown warning hung",
            },
            id="not-known",
        ),
        pytest.param(
            absent("not_applicable"),
            {"n1": "pass", "n2": "skip not_applicable"},
            id="no-gpus-there",
        ),
        pytest.param({0: H100, 1: L20}, {"n1": "pass", "n2": "fail warning"}, id="mixed"),
    ],
)
def test_one_node_alone_is_not_equal_on_all(other: Any, expected: dict[str, str]) -> None:
    assert told(fleet(**same("gpu.model", {0: H100}, other)), "gpu.model_mix") == expected


def test_the_remedy_names_devices_that_go_together() -> None:
    models = dict(enumerate([L40S, L40S, L20, L20, L20]))
    (found,) = findings(fleet(**same("gpu.model", models)), "gpu.model_mix")
    assert found.remedy == 'set `gpus: {count: 5, use: "2,3,4"}` for n1'
    assert (
        found.seen == "GPU 0, 1: NVIDIA L40S (45 GiB, 8.9); GPU 2, 3, 4: NVIDIA L20 (45 GiB, 8.9)"
    )


def test_the_remedy_keeps_to_devices_that_the_session_shows() -> None:
    """Incident 1: six L40S and four L20 in a box, and the job is shown the last four."""
    gpus = tuple(
        Gpu(i, "NVIDIA L20" if i > 5 else "NVIDIA L40S", f"GPU-{i}", f"0000:{i + 16:02x}:00.0")
        for i in range(10)
    )
    shown = Setting("CUDA_VISIBLE_DEVICES", "6,7,8,9", "/root/.bashrc", 9)
    facts = {
        "gpu.model": dict(enumerate([L40S] * 6 + [L20] * 4)),
        "gpu.nvml": Nvml("550.54.15", "12.4", gpus),
        "env.paths": {"login shell": (shown,), "ssh command": (shown,)},
    }
    (found,) = findings(fleet(n1=facts), "gpu.model_mix")
    assert found.remedy == 'set `gpus: {count: 10, use: "6,7,8,9"}` for n1'


@pytest.mark.parametrize(
    ("declared", "name", "expected"),
    [
        ("H100", "NVIDIA H100 80GB HBM3", True),
        ("nvidia a100", "NVIDIA A100-SXM4-80GB", True),
        ("A100 40GB", "NVIDIA A100-SXM4-80GB", False),
        ("L40", "NVIDIA L40S", False),
        ("NVIDIA L20", "NVIDIA L20", True),
    ],
)
def test_a_declared_model_is_all_its_words(declared: str, name: str, expected: bool) -> None:
    assert fits(declared, name) is expected


@pytest.mark.parametrize("reason", ["denied", "missing_tool", "hung", "timed_out", "garbled"])
def test_models_that_are_not_known(reason: str) -> None:
    assert told(fleet(**same("gpu.model", absent(reason))), "gpu.model_mix") == {
        "n1": f"unknown warning {reason}"
    }
