"""Hugging Face Accelerate: a script that writes its configuration and starts one node's part."""

from __future__ import annotations

import json
import shlex

from clusterprep.jobs.launch.plan import LaunchPlan
from clusterprep.jobs.launch.shell_text import (
    here_document,
    names_of,
    node_script,
    program_words,
    refuse_uneven,
)


def render(plan: LaunchPlan, cluster: str) -> str:
    """Return a script that is run on every node. Raises InputError for uneven nodes."""
    refuse_uneven(plan, "accelerate")
    lines = node_script(
        plan,
        f"accelerate on {names_of(plan)}, {plan.world_size} processes: "
        "run it on every node within ten minutes, bash FILE NODE",
    )
    if not any(share.gpus for share in plan.shares):
        # Its launcher for processors alone starts one process and leaves the others to MPI.
        lines.append("export ACCELERATE_USE_CPU=true")
    words = ["--config_file", '"$config"', "--machine_rank", '"$NODE_RANK"']
    words.append(shlex.join(program_words(plan)))
    lines.append("config=$(mktemp --suffix=.yaml)")
    lines.append("""trap 'rm -f "$config"' EXIT""")
    lines.extend(here_document('"$config"', _config(plan)))
    lines.append(f'"$python" -m accelerate.commands.launch {" ".join(words)}')
    return "\n".join([*lines, ""])


def _config(plan: LaunchPlan) -> list[str]:
    """Return the configuration, as `accelerate config` writes it."""
    kind = "MULTI_GPU" if plan.world_size > 1 else "'NO'"
    return [
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {kind}",
        f"num_machines: {len(plan.shares)}",
        f"num_processes: {plan.world_size}",
        f"main_process_ip: {json.dumps(plan.address)}",
        f"main_process_port: {plan.port}",
        # Both together make its torchrun take the rendezvous as it is given.
        "rdzv_backend: static",
        "same_network: true",
        "machine_rank: 0",
        "mixed_precision: 'no'",
        "use_cpu: false",
        "debug: false",
    ]
