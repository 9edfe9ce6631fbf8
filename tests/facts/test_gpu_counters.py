"""The counters that one run leaves for the next: by UUID and name, what is refused left out."""

from __future__ import annotations

from typing import Any

from tests.support.fleet import learned

ROW: dict[str, Any] = {
    "index": 0,
    "uuid": "GPU-1",
    "ecc_corrected": 7,
    "violations": {"power": 5_000_000_000, "thermal": ["no", "not_applicable"]},
    "links": [[0, 1, None], [1, 0, None], [2, 1, None]],
    "link_errors": {"replay": [0, 4], "recovery": 0},
}


def of(*rows: dict[str, Any]) -> Any:
    return learned("gpu.counters", ["ok", {"gpus": list(rows)}])


def test_counters_of_one_gpu() -> None:
    assert of(ROW) == {
        "GPU-1": {
            "ecc corrected": 7,
            "held down by power": 5_000_000_000,
            "link 0 replay": 0,
            "link 2 replay": 4,
            "link 0 recovery": 0,
            "link 2 recovery": 0,
        }
    }


def test_what_is_refused_is_left_out() -> None:
    bare = {
        **ROW,
        "ecc_corrected": ["no", "not_applicable"],
        "violations": {"power": ["no", "not_applicable"]},
        "links": ["no", "not_applicable"],
        "link_errors": {},
    }
    assert of(bare) == {"GPU-1": {}}
    assert of({**ROW, "uuid": ["no", "denied"]}) == {}
    assert of({"index": 0, "no": "gpu_lost", "why": ""}) == {}


def test_without_gpus_or_an_answer() -> None:
    assert learned("gpu.counters", ["ok", None]).reason == "not_applicable"
    assert learned("gpu.counters", ["no", "hung", ""]).reason == "hung"
