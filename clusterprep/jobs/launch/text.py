"""Render a launch as text: a command line per node, a script for Slurm, a hostfile, or others."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from clusterprep.errors import InputError
from clusterprep.jobs.launch.plan import LaunchPlan, Share
from clusterprep.jobs.launch.shell_text import (
    OPTION,
    assignments,
    common_env,
    exports,
    own_env,
    program_words,
    refuse_uneven,
)
from clusterprep.model import Node, Runtime
from clusterprep.model.nodeset import fold
from clusterprep.model.runtimes import to_agent
from clusterprep.remote.agent.containers import for_others
from clusterprep.remote.agent.inside import enter
from clusterprep.runtime.plugins import modules

FORMS = "clusterprep.jobs.launch.forms"
SETUP = "CLUSTERPREP_SETUP"  # a variable of the script for Slurm: the set-up of the runtime


def text_of(plan: LaunchPlan, form: str, cluster: str) -> str:
    """Return the launch as `form`: torchrun, sbatch, hostfile, or the name of a file in forms/.

    `cluster` is the name of the inventory; it names the job. Raises InputError for a launch that
    the form cannot express.
    """
    if form == "sbatch":
        return sbatch(plan, cluster)
    if form == "hostfile":
        return hostfile(plan)
    if form == "torchrun":
        return torchrun(plan)
    if any(share.node.runtime is not None for share in plan.shares):
        message = f"{form} starts the program itself, and would not enter the nodes' runtime:"
        raise InputError.of(message, key=OPTION, hint="torchrun and sbatch enter it")
    programs = {module.__name__.rpartition(".")[2]: module for module in modules(FORMS)}
    text: str = programs[form].render(plan, cluster)
    return text


def with_remarks(text: str, remarks: Iterable[str]) -> str:
    """Return the text with remarks as comments, behind its first line if that names a shell."""
    comments = "".join(f"# {remark}\n" for remark in remarks)
    if not text.startswith("#!"):
        return comments + text
    first, end, rest = text.partition("\n")
    return f"{first}{end}{comments}{rest}"


def torchrun(plan: LaunchPlan) -> str:
    """Return one line per node, or per rank of a direct launch.

    All have to be started within ten minutes: torchrun waits no longer.
    """
    parts: list[str] = []
    for share in plan.shares:
        if plan.wanted.direct:
            parts.extend(_rank_lines(plan, share))
        else:
            env = {
                **share.env,
                "NODE_RANK": str(share.position),
            }
            argv = _torchrun_argv(plan, share)
            parts.append(_line(plan, share.node, share.node.name, env, argv))
    return "\n".join(parts)


def _rank_lines(plan: LaunchPlan, share: Share) -> list[str]:
    lines: list[str] = []
    for rank in share.ranks:
        argv = plan.wanted.program.argv_of_rank(share.node.python, rank - share.first)
        env = plan.environment(rank)
        lines.append(_line(plan, share.node, f"{share.node.name} rank {rank}", env, argv))
    return lines


def _line(
    plan: LaunchPlan, node: Node, title: str, env: Mapping[str, str], argv: Sequence[str]
) -> str:
    words = ["env"]
    for name, value in sorted(env.items()):
        words.append(f"{name}={value}")
    words.extend(entering(node.runtime, argv, env))
    command = shlex.join(words)
    if plan.wanted.folder:
        command = f"cd {shlex.quote(plan.wanted.folder)} && {command}"
    return f"# {title}\n{command}\n"


def entering(runtime: Runtime | None, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the command that runs `argv` inside a runtime, with these variables set inside."""
    told = to_agent(runtime)
    if told is not None and "container" in told:
        return list(for_others(told["container"], argv, sorted(env)))
    words, _ = enter(told, list(argv), dict(env), sorted(env))
    return list(words)


def hostfile(plan: LaunchPlan) -> str:
    """Return a hostfile as Open MPI and DeepSpeed read it."""
    rows: list[str] = []
    for share in plan.shares:
        rows.extend(hostfile_row(share.node, share.count))
    rows.append("")
    return "\n".join(rows)


def hostfile_row(node: Node, slots: int) -> list[str]:
    """Return the line of a node in a hostfile, behind a comment with its name if it has another."""
    row = f"{node.address} slots={slots}"
    if node.address == node.name:
        return [row]
    return [f"# {node.name}", row]


def sbatch(plan: LaunchPlan, cluster: str) -> str:
    """Return a script for Slurm, which gives the nodes.

    One task on each node starts torchrun; its node rank is Slurm's own number of the node. Raises
    InputError if the nodes have different runtimes.
    """
    refuse_uneven(plan, "srun")
    runtimes = {share.node.runtime for share in plan.shares}
    if len(runtimes) > 1:
        raise InputError.of("a script for Slurm starts all nodes alike, and their runtime: differs")
    common = common_env(plan.shares)
    lines = ["#!/bin/bash"]
    lines.extend(_sbatch_options(plan, cluster))
    lines.extend(["", "set -euo pipefail"])
    lines.extend(exports(common))
    lines.append('export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)')
    lines.append(f"export MASTER_PORT={plan.port}")
    lines.extend(_runtime_lines(plan))
    task = _task_script(plan, common)
    lines.extend(["", f"srun --kill-on-bad-exit=1 bash -c {shlex.quote(task)}", ""])
    return "\n".join(lines)


def _sbatch_options(plan: LaunchPlan, cluster: str) -> list[str]:
    job_name = cluster or "launch"
    names = [share.node.name for share in plan.shares]
    lines = [
        f"#SBATCH --job-name={shlex.quote(job_name)}",
        f"#SBATCH --nodes={len(names)}",
        f"#SBATCH --nodelist={fold(names)}",
        "#SBATCH --ntasks-per-node=1",
    ]
    if _has_gpus(plan):
        lines.append(f"#SBATCH --gpus-per-node={plan.nproc_per_node}")
    if plan.wanted.folder:
        lines.append(f"#SBATCH --chdir={shlex.quote(plan.wanted.folder)}")
    lines.append("# A task may use all of its node's processors: data loaders need them.")
    lines.append("#SBATCH --exclusive")
    return lines


def _task_script(plan: LaunchPlan, common: Mapping[str, str]) -> str:
    """Return what each task runs: the environment of its node, then torchrun."""
    lines = _exports_by_node(plan.shares, common)
    lines.append("export NODE_RANK=$SLURM_NODEID")
    command = " ".join(_slurm_words(plan))
    lines.append(f"exec {command}")
    return "\n".join(lines)


def _torchrun_argv(plan: LaunchPlan, share: Share) -> list[str]:
    argv = [share.node.python, "-m", "torch.distributed.run"]
    argv.extend(plan.torchrun_options(share))
    argv.extend(program_words(plan))
    return argv


def _slurm_words(plan: LaunchPlan) -> Sequence[str]:
    """Return torchrun's command for the shell; variables of Slurm stand for what Slurm decides."""
    share = plan.shares[0]
    return [
        *_slurm_words_before(share),
        shlex.quote(share.node.python),
        "-m torch.distributed.run",
        "--rdzv-backend=static",
        f"--nnodes={len(plan.shares)}",
        f"--nproc-per-node={share.count}",
        '--node-rank="$SLURM_NODEID"',
        '--master-addr="$MASTER_ADDR"',
        f"--master-port={plan.port}",
        shlex.join(program_words(plan)),
    ]


def _words_before(share: Share) -> list[str]:
    """Return the words of a node's runtime, which `enter` puts before those of the command."""
    return entering(share.node.runtime, (), {**share.env, "NODE_RANK": ""})


def _slurm_words_before(share: Share) -> list[str]:
    """Return the words of a runtime for the task's shell, with the set-up by its variable."""
    words: list[str] = []
    for word in _words_before(share):
        words.append(f'"${SETUP}"' if "\n" in word else shlex.quote(word))
    return words


def _runtime_lines(plan: LaunchPlan) -> list[str]:
    """Return lines that export a runtime's set-up: within srun's command it could not be read.

    The delimiter is quoted, so the shell takes the text as it is.
    """
    lines: list[str] = []
    for word in _words_before(plan.shares[0]):
        if "\n" in word:
            lines.append("")
            lines.append(f"IFS= read -r -d '' {SETUP} <<'END_OF_SETUP' || true")
            lines.extend([word.strip("\n"), "END_OF_SETUP"])
            lines.append(f"export {SETUP}")
    return lines


def _exports_by_node(shares: Sequence[Share], common: Mapping[str, str]) -> list[str]:
    """Return a `case` statement that exports the variables in which nodes differ."""
    cases: list[str] = []
    for share in shares:
        own = own_env(share, common)
        if own:
            node = shlex.quote(share.node.name)
            cases.append(f"  {node}) export {assignments(own)} ;;")
    if not cases:
        return []
    return ['case "$SLURMD_NODENAME" in', *cases, "esac"]


def _has_gpus(plan: LaunchPlan) -> bool:
    for share in plan.shares:
        gpus = share.node.gpus
        if gpus is None or gpus.count <= 0:
            return False
    return True
