"""Settings of the kernel.

The file keeps what others set in it, and a running value is compared by its columns.
"""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.changes.resources import NoPlan, PlanContext
from clusterprep.changes.resources.sysctl import HEAD, PATH, RESOURCE, proc_path, with_values
from clusterprep.model import Fleet, Inventory, Node
from clusterprep.model.files import FileState
from clusterprep.nccl.environment import Environment

RANGE = "net.ipv4.ip_local_port_range"


def planned(
    params: dict[str, str], *values: bytes | None, content: bytes | None = None
) -> list[Any]:
    assert not list(RESOURCE.wrong(params))
    node = Node("n1", "n1", 0)
    paths = RESOURCE.paths(params, Inventory("test", ()))
    files = {
        path: FileState(path, seen) for path, seen in zip(paths, (content, *values), strict=True)
    }
    return list(
        RESOURCE.plan(
            params,
            PlanContext(
                Fleet(Inventory("test", (node,)), {}), node, files, {}, Environment((), {})
            ),
        )
    )


def test_the_file_first_and_then_the_running_value() -> None:
    file, value = planned({"net.core.somaxconn": "5000"}, b"4096\n")
    assert (file.path, file.after, file.running) == (
        PATH,
        HEAD + b"net.core.somaxconn = 5000\n",
        False,
    )
    assert (value.path, value.before, value.after) == (
        "/proc/sys/net/core/somaxconn",
        b"4096\n",
        b"5000\n",
    )
    assert (value.running, value.action) == (True, "update")


@pytest.mark.parametrize(
    "written", ["32768 60999", "32768   60999", "32768\t60999", " 32768 60999 "]
)
def test_columns_are_compared_however_they_are_written(written: str) -> None:
    file, value = planned({RANGE: written}, b"32768\t60999\n")
    assert value.action == "none"
    assert file.after.endswith(f"{RANGE} = 32768 60999\n".encode())


def test_a_value_is_right_and_the_file_is_not() -> None:
    file, value = planned({"net.core.somaxconn": "4096"}, b"4096\n")
    assert (file.action, value.action) == ("create", "none")
    again = planned({"net.core.somaxconn": "4096"}, b"4096\n", content=file.after)
    assert [change.action for change in again] == ["none", "none"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b"a.b = 1\nc.d = 2\n"),
        (b"# ours\nx.y = 3\n", b"# ours\nx.y = 3\na.b = 1\nc.d = 2\n"),
        (b"c.d=9\nx.y = 3", b"c.d = 2\nx.y = 3\na.b = 1\n"),
        (b" - a.b =5\na.b = 6\n", b"a.b = 1\nc.d = 2\n"),
        (b"#a.b = 5\n", b"#a.b = 5\na.b = 1\nc.d = 2\n"),
    ],
)
def test_settings_of_others_stay_in_the_file(before: bytes, after: bytes) -> None:
    params = {"a.b": "1", "c.d": "2"}
    assert with_values(before, params) == after
    assert with_values(after, params) == after


def test_a_setting_that_this_kernel_lacks_is_known_to_be_missing() -> None:
    with pytest.raises(NoPlan, match="no setting net") as raised:
        planned({"net.core.nothing": "1"}, None)
    assert raised.value.absent.reason == "no_such_key"


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("net.core.somaxconn", "/proc/sys/net/core/somaxconn"),
        ("net.ipv4.conf.eth0/1.rp_filter", "/proc/sys/net/ipv4/conf/eth0.1/rp_filter"),
    ],
)
def test_a_key_is_a_path_below_proc_sys(key: str, path: str) -> None:
    assert proc_path(key) == path


@pytest.mark.parametrize(
    "key",
    [
        "net",
        "net/core",
        "net..core",
        ".net.core",
        "net.//.//etc",
        "net./.x",
        "net.a b",
        "net.core.",
        "net.\u0663",
    ],
)
def test_nothing_else_is_a_key(key: str) -> None:
    assert [name for name, _ in RESOURCE.wrong({key: "1"})] == [key]


def test_a_step_owns_its_keys_and_no_other() -> None:
    assert RESOURCE.owned({"a.b": "1"}, Inventory("test", ())) == ((PATH, "a.b"),)
    assert RESOURCE.live({}) != ""


def test_a_setting_that_nobody_may_set_is_told_by_the_plan() -> None:
    node, path = Node("n1", "n1", 0), proc_path("net.core.fixed")
    files = {PATH: FileState(PATH, None), path: FileState(path, b"1\n", 0o444)}
    context = PlanContext(
        Fleet(Inventory("test", (node,)), {}), node, files, {}, Environment((), {})
    )
    with pytest.raises(NoPlan, match="is 1, and is read-only"):
        list(RESOURCE.plan({"net.core.fixed": "2"}, context))
