"""Jobs in containers on real hosts: podman, and docker's client over podman's socket.

The job's torch is in the image alone. Hosts have devices below /dev/infiniband that are device
nodes without a device, and files in the place of NCCL.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import CLI, Answer, clusterprep
from tests.support.container_image import IMAGE
from tests.support.lab import Lab, containers
from tests.support.lab.rooms import Host

pytestmark = pytest.mark.hosts

ENGINES = ("podman", "docker")
# How a healthy job starts its container; each fault changes this on n2.
HEALTHY = (
    *containers.OPTIONS,
    "--device=/dev/infiniband",
    "--volume=/srv/nccl:/srv/nccl:ro",
    "--env=LD_LIBRARY_PATH=/srv/nccl",
    "--env=NCCL_IB_TIMEOUT=22",
)
DEVICE, DEVICE_AS_VOLUME = HEALTHY[4], "--volume=/dev/infiniband:/dev/infiniband"
NCCL, OTHER_NCCL = "libnccl.so.2.21.5", "libnccl.so.2.18.3"
PROGRAM = """\
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(4) * (dist.get_rank() + 1)
dist.all_reduce(total)
print("rank", dist.get_rank(), "sum", int(total[0]), sys.argv[1:], flush=True)
dist.destroy_process_group()
"""
SLEEPER = "import os, time\nprint('here', os.environ['RANK'], flush=True)\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Iterator[Lab]:
    """Four hosts with podman and its service, and what a healthy job needs."""
    if reason := containers.why_no_containers():
        pytest.skip(reason)
    for host in lab4.hosts:
        containers.prepare(host)
        host.run(["mkdir", "-p", "/dev/infiniband"])
        host.run(["mknod", "-m", "666", "/dev/infiniband/uverbs0", "c", "231", "192"])
        for folder, library in (("nccl", NCCL), ("other", OTHER_NCCL)):
            host.write(f"/srv/{folder}/{library}", "")
            host.run(["ln", "-s", library, f"/srv/{folder}/libnccl.so.2"])
        host.write("/etc/profile.d/job.sh", "export NCCL_IB_TIMEOUT=22\n")
        host.write("/srv/job/program.py", PROGRAM)
        host.write("/srv/job/sleeper.py", SLEEPER)
    with contextlib.ExitStack() as services:
        if containers.why_no_docker() is None:
            for host in lab4.hosts:
                services.enter_context(containers.serving(host))
        yield lab4


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine that is there."""
    name: str = request.param
    if name == "docker" and (reason := containers.why_no_docker()):
        pytest.skip(reason)
    return name


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test no container is on a host, and no process that one had."""
    yield
    lab: Lab = request.getfixturevalue("lab")
    quiet(lab.hosts)


def quiet(hosts: Sequence[Host]) -> None:
    end = time.monotonic() + 15
    while any(remains(host) for host in hosts) and time.monotonic() < end:
        time.sleep(0.1)
    assert {host.name: remains(host) for host in hosts} == {host.name: [] for host in hosts}


def remains(host: Host) -> list[str]:
    """What is left of clusterprep's on a host: containers, and processes of any of them."""
    pids = host.processes("[c]lusterprep|[-]ISB")
    shown = host.run(["ps", "-o", "pid=,args=", "-p", ",".join(map(str, pids))], check=False).stdout
    return [*containers.left(host), *(shown.splitlines() if pids else [])]


def runtime(engine: str, options: Sequence[str] = HEALTHY, image: str = IMAGE) -> dict[str, Any]:
    """`runtime:` of a job.

    Docker's client asks its daemon for the system before it takes --device, and podman's service
    does not tell; a volume brings the same files.
    """
    words = list(options)
    if engine == "docker":
        words = [DEVICE_AS_VOLUME if word == DEVICE else word for word in words]
    return {"container": {"engine": engine, "image": image, "options": words}}


def written(
    lab: Lab, folder: Path, job: dict[str, Any], others: Mapping[str, dict[str, Any]] | None = None
) -> Path:
    """An inventory with this runtime, and other settings of some nodes."""
    nodes = [
        {"name": host.name, "address": host.address, **(others or {}).get(host.name, {})}
        for host in lab.hosts
    ]
    content = lab.inventory_content() | {"runtime": job, "nodes": nodes, "gpus": 0}
    del content["python"]
    path = folder / "inventory.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def without(*left_out: str) -> list[str]:
    return [word for word in HEALTHY if word not in left_out]


def rt_failures(answer: Answer) -> dict[str, list[str]]:
    """Every failed finding by check; what is not known must not be in a report here."""
    assert not [f for f in answer.report["findings"] if f["verdict"] == "unknown"], answer.report
    bad = [f for f in answer.report["findings"] if f["verdict"] == "fail"]
    return {f["check"]: f["nodes"] for f in bad}


def test_a_healthy_container_is_no_finding(lab: Lab, tmp_path: Path, engine: str) -> None:
    inventory = written(lab, tmp_path, runtime(engine))
    seen = clusterprep(lab, "check", "--only", "rt.,torch.", inventory=inventory)
    assert rt_failures(seen) == {}
    assert seen.code == 0
    for check in ("rt.engine", "rt.devices", "rt.memlock", "rt.shm", "rt.libs", "rt.network"):
        assert sorted(seen.blamed(check, "pass")) == ["n1", "n2", "n3", "n4"], check
    assert seen.findings("torch.version", "pass"), "torch is in the image alone"


BACKGROUND = ("--detach=true", "-dit", "--rm=false")


@pytest.mark.parametrize("option", BACKGROUND)
def test_a_job_that_its_launcher_puts_into_the_background_is_looked_at_all_the_same(
    lab: Lab, tmp_path: Path, engine: str, option: str
) -> None:
    """The container is ours: it runs in front, and `nothing_left` sees that it is removed."""
    inventory = written(lab, tmp_path, runtime(engine, [*HEALTHY, option]))
    seen = clusterprep(lab, "check", "--only", "rt.engine", inventory=inventory)
    assert (seen.code, rt_failures(seen)) == (0, {})
    assert sorted(seen.blamed("rt.engine", "pass")) == ["n1", "n2", "n3", "n4"]


FAULTS = {
    "no-infiniband": (without("--device=/dev/infiniband"), {"rt.devices"}),
    "small-shm": ([*without("--ipc=host"), "--ipc=private"], {"rt.shm", "rt.ipc"}),
    "memlock": ([*HEALTHY, "--ulimit=memlock=65536:65536"], {"rt.memlock"}),
    "other-nccl": (
        [*without("--volume=/srv/nccl:/srv/nccl:ro"), "--volume=/srv/other:/srv/nccl:ro"],
        {"rt.libs"},
    ),
    "dropped-variable": (without("--env=NCCL_IB_TIMEOUT=22"), {"rt.env"}),
    "own-network": ([*without("--network=host"), "--network=none"], {"rt.network"}),
    "own-ipc": ([*without("--ipc=host"), "--ipc=private", "--shm-size=2g"], {"rt.ipc"}),
    "other-user": ([*HEALTHY, "--user=1000:1000"], {"rt.engine"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_container_is_named_and_the_host_is_not(
    lab: Lab, tmp_path: Path, fault: str
) -> None:
    options, checks = FAULTS[fault]
    inventory = written(
        lab, tmp_path, runtime("podman"), {"n2": {"runtime": runtime("podman", options)}}
    )
    seen = clusterprep(lab, "check", "--only", "rt.,shm.size,eth.mtu,torch.", inventory=inventory)
    assert rt_failures(seen) == {check: ["n2"] for check in checks}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_docker_has_the_same_findings(lab: Lab, tmp_path: Path, fault: str) -> None:
    if reason := containers.why_no_docker():
        pytest.skip(reason)
    options, checks = FAULTS[fault]
    inventory = written(
        lab, tmp_path, runtime("docker"), {"n2": {"runtime": runtime("docker", options)}}
    )
    seen = clusterprep(lab, "check", "--only", "rt.,shm.size", inventory=inventory)
    assert rt_failures(seen) == {check: ["n2"] for check in checks}


def test_what_keeps_a_container_from_starting_has_a_reason(lab: Lab, tmp_path: Path) -> None:
    jobs = {
        "n1": {"runtime": runtime("podman", image="localhost/other:1")},
        "n2": {"runtime": runtime("podman", [*HEALTHY, "--no-such-flag"])},
        "n3": {"runtime": runtime("podman"), "python": "/usr/bin/python4"},
        "n4": {"runtime": runtime("enroot")},
    }
    inventory = written(lab, tmp_path, runtime("podman"), jobs)
    seen = clusterprep(lab, "check", "--only", "rt.", inventory=inventory)
    found = {f["nodes"][0]: f["seen"] for f in seen.findings("rt.engine")}
    reasons = {"n1": "no_image", "n2": "bad_options", "n3": "no_python", "n4": "missing_tool"}
    assert found == reasons
    assert sorted(seen.blamed("rt.shm", "unknown")) == ["n1", "n2", "n3", "n4"]
    assert seen.code == 1


def test_a_daemon_that_is_not_there_has_a_reason(lab: Lab, tmp_path: Path) -> None:
    if reason := containers.why_no_docker():
        pytest.skip(reason)
    host = lab.host("n4")
    host.run(["mv", containers.SOCKET, f"{containers.SOCKET}.off"])
    try:
        inventory = written(lab, tmp_path, runtime("docker"))
        seen = clusterprep(lab, "check", "--only", "rt.engine", inventory=inventory)
    finally:
        host.run(["mv", f"{containers.SOCKET}.off", containers.SOCKET])
    assert {f["nodes"][0]: f["seen"] for f in seen.findings("rt.engine")} == {"n4": "no_daemon"}


# ---------------------------------------------------------------- jobs


def two(lab: Lab, folder: Path, engine: str) -> Path:
    """An inventory of a job on n1 and n2, whose container has the programs too."""
    job = runtime(engine, [*HEALTHY, "--volume=/srv/job:/srv/job"])
    path = written(lab, folder, job)
    content = json.loads(path.read_text())
    content["nodes"] = content["nodes"][:2]
    path.write_text(json.dumps(content))
    return path


def test_verify_runs_in_the_container(lab: Lab, tmp_path: Path) -> None:
    seen = clusterprep(lab, "verify", inventory=two(lab, tmp_path, "podman"))
    assert seen.code == 0, seen.report
    assert seen.report["verify"]["verdict"] == "pass"
    assert seen.report["verify"]["world_size"] == 2
    assert "silent" not in json.dumps(seen.report)


@pytest.mark.slow
def test_check_apply_verify_and_launch_work(lab: Lab, tmp_path: Path, engine: str) -> None:
    inventory = two(lab, tmp_path, engine)
    applied = clusterprep(lab, "apply", "--nproc-per-node", "2", inventory=inventory)
    assert applied.code == 0, applied.report
    assert applied.report["verify"]["verdict"] == "pass"
    assert applied.report["verify"]["world_size"] == 4
    assert clusterprep(lab, "rollback", inventory=inventory).code == 0
    argv = [*CLI, "launch", str(inventory), "--nproc-per-node", "2", "--no-color", "--"]
    done = lab.controller.run([*argv, "/srv/job/program.py", "a b"], timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    for rank in range(4):
        node = "n1" if rank < 2 else "n2"
        assert f"[{node} rank {rank}] rank {rank} sum 10 ['a b']" in done.stdout + done.stderr


def agent_of(host: Host) -> list[int]:
    return host.processes("[-]ISB")


@pytest.mark.parametrize("end", ["agent", "controller"])
def test_a_container_ends_with_the_agent_that_started_it(
    lab: Lab, tmp_path: Path, engine: str, end: str
) -> None:
    inventory = two(lab, tmp_path, engine)
    argv = [*CLI, "launch", str(inventory), "--", "/srv/job/sleeper.py"]
    process = lab.controller.popen(argv, stdout=-1, stderr=-2, stdin=-3, text=True)
    hosts = lab.hosts[:2]
    try:
        limit = time.monotonic() + 60
        while not all(host.processes("[s]leeper.py") for host in hosts):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < limit
            time.sleep(0.1)
        if end == "agent":
            for host in hosts:
                host.run(["kill", "-9", *map(str, agent_of(host))])
            quiet(hosts)
        else:
            os.kill(process.pid, signal.SIGINT)
    finally:
        if end == "agent":
            os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    quiet(hosts)
