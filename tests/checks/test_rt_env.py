"""Variables that apply writes, or the inventory declares, and that a runtime takes or changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.environment import Setting
from clusterprep.facts.runtime import Setup
from clusterprep.model import Fleet, Runtime
from tests.support.fleet import absent, findings, healthy, told
from tests.support.fleet import env as declare

RUNTIME = Runtime(activate="/sw/env.sh")


def one(setup: Any, env: Mapping[str, str] | None = None, **facts: Any) -> Fleet:
    seen = healthy(2)
    nodes = [
        replace(node, env=declare(**(env or {})), runtime=RUNTIME) for node in seen.inventory.nodes
    ]
    seen = replace(seen, inventory=replace(seen.inventory, nodes=tuple(nodes[:1])))
    return seen.with_facts({"n1": {"rt.setup": setup, **facts}})


@pytest.mark.parametrize(
    ("setup", "env", "expected"),
    [
        pytest.param(Setup(), {}, "pass", id="keeps-all"),
        pytest.param(Setup(env={"NCCL_IB_TIMEOUT": "22"}), {}, "pass", id="sets-another"),
        pytest.param(Setup(unset=("NCCL_NET",)), {}, "pass", id="unsets-what-is-not-written"),
        pytest.param(
            Setup(unset=("NCCL_DEBUG",)), {"NCCL_DEBUG": "INFO"}, "fail error", id="declared"
        ),
        pytest.param(
            Setup(env={"NCCL_DEBUG": "WARN"}), {"NCCL_DEBUG": "INFO"}, "fail error", id="changed"
        ),
        pytest.param(
            Setup(env={"NCCL_DEBUG": "INFO"}), {"NCCL_DEBUG": "INFO"}, "pass", id="set-again"
        ),
        pytest.param(
            Setup(unset=("GLOO_SOCKET_IFNAME",)), {}, "fail warning", id="derived-and-taken"
        ),
        pytest.param(None, {}, "skip not_applicable", id="on-the-node"),
        pytest.param(
            Setup("no_file", "there is no file /sw/env.sh"),
            {},
            "unknown warning no_file",
            id="not-entered",
        ),
        pytest.param(absent("denied"), {}, "unknown warning denied", id="not-known"),
    ],
)
def test_what_apply_writes_is_kept(setup: Any, env: Mapping[str, str], expected: str) -> None:
    assert told(one(setup, env), "rt.env") == {"n1": expected}


def test_the_file_that_sets_another_value_is_told() -> None:
    paths = {"runtime": (Setting("NCCL_DEBUG", "WARN", "/sw/env.sh", 3),), "nccl": ()}
    seen = one(Setup(env={"NCCL_DEBUG": "WARN"}), {"NCCL_DEBUG": "INFO"}, **{"env.paths": paths})
    (finding,) = findings(seen, "rt.env")
    assert finding.seen == "NCCL_DEBUG=WARN from /sw/env.sh line 3"
    assert str(finding.remedy) == "grep -n NCCL_DEBUG /sw/env.sh"
