"""The modules that are mutated, each with the tests that have to find its faults.

In these modules a fault is a wrong verdict, a wrong value, a wrong blame or a lost file, and not
merely an error message: what they decide is believed without being looked at again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Module:
    """A module by its path, and the files of tests that are asked about it, the quickest first."""

    path: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Modules that decide the same kind of thing."""

    name: str
    wrong: str
    modules: tuple[Module, ...]


def _module(name: str, *tests: str) -> Module:
    return Module(f"clusterprep/{name}.py", tuple(f"tests/{test}.py" for test in tests))


_STORIES = ("verify/test_findings", "verify/test_blame")
_GROUPS = ("verify/test_screening", "verify/test_groups")

CORE = (
    Part(
        "judge",
        "a wrong verdict",
        (
            _module("judge", "test_judge"),
            _module("gates", "test_gates"),
            _module("stored", "test_stored"),
            _module("compared", "test_compared"),
        ),
    ),
    Part(
        "plan",
        "a question not asked, an answer taken for another, a change not foreseen",
        (
            _module("plan", "test_plan", "test_judge"),
            _module("foresight", "test_foresight"),
            _module("diff", "test_diff"),
            _module("rollback", "test_rollback"),
        ),
    ),
    Part(
        "environment",
        "a wrong value of a variable on every node",
        (
            _module("render", "test_render", "env/test_dialects", "test_diff"),
            _module("reach", "test_reach"),
            _module("network", "test_network", "env/test_sockets"),
            _module("rails", "test_rails", "env/test_rdma"),
            _module("gids", "env/test_roce", "checks/test_roce"),
            _module("env/dialects", "env/test_dialects"),
            _module("env/fabric", "env/test_fabric"),
            _module("env/job", "env/test_job"),
            _module("env/peers", "env/test_peers"),
            _module("env/rdma", "env/test_rdma"),
            _module("env/roce", "env/test_roce"),
            _module("env/sockets", "env/test_sockets"),
            _module("env/threads", "env/test_threads"),
        ),
    ),
    Part(
        "journal",
        "a file that is not put back, or written where it must not be",
        (
            _module("remote/journal", "remote/test_journal", "remote/test_act"),
            _module("remote/act", "remote/test_act"),
            _module("remote/steps", "remote/test_steps"),
            _module("remote/disk", "remote/test_disk", "remote/test_act", "remote/test_steps"),
        ),
    ),
    Part(
        "blame",
        "a healthy node blamed, or a sick one passed",
        (
            _module("verify/tally", "verify/test_tally", *_STORIES, "verify/test_stages"),
            _module(
                "verify/timeline",
                "verify/test_timeline",
                "verify/test_pace",
                "verify/test_tally",
                *_STORIES,
            ),
            _module("verify/pace", "verify/test_pace"),
            _module("verify/stages", "verify/test_stages"),
            _module("verify/evidence", "verify/test_tally", *_STORIES, "verify/test_wiring"),
            _module("verify/culprits", *_STORIES, "verify/test_many"),
            _module("verify/blame", *_STORIES),
            _module("verify/consistency", *_STORIES),
            _module("verify/exact", *_STORIES),
            _module("verify/expected", "verify/test_expected", "verify/test_speed"),
            _module("verify/speed", "verify/test_speed"),
            _module("verify/straggler", *_STORIES),
            _module("verify/wiring", "verify/test_wiring"),
            _module("verify/sockets", "verify/test_sockets"),
            _module("verify/peers", "verify/test_peers", "verify/test_links"),
            _module("verify/links", "verify/test_links"),
            _module("verify/meaning", *_GROUPS, "verify/test_links"),
            _module("verify/probes", *_GROUPS),
            _module("verify/screening", *_GROUPS),
            _module("verify/groups", "verify/test_groups"),
        ),
    ),
)
