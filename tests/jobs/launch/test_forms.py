"""`launch --print` for programs that start a job by themselves: what their scripts run.

Each script is run by a shell, with stand-ins for the programs that say what they were given.
`test_form_hosts.py` runs the programs themselves.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from clusterprep.cli.options import FORMS
from clusterprep.errors import InputError
from clusterprep.jobs.launch import forms
from clusterprep.jobs.launch.command import program_of
from clusterprep.jobs.launch.forms.k8s import job_name
from clusterprep.jobs.launch.plan import LaunchPlan, LaunchRequest, plan_launch
from clusterprep.jobs.launch.text import text_of
from clusterprep.model import Gpus, Node
from clusterprep.runtime.plugins import modules

HOSTILE = """a 'b' "c" $HOME $(touch owned) `touch owned` $$(A) $$ %h %% \\ ; #&|é"""
MEET = ("10.0.0.1", 29500)
# Says with which words and variables it is run, and what is in the files that it is given.
SAY = """#!/usr/bin/env -S python3 -IS
import json, os, sys
files = {word: open(word).read() for word in sys.argv[1:] if os.path.isfile(word)}
if os.environ.get("DS_ENV_FILE"):
    files["env"] = open(os.environ["DS_ENV_FILE"]).read()
print(json.dumps({"words": sys.argv[1:], "env": dict(os.environ), "files": files}))
"""
# Starts one rank, that of $TEST_RANK, as Open MPI does.
MPIRUN = """#!/bin/bash
printf '%s\\n' "$@" > "$TEST_FOLDER/mpirun"
while [ "$1" != --hostfile ]; do shift; done
cp "$2" "$TEST_FOLDER/hostfile"
while [ "$1" != bash ]; do shift; done
export OMPI_COMM_WORLD_RANK=$TEST_RANK OMPI_COMM_WORLD_SIZE=4
export OMPI_COMM_WORLD_LOCAL_RANK=$((TEST_RANK % 2)) OMPI_COMM_WORLD_LOCAL_SIZE=2
exec "$@"
"""


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A stand-in for the job's interpreter."""
    path = tmp_path / "say it's"
    path.write_text(SAY)
    path.chmod(0o755)
    return str(path)


def planned(
    python: str,
    *words: str,
    env: dict[str, dict[str, str]] | None = None,
    counts: tuple[int, ...] = (2, 2),
    gpus: Gpus | None = None,
    **wanted: Any,
) -> LaunchPlan:
    """Return a plan for nodes with the names n1 and so on."""
    nodes = []
    for at, count in enumerate(counts, 1):
        node = Node(
            f"n{at}", f"10.0.0.{at}", at - 1, python=python, gpus=gpus, nproc_per_node=count
        )
        nodes.append(node)
    request = LaunchRequest(program_of(words or ("train.py", "1")), **wanted)
    seen = {node.name: gpus.used if gpus else 0 for node in nodes}
    return plan_launch(nodes, env or {}, seen, MEET, request)


def run(script: str, *words: str, **env: str) -> dict[str, Any]:
    """Run a script, and return what the job's interpreter was given."""
    variables = {"PATH": os.environ["PATH"], **env}
    done = subprocess.run(
        ["bash", "-s", "--", *words],
        input=script,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_each_program_has_a_file_and_a_word_of_the_option() -> None:
    files = {module.__name__.rpartition(".")[2] for module in modules(forms.__name__)}
    assert files == set(FORMS) - {"torchrun", "sbatch", "hostfile"}


# ---------------------------------------------------------------- accelerate


def test_accelerate_is_given_its_configuration_on_each_node(python: str, tmp_path: Path) -> None:
    env = {"n1": {"A": HOSTILE, "B": "1"}, "n2": {"A": HOSTILE, "B": "2"}}
    plan = planned(python, "train.py", HOSTILE, env=env, folder=str(tmp_path))
    said = run(text_of(plan, "accelerate", "demo"), "n2")
    assert said["words"][:3] == ["-m", "accelerate.commands.launch", "--config_file"]
    assert said["words"][4:] == ["--machine_rank", "1", "train.py", HOSTILE]
    (config,) = said["files"].values()
    assert yaml.safe_load(config) == {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU",
        "num_machines": 2,
        "num_processes": 4,
        "main_process_ip": "10.0.0.1",
        "main_process_port": 29500,
        "rdzv_backend": "static",
        "same_network": True,
        "machine_rank": 0,
        "mixed_precision": "no",
        "use_cpu": False,
        "debug": False,
    }
    given = said["env"]
    assert (given["A"], given["B"], given["NODE_RANK"]) == (HOSTILE, "2", "1")
    assert given["ACCELERATE_USE_CPU"] == "true"
    assert not Path(said["words"][3]).exists()
    assert not (tmp_path / "owned").exists()


def test_accelerate_uses_gpus_where_there_are_some(python: str) -> None:
    said = run(text_of(planned(python, gpus=Gpus(2)), "accelerate", "demo"), "n1")
    assert "ACCELERATE_USE_CPU" not in said["env"]
    one = text_of(planned(python, counts=(1,)), "accelerate", "demo")
    assert "distributed_type: 'NO'" in one


def test_a_module_and_options_of_torchrun_reach_accelerate(python: str) -> None:
    plan = planned(python, "torchrun", "--max-restarts=2", "-m", "pkg.train", "x")
    words = run(text_of(plan, "accelerate", "demo"), "n1")["words"]
    assert words[6:] == ["--max-restarts=2", "-m", "pkg.train", "x"]


@pytest.mark.parametrize("form", ["accelerate", "deepspeed"])
def test_a_script_for_every_node_names_the_nodes(python: str, form: str) -> None:
    plan = planned(python, env={"n1": {"B": "1"}, "n2": {"B": "2"}})
    script = text_of(plan, form, "demo")
    done = subprocess.run(
        ["bash", "-s", "--", "n3"], input=script, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "usage: bash bash NODE, one of n[1-2]\n")


# ---------------------------------------------------------------- deepspeed


def test_deepspeed_starts_all_nodes_if_its_files_can_carry_the_values(python: str) -> None:
    plain = {"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}
    plan = planned(python, "train.py", "--lr=1e-4", env={"n1": plain, "n2": plain})
    said = run(text_of(plan, "deepspeed", "demo"))
    hostfile = said["words"][3]
    assert said["words"] == [
        *("-m", "deepspeed.launcher.runner", "--hostfile", hostfile, "--launcher", "pdsh"),
        *("--master_addr", "10.0.0.1", "--master_port", "29500", "train.py", "--lr=1e-4"),
    ]
    assert said["files"][hostfile] == "10.0.0.1 slots=2\n10.0.0.2 slots=2\n"
    assert said["files"]["env"].splitlines() == [
        "NCCL_DEBUG=WARN",
        "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1",
        "OMP_NUM_THREADS=1",
        "PYTHONFAULTHANDLER=1",
    ]
    assert not Path(hostfile).parent.exists()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"n1": {"A": "1"}, "n2": {"A": "2"}}, ("train.py",)),
        ({"n1": {"A": HOSTILE}, "n2": {"A": HOSTILE}}, ("train.py",)),
        ({}, ("train.py", HOSTILE)),
    ],
)
def test_deepspeed_is_started_on_every_node_otherwise(
    python: str, env: dict[str, dict[str, str]], words: tuple[str, ...]
) -> None:
    said = run(text_of(planned(python, *words, env=env), "deepspeed", "demo"), "n2")
    assert said["words"][4:7] == ["--no_ssh", "--node_rank", "1"]
    assert said["words"][11:] == list(words)
    assert said["env"].get("A") == env.get("n2", {}).get("A")


def test_deepspeed_on_one_node_is_given_the_environment(python: str) -> None:
    plan = planned(python, counts=(2,), env={"n1": {"A": "1"}})
    said = run(text_of(plan, "deepspeed", "demo"), "n1")
    assert (said["env"]["A"], said["words"][4]) == ("1", "--no_ssh")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-m", "pkg", "x"), ["--module", "pkg", "x"]),
        (("./train.sh", "x"), ["--no_python", "./train.sh", "x"]),
        # DeepSpeed gives each rank this argument by itself.
        (("python", "-m", "torch.distributed.launch", "train.py", "x"), ["train.py", "x"]),
    ],
)
def test_deepspeed_takes_each_kind_of_program(
    python: str, words: tuple[str, ...], expected: list[str]
) -> None:
    said = run(text_of(planned(python, *words), "deepspeed", "demo"))
    assert said["words"][10:] == expected


def test_deepspeed_is_told_the_devices_that_are_declared(python: str) -> None:
    said = run(text_of(planned(python, gpus=Gpus(8, use=(6, 7))), "deepspeed", "demo"))
    assert said["files"][said["words"][3]] == "10.0.0.1 slots=8\n10.0.0.2 slots=8\n"
    at = said["words"].index("--include")
    assert said["words"][at + 1] == "10.0.0.1:6,7@10.0.0.2:6,7"


def test_deepspeed_cannot_be_told_devices_behind_an_ipv6_address(python: str) -> None:
    plan = planned(python, gpus=Gpus(8, use=(6, 7)))
    shares = []
    for share in plan.shares:
        node = replace(share.node, address=f"fd00::{share.position}")
        shares.append(replace(share, node=node))
    over_ipv6 = replace(plan, shares=tuple(shares))
    with pytest.raises(InputError, match="the IPv6 address fd00::0 of n1: give the node a host"):
        text_of(over_ipv6, "deepspeed", "demo")


# ---------------------------------------------------------------- lightning


def test_lightning_is_started_once_on_each_node(python: str, tmp_path: Path) -> None:
    env = {"n1": {"A": HOSTILE}, "n2": {"A": "2"}}
    plan = planned(python, "train.py", HOSTILE, env=env, folder=str(tmp_path))
    text = text_of(plan, "lightning", "demo")
    assert "Trainer(num_nodes=2, devices=2)" in text.splitlines()[0]
    first = text.partition("# n1\n")[2].partition("# n2\n")[0]
    said = run(first)
    assert said["words"] == ["-u", "train.py", HOSTILE]
    names = ("A", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
    assert [said["env"][name] for name in names] == [HOSTILE, "10.0.0.1", "29500", "0"]
    # With LOCAL_RANK Lightning would start no other process.
    assert not {"LOCAL_RANK", "RANK", "WORLD_SIZE"} & set(said["env"])


# ---------------------------------------------------------------- mpirun


def mpi(text: str, folder: Path, rank: int) -> dict[str, Any]:
    program = folder / "bin/mpirun"
    program.parent.mkdir(exist_ok=True)
    program.write_text(MPIRUN)
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    return run(text, PATH=path, TEST_FOLDER=str(folder), TEST_RANK=str(rank))


def test_mpirun_gives_each_rank_what_torch_reads(python: str, tmp_path: Path) -> None:
    env = {"n1": {"A": HOSTILE, "B": "1"}, "n2": {"A": HOSTILE, "B": HOSTILE}}
    plan = planned(python, "train.py", HOSTILE, env=env, folder=str(tmp_path))
    said = mpi(text_of(plan, "mpirun", "demo"), tmp_path, 3)
    assert said["words"] == ["-u", "train.py", HOSTILE]
    expected = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "A": HOSTILE,
        "B": HOSTILE,
    }
    assert {name: said["env"].get(name) for name in expected} == expected
    options = (tmp_path / "mpirun").read_text().split("\nbash\n")[0].split("\n")
    assert options[:2] == ["-np", "4"]
    assert options[4:8] == ["--map-by", "slot", "--bind-to", "none"]
    forwarded = [name for flag, name in itertools.pairwise(options) if flag == "-x"]
    assert forwarded == ["A", "OMP_NUM_THREADS", "PYTHONFAULTHANDLER", "MASTER_ADDR", "MASTER_PORT"]
    assert (tmp_path / "hostfile").read_text() == "10.0.0.1 slots=2\n10.0.0.2 slots=2\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-m", "pkg", "x"), ["-u", "-m", "pkg", "x"]),
        (
            ("python", "-m", "torch.distributed.launch", "train.py", "x"),
            ["-u", "train.py", "--local-rank=0", "x"],
        ),
    ],
)
def test_mpirun_takes_each_kind_of_program(
    python: str, tmp_path: Path, words: tuple[str, ...], expected: list[str]
) -> None:
    assert mpi(text_of(planned(python, *words), "mpirun", "demo"), tmp_path, 2)["words"] == expected


def test_mpirun_starts_another_program_as_it_is(python: str, tmp_path: Path) -> None:
    said = mpi(text_of(planned("/no/python", python, "x"), "mpirun", "demo"), tmp_path, 0)
    assert said["words"] == ["x"]


def test_mpirun_fills_nodes_of_different_sizes_in_order(python: str, tmp_path: Path) -> None:
    text = text_of(planned(python, counts=(1, 3)), "mpirun", "demo")
    ranks = [mpi(text, tmp_path, rank)["env"]["NODE_RANK"] for rank in range(4)]
    assert ranks == ["0", "1", "1", "1"]


# ---------------------------------------------------------------- k8s


def documents(plan: LaunchPlan, cluster: str = "Demo Cluster") -> tuple[Any, Any]:
    service, job = yaml.safe_load_all(text_of(plan, "k8s", cluster))
    return service, job


def expanded(text: str, env: dict[str, str]) -> str:
    """Return what kubelet makes of a command or value: $(NAME) is replaced, $$ is one $."""

    def replace(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace, text)


def test_a_pod_runs_torchrun_with_its_index_and_the_values_of_its_node(
    python: str, tmp_path: Path
) -> None:
    env = {"n1": {"A": HOSTILE, "B": "1", "NO": "y"}, "n2": {"A": HOSTILE, "B": HOSTILE, "NO": "y"}}
    plan = planned(
        python, "train.py", HOSTILE, env=env, folder=str(tmp_path), image="reg:5000/job:1"
    )
    service, job = documents(plan)
    assert service["metadata"]["name"] == job["metadata"]["name"] == "demo-cluster"
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (job["spec"]["completions"], job["spec"]["completionMode"]) == (2, "Indexed")
    assert (container["image"], container["workingDir"]) == ("reg:5000/job:1", str(tmp_path))
    given = {row["name"]: row["value"] for row in container["env"] if "value" in row}
    given = {name: expanded(value, given) for name, value in given.items()}
    assert (given["A"], given["NO"]) == (HOSTILE, "y")
    words = [expanded(word, given) for word in (*container["command"], *container["args"])]
    pod_env = {"NODE_NAME": "n2", "JOB_COMPLETION_INDEX": "1", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        words, env={**given, **pod_env}, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    said = json.loads(done.stdout)
    assert said["words"] == [
        *("-m", "torch.distributed.run", "--rdzv-backend=static", "--nnodes=2"),
        *("--nproc-per-node=2", "--node-rank=1", "--master-addr=demo-cluster-0.demo-cluster"),
        *("--master-port=29500", "train.py", HOSTILE),
    ]
    assert (said["env"]["B"], said["env"]["NODE_RANK"]) == (HOSTILE, "1")
    assert not (tmp_path / "owned").exists()


def test_pods_are_one_on_each_node_of_the_inventory(python: str) -> None:
    _, job = documents(planned(python, image="i"))
    pod = job["spec"]["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1", "n2"]}
    ]
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert pod["hostNetwork"] is True
    assert pod["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory"}}]


def test_a_pod_asks_for_the_gpus_of_its_node_and_for_pinned_memory(python: str) -> None:
    _, job = documents(planned(python, image="i"))
    (plain,) = job["spec"]["template"]["spec"]["containers"]
    assert not {"resources", "securityContext"} & set(plain)
    rdma = {"n1": {"NCCL_IB_HCA": "mlx5_0"}, "n2": {"NCCL_IB_HCA": "mlx5_0"}}
    _, job = documents(planned(python, image="i", gpus=Gpus(2), env=rdma))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}


def test_the_manifest_is_what_kubernetes_declares(python: str) -> None:
    """Its own client has a model of each object, made from its published API."""
    reason = "Kubernetes' client is not installed (pip install kubernetes)"
    client = pytest.importorskip("kubernetes.client", reason=reason)
    rdma = {"n1": {"NCCL_IB_HCA": "mlx5_0"}, "n2": {"NCCL_IB_HCA": "mlx5_1"}}
    plan = planned(python, image="i", gpus=Gpus(2), env=rdma, folder="/srv")
    service, job = documents(plan)
    for model, document in ((client.V1Service, service), (client.V1Job, job)):
        understood = model.from_dict(document)
        assert understood.model_dump(by_alias=True, exclude_none=True) == document


def test_words_of_several_lines_and_odd_letters_reach_a_pod(python: str) -> None:
    for word in ("a\nb", "a\n\n  b\n", "\x01\t", "\N{SLIGHTLY SMILING FACE}"):
        _, job = documents(planned(python, "train.py", word, image="i"))
        (script,) = job["spec"]["template"]["spec"]["containers"][0]["args"]
        assert shlex.split(script.rstrip("\n"))[-1] == word


@pytest.mark.parametrize(
    ("cluster", "name"),
    [
        ("demo", "demo"),
        ("My Cluster_2!", "my-cluster-2"),
        ("7th", "job-7th"),
        ("", "launch"),
        ("é", "launch"),
        ("a" * 80, "a" * 50),
    ],
)
def test_the_name_of_a_job_is_a_dns_label(cluster: str, name: str) -> None:
    assert job_name(cluster) == name


# ---------------------------------------------------------------- what cannot be printed


@pytest.mark.parametrize("form", ["sbatch", "accelerate", "lightning", "k8s"])
def test_one_number_for_all_nodes_is_not_printed_for_different_ones(form: str) -> None:
    with pytest.raises(InputError, match=r"1 on n1; 3 on n2"):
        text_of(planned("python3", counts=(1, 3), image="i"), form, "demo")


@pytest.mark.parametrize("form", ["deepspeed", "lightning", "mpirun"])
def test_options_of_torchrun_are_not_dropped(form: str) -> None:
    plan = planned("python3", "torchrun", "--max-restarts=2", "train.py")
    with pytest.raises(InputError, match="--max-restarts=2"):
        text_of(plan, form, "demo")


def test_a_pod_needs_an_image() -> None:
    with pytest.raises(InputError, match="image") as raised:
        text_of(planned("python3"), "k8s", "demo")
    assert raised.value.problems[0].hint == "--image REGISTRY/IMAGE:TAG"
