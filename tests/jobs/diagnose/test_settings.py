"""Lines that show how a job is set up."""

import pytest

from clusterprep.jobs.diagnose.settings import is_setting

SETTINGS = [
    "# If you see 'CUDA out of memory' take a smaller batch.",
    "#SBATCH --signal=TERM@120",
    "+ ulimit -l unlimited",
    "++ hostname",
    "usage: train.py [-h] [--timeout SECONDS]",
    "  --timeout SECONDS      give up after this long",
    "  --on-error {abort,skip}",
    '    raise RuntimeError("CUDA error: out of memory")',
]
EVENTS = [
    "#0 0x00007f in ncclCommInitRank ()",
    "# Out of bounds values : 8 FAILED",
    "RuntimeError: CUDA error: out of memory",
    "NCCL_IB_TIMEOUT set by environment to 22.",
    "--> the program was killed",
]


@pytest.mark.parametrize("message", SETTINGS)
def test_settings(message: str) -> None:
    assert is_setting(message)


@pytest.mark.parametrize("message", EVENTS)
def test_events(message: str) -> None:
    assert not is_setting(message)
