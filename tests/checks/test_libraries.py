"""The system's NCCL, its plug-ins and the job's Python: equal, odd, missing and required."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.checks.libraries import parse_names, parse_python_wanted
from clusterprep.facts.torch import NotStarting, Plugin, Plugins
from clusterprep.model import Gpus
from tests.support.fleet import (
    SYSTEM_NCCL,
    absent,
    findings,
    fleet,
    libraries,
    plugin,
    python,
    same,
    told,
)

TOO_FEW = "unknown warning fewer than two nodes have a value to compare"


# ---------------------------------------------------------------- the system's NCCL


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        pytest.param(["2.21.5"] * 3, ["pass"] * 3, id="equal"),
        pytest.param(
            ["2.21.5", "2.18.3", "2.21.5"], ["pass", "fail warning", "pass"], id="one-odd"
        ),
        pytest.param(["2.21.5", "2.18.3"], ["fail warning"] * 2, id="two-nodes"),
        pytest.param([None, None], ["skip not_applicable"] * 2, id="none-anywhere"),
        pytest.param(
            ["2.21.5", None, "2.21.5"], ["pass", "fail warning", "pass"], id="missing-on-one"
        ),
        pytest.param(["2.21.5"], ["skip not_applicable"], id="one-node"),
    ],
)
def test_one_nccl_in_the_system_of_all_nodes(versions: list[Any], expected: list[str]) -> None:
    seen = fleet(**same("nccl.libraries", *map(libraries, versions)))
    assert list(told(seen, "nccl.system").values()) == expected


def test_a_difference_is_an_error_where_torch_would_load_it() -> None:
    found = [libraries(version, loaded=SYSTEM_NCCL) for version in ("2.21.5", "2.21.5", "2.18.3")]
    assert told(fleet(**same("nccl.libraries", *found)), "nccl.system")["n3"] == "fail error"


def test_a_library_that_does_not_load_is_not_known() -> None:
    broken = replace(libraries(), system_version=None)
    seen = fleet(**same("nccl.libraries", libraries(), libraries(), broken))
    assert told(seen, "nccl.system") == {
        "n1": "pass",
        "n2": "pass",
        "n3": "unknown warning garbled",
    }


def test_a_node_without_gpus_needs_no_nccl_and_kinds_may_differ() -> None:
    kinds = {
        "n1": Gpus(0),
        "n2": Gpus(8, "H100"),
        "n3": Gpus(8, "H100"),
        "n4": Gpus(4, "A100"),
        "n5": Gpus(4, "A100"),
    }
    versions = (None, "2.21.5", "2.21.5", "2.18.3", "2.18.3")
    settings = {name: {"gpus": gpus} for name, gpus in kinds.items()}
    seen = fleet(some=settings, **same("nccl.libraries", *map(libraries, versions)))
    assert told(seen, "nccl.system") == {
        "n1": "skip not_applicable",
        **dict.fromkeys(("n2", "n3", "n4", "n5"), "pass"),
    }


def test_a_required_nccl_of_the_system_is_an_error_where_it_differs_or_is_missing() -> None:
    settings = {"require": {"nccl.system": "2.21.5"}}
    seen = fleet(
        each=settings, **same("nccl.libraries", *map(libraries, ("2.21.5", "2.18.3", None)))
    )
    assert told(seen, "nccl.system") == {"n1": "pass", "n2": "fail error", "n3": "fail error"}


@pytest.mark.parametrize("fact", ["nccl.libraries", "nccl.plugins", "python.env"])
@pytest.mark.parametrize("reason", ["denied", "missing_tool", "hung", "timed_out", "garbled"])
def test_an_interpreter_that_does_not_answer_is_unknown(fact: str, reason: str) -> None:
    check = {"nccl.libraries": "nccl.system", "nccl.plugins": "nccl.plugin"}.get(fact, fact)
    assert told(fleet(n1={fact: absent(reason)}), check) == {"n1": f"unknown warning {reason}"}


# ---------------------------------------------------------------- plug-ins

SHARP = Plugins((plugin(), plugin("libnccl-tuner.so", "11" * 32)))
NEWER = Plugins((plugin(sha256="77" * 32), plugin("libnccl-tuner.so", "11" * 32)))
ELSEWHERE = Plugins(tuple(replace(p, path=f"/usr/lib/{p.name}") for p in SHARP.files))
LARGE = Plugins((plugin(sha256=None, size=90_000_000),))
NO_PLUGIN = Plugins(())


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param([SHARP] * 3, ["pass"] * 3, id="equal"),
        pytest.param([SHARP, ELSEWHERE, SHARP], ["pass"] * 3, id="the-same-file-in-another-folder"),
        pytest.param([SHARP, NEWER, SHARP], ["pass", "fail warning", "pass"], id="another-build"),
        pytest.param(
            [SHARP, NO_PLUGIN, SHARP], ["pass", "fail warning", "pass"], id="missing-on-one"
        ),
        pytest.param(
            [NO_PLUGIN, NO_PLUGIN, SHARP], ["pass", "pass", "fail warning"], id="on-one-only"
        ),
        pytest.param([SHARP, NO_PLUGIN], ["fail warning"] * 2, id="two-nodes"),
        pytest.param([NO_PLUGIN] * 2, ["skip not_applicable"] * 2, id="none-anywhere"),
        pytest.param([LARGE] * 2, ["pass"] * 2, id="too-large-to-read-and-of-one-size"),
        pytest.param(
            [LARGE, Plugins((plugin(sha256=None, size=90_000_001),))],
            ["fail warning"] * 2,
            id="size",
        ),
        pytest.param(
            [SHARP, SHARP, Plugins((plugin(sha256=None, size=None),))],
            ["pass", "pass", "unknown warning denied"],
            id="one-that-cannot-be-read",
        ),
        pytest.param([SHARP], ["skip not_applicable"], id="one-node"),
    ],
)  # fmt: skip
def test_the_same_plugins_on_all_nodes(found: list[Any], expected: list[str]) -> None:
    assert list(told(fleet(**same("nccl.plugins", *found)), "nccl.plugin").values()) == expected


@pytest.mark.parametrize(
    ("wanted", "files", "expected"),
    [
        pytest.param("aws-ofi", (plugin("libnccl-net-aws-ofi.so"),), "pass", id="a-short-name"),
        pytest.param("libnccl-net.so", (plugin(),), "pass", id="a-file"),
        pytest.param(
            "/opt/a/libfast.so", (Plugin("/opt/a/libfast.so", 1, "00"),), "pass", id="a-path"
        ),
        pytest.param("none", (plugin(),), "pass", id="none"),
        pytest.param(
            "gone,aws-ofi", (plugin("libnccl-net-aws-ofi.so"),), "pass", id="the-second-of-a-list"
        ),
        pytest.param("aws-ofi", (plugin(),), "fail warning", id="another-one-is-there"),
        pytest.param("/opt/a/libfast.so", (), "fail warning", id="a-path-that-does-not-exist"),
        pytest.param("aws-ofi", (), "fail warning", id="nothing-there"),
    ],
)
def test_the_plugin_that_is_asked_for_must_be_there(wanted: str, files: Any, expected: str) -> None:
    seen = fleet(**same("nccl.plugins", *[Plugins(files, wanted)] * 2))
    assert set(told(seen, "nccl.plugin").values()) == {expected}


def test_a_plugin_that_is_not_found_is_named_in_the_remedy() -> None:
    (bad,) = findings(fleet(n1={"nccl.plugins": Plugins((), "aws-ofi")}), "nccl.plugin")
    assert "aws-ofi" in bad.remedy
    assert bad.wanted == "aws-ofi"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("libnccl-net.so", ["pass", "fail error"]),
        ("none", ["fail error", "pass"]),
        ("libnccl-net.so, libnccl-tuner.so", ["fail error", "fail error"]),
    ],
)
def test_required_plugins_are_compared_node_by_node(wanted: str, expected: list[str]) -> None:
    settings = {"require": {"nccl.plugin": wanted}}
    seen = fleet(each=settings, **same("nccl.plugins", Plugins((plugin(),)), NO_PLUGIN))
    assert list(told(seen, "nccl.plugin").values()) == expected


@pytest.mark.parametrize("text", ["", "aws-ofi", "libnccl-net", "none, libnccl-net.so"])
def test_a_required_plugin_is_a_file_name(text: str) -> None:
    with pytest.raises(ValueError, match="expected file names"):
        parse_names(text)


def test_a_head_node_needs_no_plugin() -> None:
    seen = fleet(some={"n1": {"gpus": Gpus(0)}}, **same("nccl.plugins", NO_PLUGIN, SHARP, SHARP))
    assert told(seen, "nccl.plugin") == {"n1": "skip not_applicable", "n2": "pass", "n3": "pass"}


# ---------------------------------------------------------------- Python

VENV = python("3.11.7", "/opt/venv", "/usr")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param([VENV] * 3, ["pass"] * 3, id="equal"),
        pytest.param(
            [VENV, python("3.10.12", "/opt/venv"), VENV],
            ["pass", "fail warning", "pass"],
            id="version",
        ),
        pytest.param(
            [VENV, python("3.11.7", "/usr"), VENV],
            ["pass", "fail warning", "pass"],
            id="no-environment",
        ),
        pytest.param(
            [VENV, replace(VENV, base="/opt/py"), VENV],
            ["pass", "fail warning", "pass"],
            id="another-base",
        ),
        pytest.param([VENV, python()], ["fail warning"] * 2, id="two-nodes"),
        pytest.param([VENV], ["skip not_applicable"], id="one-node"),
    ],
)
def test_one_interpreter_in_one_place(found: list[Any], expected: list[str]) -> None:
    assert list(told(fleet(**same("python.env", *found)), "python.env").values()) == expected


@pytest.mark.parametrize(
    ("other", "expected"),
    [(python("3.11.7", "/sw/env"), "pass"), (python("3.11.4", "/sw/env"), "fail warning")],
)
def test_places_that_the_inventory_tells_apart_may_differ(other: Any, expected: str) -> None:
    seen = fleet(some={"n2": {"python": "/sw/env/bin/python"}}, **same("python.env", VENV, other))
    assert set(told(seen, "python.env").values()) == {expected}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("3.11.7", ["pass", "fail error"]),
        (">=3.10", ["pass", "pass"]),
        ("/opt/venv", ["pass", "fail error"]),
        ("/opt/venv/", ["pass", "fail error"]),
        ("/usr/bin/python3", ["fail error", "pass"]),
    ],
)
def test_a_required_python_is_a_version_or_a_place(wanted: str, expected: list[str]) -> None:
    seen = fleet(each={"require": {"python.env": wanted}}, **same("python.env", VENV, python()))
    assert list(told(seen, "python.env").values()) == expected


GLIBC = "python: /lib/libc.so.6: version `GLIBC_2.34' not found (required by python)"
LIBRARY = "python: error while loading shared libraries: libpython3.11.so.1.0: cannot open"
ENCODINGS = "Fatal Python error: init_fs_encoding: failed to get the Python codec"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (GLIBC, "an environment that was made on their distribution"),
        (LIBRARY, "ldd /opt/py/bin/python | grep 'not found'"),
        (ENCODINGS, "/opt/py/bin/python -c pass"),
    ],
)
def test_an_interpreter_that_does_not_start_fails_alone(words: str, remedy: str) -> None:
    seen = fleet(
        each={"python": "/opt/py/bin/python"},
        **same("python.env", VENV, NotStarting(words), VENV),
    )
    assert told(seen, "python.env") == {"n1": "pass", "n2": "fail error", "n3": "pass"}
    (bad,) = [finding for finding in findings(seen, "python.env") if finding.verdict == "fail"]
    assert bad.seen == words
    assert remedy in bad.remedy


def test_where_nothing_starts_there_is_nothing_to_compare() -> None:
    seen = fleet(**same("python.env", NotStarting(GLIBC), NotStarting(GLIBC)))
    assert told(seen, "python.env") == {"n1": "fail error", "n2": "fail error"}


def test_nonsense_is_not_required() -> None:
    with pytest.raises(ValueError, match="expected a version"):
        parse_python_wanted("venv!")
