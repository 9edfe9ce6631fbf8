"""Open MPI: one command that starts every rank, each with the variables that torch reads."""

from __future__ import annotations

import shlex

from clusterprep.jobs.launch.command import LOCAL_RANK
from clusterprep.jobs.launch.plan import LaunchPlan
from clusterprep.jobs.launch.shell_text import (
    assignments,
    common_env,
    exports,
    here_document,
    names_of,
    own_env,
    refuse_torchrun_options,
    script_head,
)

# Open MPI's names for what torch reads; NODE_RANK is set by rank, as its own counts otherwise.
_RANK_VARIABLES = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
    "GROUP_RANK": "NODE_RANK",
}


def render(plan: LaunchPlan, cluster: str) -> str:
    """Return a script for any machine that reaches all nodes. Raises InputError."""
    refuse_torchrun_options(plan, "mpirun")
    lines = script_head(
        plan,
        f"Open MPI on {names_of(plan)}, {plan.world_size} processes: run it on one machine "
        "with ssh to all of them",
    )
    env = {
        **common_env(plan.shares),
        "MASTER_ADDR": plan.address,
        "MASTER_PORT": str(plan.port),
    }
    lines.extend(exports(env))
    lines.append("# Without this mpirun refuses root.")
    allow = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    lines.append(f'if [ "$(id -u)" -eq 0 ]; then {allow}; fi')
    lines.append("hostfile=$(mktemp)")
    lines.append("""trap 'rm -f "$hostfile"' EXIT""")
    rows = [f"{share.node.address} slots={share.count}" for share in plan.shares]
    lines.extend(here_document('"$hostfile"', rows))
    # Ranks fill one node after the other, and each may use all processors: data loaders need them.
    options = f'-np {plan.world_size} --hostfile "$hostfile" --map-by slot --bind-to none'
    forwarded = " ".join(f"-x {name}" for name in env)
    task = shlex.quote(_task(plan))
    words = shlex.join(plan.wanted.program.command)
    lines.append(f"mpirun {options} \\\n    {forwarded} \\\n    bash -c {task} rank {words}")
    return "\n".join([*lines, ""])


def _task(plan: LaunchPlan) -> str:
    """Return the shell script of each rank: what depends on its node, its rank, its program."""
    common = common_env(plan.shares)
    lines = ['case "$OMPI_COMM_WORLD_RANK" in']
    for share in plan.shares:
        ranks = "|".join(map(str, share.ranks))
        env = {"NODE_RANK": str(share.position), **own_env(share, common)}
        python = shlex.quote(share.node.python)
        lines.append(f"  {ranks}) python={python}; export {assignments(env)} ;;")
    lines.append("esac")
    for name, source in _RANK_VARIABLES.items():
        lines.append(f'export {name}="${source}"')
    if LOCAL_RANK in plan.wanted.program.command:
        lines.append(f'set -- "${{@/#{shlex.quote(LOCAL_RANK)}/--local-rank=$LOCAL_RANK}}"')
    interpreter = plan.wanted.program.interpreter("$python")
    quoted = ['"$python"', *interpreter[1:]] if interpreter else []
    lines.append(" ".join(["exec", *quoted, '"$@"']))
    return "\n".join(lines)
