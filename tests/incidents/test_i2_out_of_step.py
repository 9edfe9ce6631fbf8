"""A fine-tune over four GPUs dies at its end.

The data was split without a seed, and ranks held different amounts. No check can see that before
the start, and none may blame the cluster for it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.incidents.families import FAMILIES
from tests.incidents.sizes import tried
from tests.support.command import clusterprep
from tests.support.lab import Host, Lab, processes

pytestmark = [pytest.mark.hosts, pytest.mark.torch]
PORT = 29611  # not the rendezvous port, which verify uses afterwards

# Every rank draws how many batches it has from a generator that is not seeded alike: here it is its
# rank that seeds it.
TRAINING = """
import datetime, os, random, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
batches = 3 + int(os.environ["RANK"]) % 2
for batch in range(batches):
    dist.all_reduce(torch.ones(1024))
print("rank", dist.get_rank(), "did", batches, flush=True)
dist.barrier()
"""


@pytest.fixture(scope="module", params=FAMILIES)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    from tests.support.lab.fixtures import require_lab

    require_lab()
    with Lab(2, ipv6=request.param) as two:
        yield two


def rank(
    lab: Lab, host: Host, number: int, script: str = TRAINING, world: int = 2
) -> subprocess.Popen[str]:
    env = {
        "MASTER_ADDR": lab.hosts[0].address,
        "MASTER_PORT": str(PORT),
        "WORLD_SIZE": str(world),
        "RANK": str(number),
    }
    env |= {"GLOO_SOCKET_IFNAME": "eth0"}
    argv = [sys.executable, "-c", script]
    return host.popen(argv, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_the_job_dies_and_the_cluster_is_not_blamed(lab: Lab) -> None:
    ranks = [rank(lab, host, number) for number, host in enumerate(lab.hosts)]
    try:
        said = [process.communicate(timeout=60) for process in ranks]
    finally:
        for process in ranks:
            processes.kill_group(process)
    assert "did 3" in said[0][0], said
    assert any(process.returncode for process in ranks), said

    answer = clusterprep(lab, "check")
    assert answer.failed() == {}
    verified = clusterprep(lab, "verify")
    assert (verified.code, verified.report["verify"]["verdict"]) == (0, "pass")
    assert verified.report["verify"]["culprits"] == []
    gathered = [
        row["bytes"]
        for row in verified.report["verify"]["collectives"]
        if row["op"] == "all_gather"
    ]
    assert gathered == [1 << 20]  # the size of this job was not asked for


# The same job on three ranks, the last of which holds less, with one line more before its loop.
GUARDED = TRAINING.replace('int(os.environ["RANK"]) % 2', 'int(os.environ["RANK"] != "2")').replace(
    "for batch",
    "from clusterprep.guard import same_on_all_ranks\n"
    "same_on_all_ranks(batches, 'batches')\nfor batch",
)


def test_the_guard_stops_it_before_the_first_step_and_names_the_rank(lab: Lab) -> None:
    first, second = lab.hosts
    ranks = [
        rank(lab, host, number, GUARDED, world=3)
        for number, host in enumerate((first, second, second))
    ]
    try:
        said = [process.communicate(timeout=60) for process in ranks]
    finally:
        for process in ranks:
            processes.kill_group(process)
    assert [process.returncode for process in ranks] == [1, 1, 1], said
    for out, err in said:
        assert (
            "'batches' is not the same on all ranks; rank 2 differs from most"
            in err.splitlines()[-1]
        )
        assert "did" not in out


RANKS, NUMEL_IN, NUMEL_OUT = 4, 262_675_456, 1_050_701_824  # of the watchdog's line


@pytest.mark.timeout(300)
def test_verify_gathers_what_this_job_gathered_as_far_as_memory_and_time_allow(lab: Lab) -> None:
    inventory = lab.inventory(
        verify={"sizes": ["8", "1M"], "timeout": 60}, nproc_per_node=RANKS // len(lab.hosts)
    )
    found = clusterprep(lab, "verify", "--incident-sizes", inventory=inventory)
    assert found.report["verify"]["world_size"] == RANKS
    assert RANKS * NUMEL_IN == NUMEL_OUT
    assert tried(found, "all_gather", NUMEL_OUT) > 1 << 20
    assert found.blamed("nccl.allgather", "pass") == [host.name for host in lab.hosts]
