"""Slurm's files against machines with eight GPUs, and states of nodes.

Files are composed by slurm.conf(5), gres.conf(5) and cgroup.conf(5); where a text is of others, it
says whose.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from clusterprep.facts.cpu import Cpus
from clusterprep.facts.gpu import DeviceNodes, Function, Gpu, Nvml
from clusterprep.facts.memory import NumaNode
from clusterprep.facts.slurm import SlurmState, parse_files
from clusterprep.model import Absent, Gpus
from clusterprep.remote.agent.slurm import logical_lines, sum_of
from tests.support.fleet import absent, findings, fleet, rdma_device, same, told

NONE = Absent("not_applicable", "none here")
MIB = 1 << 20
NODES = "NodeName=n[1-4] Sockets=2 CoresPerSocket=64 ThreadsPerCore=2 RealMemory=900000"
CONF = f"""\
ClusterName=a
TaskPlugin=task/cgroup,task/affinity
SelectTypeParameters=CR_Core_Memory
{NODES} Gres=gpu:8
PartitionName=main Nodes=ALL
"""
GRES = "Name=gpu File=/dev/nvidia[0-3] Cores=0-63\nName=gpu File=/dev/nvidia[4-7] Cores=64-127\n"
CGROUP = "ConstrainDevices=yes\nConstrainCores=yes\n"


def files(
    conf: str = CONF, gres: str | None = GRES, cgroup: str | None = CGROUP, **more: Any
) -> Any:
    """What a node says of its files."""
    texts = {"slurm.conf": conf, "gres.conf": gres, "cgroup.conf": cgroup}
    sent = {}
    for name, text in texts.items():
        if text is not None:
            lines = logical_lines(text)
            sent[name] = {"sum": sum_of(lines), "lines": lines}
    answer = {"folder": "/etc/slurm", "files": sent, "scripts": {}, "pam": False, **more}
    return parse_files(answer)


def machine(number: int = 1, gpus: int = 8, **facts: Any) -> dict[str, Any]:
    """Two sockets of 64 cores with two threads each, 1 TiB, and GPUs on both NUMA nodes."""
    functions = [
        Function(f"0000:{index + 1}0:00.0", False, 0 if index < gpus / 2 else 1, False)
        for index in range(gpus)
    ]
    listed = tuple(
        Gpu(index, "NVIDIA A100-SXM4-80GB", f"GPU-{index}", functions[index].pci)
        for index in range(gpus)
    )
    known = {
        "slurm.files": files(),
        "host.name": f"n{number}",
        "cpu.processors": Cpus("AMD EPYC 7742", 2, 128, 256),
        "mem.total": 1_000_000 * MIB,
        "numa.nodes": (
            NumaNode(0, "0-63,128-191", True),
            NumaNode(1, "64-127,192-255", True),
        ),
        "gpu.nodes": DeviceNodes(dict.fromkeys(range(gpus), "open"), ()),
        "gpu.functions": tuple(functions),
        "gpu.nvml": Nvml("550.54", "12.4", listed),
        "gpu.mig": dict.fromkeys(range(gpus), (False, False)),
        "rdma.devices": (rdma_device(),),
        "lim.memlock": math.inf,
    }
    return {**known, **{name.replace("__", "."): value for name, value in facts.items()}}


def said(**facts: Any) -> str:
    return told(fleet(n1=machine(**facts)), "slurm.gres")["n1"]


def message(**facts: Any) -> str:
    return " + ".join(
        f"{found.message} ({found.seen}; {found.wanted})"
        for found in findings(fleet(n1=machine(**facts)), "slurm.gres")
        if found.verdict == "fail"
    )


# ---------------------------------------------------------------- what fits


def test_files_that_say_what_the_machine_is() -> None:
    found = findings(fleet(n1=machine()), "slurm.gres")
    assert [(each.verdict, each.seen) for each in found] == [
        ("pass", "256 CPUs, 900000 MiB, 8 × gpu")
    ]


@pytest.mark.parametrize(
    "conf",
    [
        pytest.param(CONF.replace(NODES, "NodeName=n1 CPUs=256 RealMemory=900000"), id="cpus"),
        pytest.param(
            CONF.replace(NODES, "NodeName=n1 CPUs=128 RealMemory=900000"), id="cores-as-cpus"
        ),
        pytest.param(CONF.replace("ThreadsPerCore=2", "ThreadsPerCore=1"), id="without-threads"),
        pytest.param(
            CONF.replace("Sockets=2 CoresPerSocket=64", "Sockets=8 CoresPerSocket=16"),
            id="numa-nodes-as-sockets",
        ),
        pytest.param(
            f"SlurmdParameters=config_overrides\n{CONF}".replace("64", "640"), id="overridden"
        ),
    ],
)
def test_other_ways_to_say_it(conf: str) -> None:
    assert said(slurm__files=files(conf)) == "pass"


@pytest.mark.parametrize(
    "gres",
    [
        "AutoDetect=nvml\n",
        "AutoDetect=nvml\nName=gpu Type=a100 File=/dev/nvidia[0-7]\n",
        "NodeName=n[1-4] Name=gpu File=/dev/nvidia[0-7]\n",
        "Name=gpu File=/dev/nvidia[0-7] Cores=0-127\n",
        "Name=gpu File=/dev/nvidia[0-7]\nNodeName=x Name=gpu File=/dev/nvidia[0-15]\n",
    ],
)
def test_other_ways_to_list_devices(gres: str) -> None:
    assert said(slurm__files=files(gres=gres)) == "pass"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param({"slurm__files": NONE}, "skip not_applicable", id="no-slurm"),
        pytest.param({"host__name": "login1"}, "skip not_applicable", id="no-node-of-slurm"),
        pytest.param(
            {"slurm__files": absent("garbled")}, "unknown warning garbled", id="not-readable"
        ),
        pytest.param(
            {"gpu__nodes": absent("hung")}, "unknown warning hung", id="devices-not-known"
        ),
        pytest.param(
            {"cpu__processors": absent("denied")}, "unknown warning denied", id="cpus-not-known"
        ),
    ],
)
def test_what_does_not_apply_and_what_is_not_known(facts: Any, expected: str) -> None:
    assert said(**facts) == expected


# ---------------------------------------------------------------- what does not


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        pytest.param("CoresPerSocket=64", "CoresPerSocket=96", "more CPUs", id="too-many"),
        pytest.param("Sockets=2", "Sockets=1", "fewer cores", id="half-of-the-cores"),
        pytest.param("CoresPerSocket=64", "CoresPerSocket=48", "fewer CPUs", id="too-few"),
        pytest.param(
            "CoresPerSocket=64 ThreadsPerCore=2",
            "CoresPerSocket=128 ThreadsPerCore=1",
            "other cores and threads",
            id="threads-as-cores",
        ),
        pytest.param(NODES, "NodeName=n1 RealMemory=900000", "(1 CPUs;", id="nothing-said"),
        pytest.param("RealMemory=900000", "RealMemory=1030000", "more memory", id="memory"),
        pytest.param(" RealMemory=900000", "", "no RealMemory", id="no-memory"),
        pytest.param("RealMemory=900000", "RealMemory=900", "less than half", id="in-gb"),
        pytest.param("gpu:8", "gpu:4", "fewer GPUs than the machine has", id="idle-gpus"),
        pytest.param("gpu:8", "gpu:9", "more GPUs than the machine has", id="too-many-gpus"),
        pytest.param("gpu:8", "gpu:a100:8", "fewer devices for gpu:a100", id="another-type"),
        pytest.param("task/cgroup,", "", "TaskPlugin lacks task/cgroup", id="no-effect"),
    ],
)
def test_slurm_conf_that_is_not_this_machine(old: str, new: str, words: str) -> None:
    assert old in CONF
    assert words in message(slurm__files=files(CONF.replace(old, new)))
    assert "fail warning" in said(slurm__files=files(CONF.replace(old, new)))


# github.com/NVIDIA/deepops/issues/1195: slurmctld says «invalid GRES core specification» of it.
DEEPOPS = """\
Name=gpu File=/dev/nvidia0 CPUs=48-63,176-191
Name=gpu File=/dev/nvidia1 CPUs=48-63,176-191
Name=gpu File=/dev/nvidia2 CPUs=16-31,144-159
Name=gpu File=/dev/nvidia3 CPUs=16-31,144-159
Name=gpu File=/dev/nvidia4 CPUs=112-127,240-255
Name=gpu File=/dev/nvidia5 CPUs=112-127,240-255
Name=gpu File=/dev/nvidia6 CPUs=80-95,208-223
Name=gpu File=/dev/nvidia7 CPUs=80-95,208-223
"""


@pytest.mark.parametrize(
    ("gres", "words"),
    [
        pytest.param(DEEPOPS, "counts cores, not threads", id="deepops-1195"),
        # github.com/ComputeCanada/puppet-magic_castle/issues/27 without its AutoDetect
        pytest.param("Name=gpu\nName=gpu\n", "neither File= nor AutoDetect=", id="no-file"),
        pytest.param(None, "neither File= nor AutoDetect=", id="no-gres-conf"),
        pytest.param("Name=gpu File=/dev/nvidia[0-8]\n", "/dev/nvidia8", id="a-device-too-many"),
        pytest.param("Name=gpu File=/dev/nvidia[0-5]\n", "6 devices", id="a-device-too-few"),
        pytest.param(
            "NodeName=x Name=gpu File=/dev/nvidia[0-7]\n", "neither File=", id="of-other-nodes"
        ),
        pytest.param(
            "AutoDetect=nvml\nName=gpu Type=h100 File=/dev/nvidia[0-7]\n",
            "no GPU here has this one (h100; nvidia_a100-sxm4-80gb)",
            id="a-type-that-nvml-does-not-find",
        ),
        pytest.param(
            GRES.replace("0-63", "96-127"),
            "another NUMA node than its own (Cores=96-127 for /dev/nvidia[0-3]; Cores=0-63)",
            id="far-cores",
        ),
    ],
)
def test_gres_conf_that_is_not_this_machine(gres: str | None, words: str) -> None:
    assert words in message(slurm__files=files(gres=gres))


def test_gpus_that_the_machine_does_not_have_at_all() -> None:
    facts = {"gpus": 0, "gpu__nvml": None}
    assert "no /dev/nvidiaN exists" in message(**facts)
    assert "0 in the machine" in message(slurm__files=files(gres="AutoDetect=nvml"), **facts)
    cpus_only = files(CONF.replace(" Gres=gpu:8", ""), gres=None)
    assert said(slurm__files=cpus_only, **facts) == "pass"


@pytest.mark.parametrize(
    ("conf", "gres", "facts"),
    [
        pytest.param(
            CONF.replace("gpu:8", "gpu:56"),
            "AutoDetect=nvml\n",
            {"gpu__mig": dict.fromkeys(range(8), (True, True))},
            id="mig",
        ),
        pytest.param(
            CONF.replace("gpu:8", "gpu:2"),
            "Name=gpu MultipleFiles=/dev/nvidia[0-3]\nName=gpu MultipleFiles=/dev/nvidia[4-7]\n",
            {},
            id="several-devices-in-one",
        ),
        pytest.param(
            CONF, "Name=gpu File=/dev/dri/renderD[128-135]\n", {"gpus": 0}, id="another-vendor"
        ),
        pytest.param(CONF, "AutoDetect=rsmi\n", {"gpus": 0}, id="another-vendor-found"),
    ],
)
def test_counts_that_mean_something_else(conf: str, gres: str, facts: Any) -> None:
    assert said(slurm__files=files(conf, gres), **facts) == "pass"


# ---------------------------------------------------------------- what holds for jobs


def test_jobs_that_share_a_node_are_kept_apart() -> None:
    assert "lack of ConstrainDevices" in message(slurm__files=files(cgroup=None))
    exclusive = CONF.replace("Nodes=ALL", "Nodes=ALL OverSubscribe=EXCLUSIVE")
    assert said(slurm__files=files(exclusive, cgroup=None)) == "pass"


@pytest.mark.parametrize(
    ("setting", "facts", "fails"),
    [
        ("", {}, True),
        ("PropagateResourceLimits=ALL", {}, True),
        ("PropagateResourceLimits=NONE", {}, False),
        ("PropagateResourceLimits=NOFILE,MEMLOCK", {}, True),
        ("PropagateResourceLimitsExcept=MEMLOCK", {}, False),
        ("PropagateResourceLimitsExcept=NOFILE", {}, True),
        ("", {"lim__memlock": math.inf}, False),
        ("", {"rdma__devices": ()}, False),
    ],
)
def test_the_limit_of_locked_memory_of_a_session(setting: str, facts: Any, fails: bool) -> None:
    small = {"lim__memlock": 8.0 * MIB, **facts}
    found = message(slurm__files=files(f"{setting}\n{CONF}"), **small)
    assert ("memlock of 8 MiB" in found) is fails


def test_scripts_that_cannot_run() -> None:
    scripts = {"/a": 0o755, "/b": 0o644, "/c": None}
    assert "(/b, /c; an executable file)" in message(slurm__files=files(scripts=scripts))


@pytest.mark.parametrize(("flags", "fails"), [("Alloc", True), ("X11", False), ("contain", False)])
def test_pam_slurm_adopt_needs_a_step_to_adopt_into(flags: str, fails: bool) -> None:
    found = message(slurm__files=files(f"PrologFlags={flags}\n{CONF}", pam=True))
    assert ("pam_slurm_adopt" in found) is fails


# ---------------------------------------------------------------- several nodes


def test_a_node_with_another_file_is_named() -> None:
    other = files(f"MaxJobCount=7\n{CONF}")
    seen = fleet(n1=machine(1), n2=machine(2, slurm__files=other), n3=machine(3))
    assert told(seen, "slurm.gres") == {"n1": "pass", "n2": "fail warning", "n3": "pass"}


def test_a_comment_is_no_difference() -> None:
    seen = fleet(n1=machine(1), n2=machine(2, slurm__files=files(f"# mine\n{CONF}")))
    assert set(told(seen, "slurm.gres").values()) == {"pass"}


def test_gres_conf_may_be_another_for_another_kind_of_machine() -> None:
    other = files(gres="Name=gpu File=/dev/nvidia[0-7]\n")
    nodes = {"n1": machine(1), "n2": machine(2, slurm__files=other)}
    assert set(told(fleet(**nodes), "slurm.gres").values()) == {"fail warning"}
    kinds = {"n1": {"gpus": Gpus(8, "A")}, "n2": {"gpus": Gpus(8, "B")}}
    assert set(told(fleet(some=kinds, **nodes), "slurm.gres").values()) == {"pass"}


def test_nodes_of_two_clusters_are_not_compared() -> None:
    other = files(CONF.replace("ClusterName=a", "ClusterName=b"))
    seen = fleet(n1=machine(1), n2=machine(2, slurm__files=other))
    assert set(told(seen, "slurm.gres").values()) == {"pass"}


def test_files_that_slurmctld_sent_are_told() -> None:
    (found,) = findings(
        fleet(n1=machine(slurm__files=files(folder="/run/slurm/conf"))), "slurm.gres"
    )
    assert "which slurmctld sent" in found.message


# ---------------------------------------------------------------- slurm.state


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("IDLE", "", "pass"),
        ("MIXED+PLANNED", "", "pass"),
        ("ALLOCATED+MAINTENANCE+RESERVED", "", "pass"),
        ("IDLE+DRAIN", "disk", "fail warning"),
        ("MIXED+DRAIN", "clusterprep: gpu.lost", "fail warning"),
        ("DOWN*", "Not responding", "fail warning"),
        ("IDLE*", "", "fail warning"),
        ("IDLE+DRAIN+INVALID_REG", "gres/gpu count too low", "fail warning"),
        ("FUTURE", "", "skip not_applicable"),
    ],
)
def test_states(state: str, reason: str, expected: str) -> None:
    seen = fleet(**same("slurm.node_state", SlurmState("n1", state, reason)))
    assert told(seen, "slurm.state") == {"n1": expected}


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("clusterprep: gpu.lost", "a health check of clusterprep"),
        ("Kill task failed", "for the reason that an administrator or Slurm itself gave"),
        ("", "slurmd does not answer slurmctld"),
    ],
)
def test_who_took_it_out(reason: str, words: str) -> None:
    (found,) = findings(
        fleet(**same("slurm.node_state", SlurmState("n1", "DOWN*", reason))), "slurm.state"
    )
    assert words in found.message
    assert reason in found.seen


def test_no_slurm_has_no_state() -> None:
    assert told(fleet(**same("slurm.node_state", NONE)), "slurm.state") == {
        "n1": "skip not_applicable"
    }
