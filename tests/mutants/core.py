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


_STORIES = ("jobs/verify/test_findings", "jobs/verify/test_blame")
_GROUPS = ("jobs/verify/test_screening", "jobs/verify/test_group_verdicts")

CORE = (
    Part(
        "judge",
        "a wrong verdict",
        (
            _module("survey/judge", "survey/test_judge"),
            _module("survey/gates", "survey/test_gates"),
            _module("survey/cached", "survey/test_cached"),
            _module("history/compare", "history/test_compare"),
        ),
    ),
    Part(
        "plan",
        "a query not sent, an answer taken for another, a change not planned",
        (
            _module("survey/queries", "survey/test_queries", "survey/test_judge"),
            _module("survey/answers", "survey/test_answers", "survey/test_judge"),
            _module("survey/selection", "survey/test_selection"),
            _module("changes/planner", "changes/test_planner"),
            _module("changes/file_plan", "changes/test_file_plan"),
            _module("changes/file_rollback", "changes/test_file_rollback"),
        ),
    ),
    Part(
        "environment",
        "a wrong value of a variable on every node",
        (
            _module(
                "nccl/environment",
                "nccl/test_environment",
                "nccl/variables/test_dialects",
                "changes/test_file_plan",
            ),
            _module("nccl/launch_paths", "nccl/test_launch_paths"),
            _module("nccl/interfaces", "nccl/test_interfaces", "nccl/variables/test_sockets"),
            _module("nccl/rails", "nccl/test_rails", "nccl/variables/test_rdma"),
            _module("nccl/gids", "nccl/variables/test_roce", "checks/test_roce"),
            _module("nccl/variables/dialects", "nccl/variables/test_dialects"),
            _module("nccl/variables/fabric", "nccl/variables/test_fabric"),
            _module("nccl/variables/job", "nccl/variables/test_job"),
            _module("nccl/variables/peers", "nccl/variables/test_peers"),
            _module("nccl/variables/rdma", "nccl/variables/test_rdma"),
            _module("nccl/variables/roce", "nccl/variables/test_roce"),
            _module("nccl/variables/sockets", "nccl/variables/test_sockets"),
            _module("nccl/variables/threads", "nccl/variables/test_threads"),
        ),
    ),
    Part(
        "journal",
        "a file that is not rolled back, or written to a place where it must not be",
        (
            _module("remote/agent/journal", "remote/agent/test_journal", "remote/agent/test_act"),
            _module("remote/agent/act", "remote/agent/test_act"),
            _module("remote/agent/steps", "remote/agent/test_steps"),
            _module(
                "remote/agent/disk",
                "remote/agent/test_disk",
                "remote/agent/test_act",
                "remote/agent/test_steps",
            ),
        ),
    ),
    Part(
        "blame",
        "a healthy node blamed, or a sick one passed",
        (
            _module(
                "jobs/verify/tally",
                "jobs/verify/test_tally",
                "jobs/verify/test_stage_verdicts",
                *_STORIES,
            ),
            _module(
                "jobs/verify/timeline",
                "jobs/verify/test_timeline",
                "jobs/verify/test_pace",
                "jobs/verify/test_tally",
                *_STORIES,
            ),
            _module("jobs/verify/turns", "jobs/verify/test_turns"),
            _module("jobs/verify/pace", "jobs/verify/test_pace"),
            _module("jobs/verify/stage_verdicts", "jobs/verify/test_stage_verdicts"),
            _module(
                "jobs/verify/evidence",
                "jobs/verify/test_tally",
                "jobs/verify/test_transport_check",
                *_STORIES,
            ),
            _module("jobs/verify/culprits", "jobs/verify/test_many", *_STORIES),
            _module("jobs/verify/blame", *_STORIES),
            _module("jobs/verify/consistency", *_STORIES),
            _module("jobs/verify/correctness", *_STORIES),
            _module(
                "jobs/verify/hardware_model",
                "jobs/verify/test_hardware_model",
                "jobs/verify/test_speed",
            ),
            _module("jobs/verify/speed", "jobs/verify/test_speed"),
            _module("jobs/verify/straggler", *_STORIES),
            _module("jobs/verify/transport_check", "jobs/verify/test_transport_check"),
            _module("jobs/verify/sockets", "jobs/verify/test_sockets"),
            _module(
                "jobs/verify/peers", "jobs/verify/test_peers", "jobs/verify/test_link_verdicts"
            ),
            _module("jobs/verify/link_verdicts", "jobs/verify/test_link_verdicts"),
            _module("jobs/verify/fault_location", "jobs/verify/test_link_verdicts", *_GROUPS),
            _module("jobs/verify/probes", *_GROUPS),
            _module("jobs/verify/screening", *_GROUPS),
            _module("jobs/verify/group_verdicts", "jobs/verify/test_group_verdicts"),
        ),
    ),
)
