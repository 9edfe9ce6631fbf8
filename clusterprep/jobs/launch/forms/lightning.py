"""Lightning without torchrun: one process on each node, which starts the others by itself."""

from __future__ import annotations

import shlex

from clusterprep.jobs.launch.plan import LaunchPlan
from clusterprep.jobs.launch.shell_text import (
    assignments,
    command_without_rank,
    refuse_torchrun_options,
    refuse_uneven,
)


def render(plan: LaunchPlan, cluster: str) -> str:
    """Return one line per node. Raises InputError for uneven nodes."""
    refuse_uneven(plan, "Lightning")
    refuse_torchrun_options(plan, "Lightning")
    trainer = f"Trainer(num_nodes={len(plan.shares)}, devices={plan.nproc_per_node})"
    parts = [f"# The script needs {trainer}. All lines are to be started within ten minutes.\n"]
    for share in plan.shares:
        env = {
            **dict(sorted(share.env.items())),
            "MASTER_ADDR": plan.address,
            "MASTER_PORT": str(plan.port),
            "NODE_RANK": str(share.position),
        }
        words = [*plan.wanted.program.interpreter(share.node.python), *command_without_rank(plan)]
        command = f"env {assignments(env)} {shlex.join(words)}"
        if plan.wanted.folder:
            command = f"cd {shlex.quote(plan.wanted.folder)} && {command}"
        parts.append(f"# {share.node.name}\n{command}\n")
    return "\n".join(parts)
