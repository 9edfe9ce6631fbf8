"""Kubernetes: an Indexed Job (batch/v1) with one pod per node, and the Service that names pod 0.

No operator is needed. The scheduler decides which pod runs on which node, as Slurm does, so pods
number themselves and take the values of the node on which they are.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable

from clusterprep.errors import InputError
from clusterprep.jobs.launch.plan import LaunchPlan
from clusterprep.jobs.launch.shell_text import (
    OPTION,
    assignments,
    common_env,
    names_of,
    own_env,
    program_words,
    refuse_uneven,
)

LONGEST_NAME = 50  # characters of a Job's name; its pods get 63 with their index
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
# kubelet replaces $(NAME), and takes $$ for one $, in commands and in values of variables.
_EXPANDED = re.compile(r"\$(?=[$(])")


def render(plan: LaunchPlan, cluster: str) -> str:
    """Return the manifest. Raises InputError for uneven nodes, and without an image."""
    refuse_uneven(plan, "torchrun in a pod")
    if not plan.wanted.image:
        raise InputError.of(
            "a pod needs the image of the job", key=OPTION, hint="--image REGISTRY/IMAGE:TAG"
        )
    name = job_name(cluster)
    return "\n".join(
        [
            f"# {plan.world_size} processes on {names_of(plan)}: kubectl create -f FILE",
            *_service(name, plan),
            "---",
            *_job(name, plan),
            "",
        ]
    )


def job_name(cluster: str) -> str:
    """Return the name of a cluster as a DNS label, which begins with a letter (RFC 1035)."""
    name = _NOT_IN_NAMES.sub("-", cluster.lower())[:LONGEST_NAME].strip("-")
    if not name:
        return "launch"
    return name if name[0].isalpha() else f"job-{name}"


def _service(name: str, plan: LaunchPlan) -> list[str]:
    return [
        "apiVersion: v1",
        "kind: Service",
        "metadata:",
        f"  name: {_text(name)}",
        "spec:",
        "  clusterIP: None",
        "  publishNotReadyAddresses: true  # ranks look for the first one before it is ready",
        "  selector:",
        f"    job-name: {_text(name)}",
        "  ports:",
        f"    - {{name: master, port: {plan.port}}}",
    ]


def _job(name: str, plan: LaunchPlan) -> list[str]:
    nodes = len(plan.shares)
    names = [share.node.name for share in plan.shares]
    lines = [
        "apiVersion: batch/v1",
        "kind: Job",
        "metadata:",
        f"  name: {_text(name)}",
        "spec:",
        "  completionMode: Indexed",
        f"  completions: {nodes}",
        f"  parallelism: {nodes}",
        "  backoffLimit: 0",
        "  template:",
        "    spec:",
        "      restartPolicy: Never",
        f"      subdomain: {_text(name)}",
        "      # The variables name interfaces and devices of the nodes.",
        "      hostNetwork: true",
        "      dnsPolicy: ClusterFirstWithHostNet",
        "      affinity:",
        "        nodeAffinity:",
        "          requiredDuringSchedulingIgnoredDuringExecution:",
        "            nodeSelectorTerms:",
        "              - matchExpressions:",
        "                  - key: kubernetes.io/hostname",
        "                    operator: In",
        f"                    values: {json.dumps(names)}",
        "        podAntiAffinity:",
        "          requiredDuringSchedulingIgnoredDuringExecution:",
        f"            - labelSelector: {{matchLabels: {{job-name: {_text(name)}}}}}",
        "              topologyKey: kubernetes.io/hostname",
        "      containers:",
    ]
    lines.extend(_indented(6, _container(name, plan)))
    lines.extend(
        [
            "      volumes:",
            "        - name: shm",
            "          emptyDir: {medium: Memory}",
        ]
    )
    return lines


def _container(name: str, plan: LaunchPlan) -> list[str]:
    lines = [
        "  - name: ranks",
        f"    image: {_text(plan.wanted.image)}",
    ]
    if plan.wanted.folder:
        lines.append(f"    workingDir: {_text(plan.wanted.folder)}")
    lines.append("    env:")
    lines.append("      - name: NODE_NAME")
    lines.append("        valueFrom: {fieldRef: {fieldPath: spec.nodeName}}")
    env = {
        **common_env(plan.shares),
        "MASTER_ADDR": f"{name}-0.{name}",
        "MASTER_PORT": str(plan.port),
    }
    for variable, value in env.items():
        lines.append(f"      - {{name: {_text(variable)}, value: {_text(_escaped(value))}}}")
    lines.append("    command: [bash, -c]")
    lines.append("    args:")
    lines.extend(_indented(6, _literal(_escaped(_task(plan)))))
    if all(share.gpus for share in plan.shares):
        gpus = _text(str(plan.nproc_per_node))
        lines.append(f"    resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}")
    if any("NCCL_IB_HCA" in share.env for share in plan.shares):
        lines.append("    # RDMA pins memory.")
        lines.append("    securityContext: {capabilities: {add: [IPC_LOCK]}}")
    lines.append("    volumeMounts:")
    lines.append("      - {name: shm, mountPath: /dev/shm}  # 64 MiB without it")
    return lines


def _task(plan: LaunchPlan) -> str:
    """Return the shell script of a pod."""
    common = common_env(plan.shares)
    cases = []
    for share in plan.shares:
        own = own_env(share, common)
        if own:
            cases.append(f"  {shlex.quote(share.node.name)}) export {assignments(own)} ;;")
    lines = ['case "$NODE_NAME" in', *cases, "esac"] if cases else []
    lines.append('export NODE_RANK="$JOB_COMPLETION_INDEX"')
    words = [
        shlex.quote(plan.shares[0].node.python),
        "-m torch.distributed.run",
        "--rdzv-backend=static",
        f"--nnodes={len(plan.shares)}",
        f"--nproc-per-node={plan.nproc_per_node}",
        '--node-rank="$NODE_RANK"',
        '--master-addr="$MASTER_ADDR"',
        f"--master-port={plan.port}",
        shlex.join(program_words(plan)),
    ]
    lines.append(f"exec {' '.join(words)}")
    return "\n".join(lines)


def _literal(text: str) -> list[str]:
    """Return a text as an item of a list, line by line if YAML takes it so."""
    if text.replace("\n", "").isprintable():
        return ["- |", *_indented(2, text.split("\n"))]
    return [f"- {_text(text)}"]


def _escaped(text: str) -> str:
    """Return the text that kubelet makes `text` of."""
    return _EXPANDED.sub("$$", text)


def _text(text: str) -> str:
    """Return a string of YAML: those of JSON are, but for letters in two halves."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _indented(columns: int, lines: Iterable[str]) -> list[str]:
    return [f"{' ' * columns}{line}" for line in lines]
