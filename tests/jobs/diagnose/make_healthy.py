"""Records what jobs print that end well: torch, Lightning and accelerate at many log levels.

    python -m tests.jobs.diagnose.make_healthy            # all: some minutes, on one machine
    python -m tests.jobs.diagnose.make_healthy NAME …     # only these

The interpreter needs torch, lightning and accelerate. Each run leaves healthy/NAME.log, or a file
of each rank, without the paths of this machine. A run that does not end with 0 is not kept.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.jobs.diagnose.stage import PLACES

HERE = Path(__file__).parent
HEALTHY = HERE / "healthy"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2")
LONGEST = 120.0  # seconds of one run


@dataclass(frozen=True)
class Run:
    """One healthy run: `argv` after the interpreter, then the script of jobs/."""

    name: str
    argv: tuple[str, ...]
    script: str
    env: Mapping[str, str] = field(default_factory=dict)
    log_dir: bool = False  # torchrun writes a file of each rank


QUICK = {"REST": "0", "STEPS": "12"}
INFO = {"TORCH_CPP_LOG_LEVEL": "INFO"}
DEBUG = {"TORCH_DISTRIBUTED_DEBUG": "INFO"}
RUNS = (
    Run("torch-default", TORCHRUN, "train", QUICK),
    Run("torch-cpp-info", TORCHRUN, "train", QUICK | INFO),
    Run("torch-debug", TORCHRUN, "train", QUICK | DEBUG),
    Run("torch-debug-info", TORCHRUN, "train", QUICK | INFO | DEBUG),
    Run("torch-elastic-debug", TORCHRUN, "train", QUICK | {"LOGLEVEL": "DEBUG"}),
    Run("torch-tee", (*TORCHRUN, "--tee", "3"), "train", QUICK | INFO),
    Run("torch-files", (*TORCHRUN, "--redirects", "3"), "train", QUICK | INFO, log_dir=True),
    Run("torch-logs", TORCHRUN, "train", QUICK | {"TORCH_LOGS": "+distributed,all"}),
    Run("torch-four", (*TORCHRUN[:-1], "4"), "train", QUICK),
    Run("torch-recovers", TORCHRUN, "recovers"),
    Run("torch-recovers-tee", (*TORCHRUN, "--tee", "3"), "recovers", INFO),
    Run("torch-restarted", (*TORCHRUN, "--max-restarts", "1"), "restarted", INFO),
    Run("lightning-default", (), "lightning_fit"),
    Run("lightning-debug", (), "lightning_fit", {"LEVEL": "DEBUG"}),
    Run("lightning-info", (), "lightning_fit", INFO | DEBUG | {"NCCL_DEBUG": "INFO"}),
    Run("lightning-torchrun", TORCHRUN, "lightning_fit", {"LEVEL": "INFO"}),
    Run("lightning-profiled", (), "lightning_fit", {"PROFILER": "simple"}),
    Run("accelerate-default", ACCELERATE, "accelerated"),
    Run("accelerate-debug", (*ACCELERATE, "--debug"), "accelerated", {"LEVEL": "DEBUG"} | DEBUG),
    Run("accelerate-info", ACCELERATE, "accelerated", INFO | {"ACCELERATE_LOG_LEVEL": "info"}),
    Run("accelerate-torchrun", TORCHRUN, "accelerated", INFO),
)


def record(run: Run) -> bool:
    """Run one job and keep its log. Returns whether it ended with 0."""
    with tempfile.TemporaryDirectory(prefix="healthy-") as folder:
        script = Path(folder) / "train.py"
        script.write_text(
            re.sub("  # noqa: .*", "", (HERE / "jobs" / f"{run.script}.py").read_text())
        )
        log = Path(folder) / "job.log"
        argv = list(run.argv)
        if run.log_dir:
            argv += ["--log-dir", f"{folder}/logs"]
        env = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"} | dict(run.env)
        with log.open("wb") as out:
            ended = subprocess.run(
                [sys.executable, *argv, str(script)],
                cwd=folder,
                env=env,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=LONGEST,
                check=False,
            )
        if ended.returncode != 0:
            print(log.read_text()[-3000:], file=sys.stderr)
            return False
        for old in HEALTHY.glob(f"{run.name}.*log"):
            old.unlink()
        _keep(log, f"{run.name}.log", folder)
        for number, path in enumerate(sorted(Path(folder).glob("logs/**/std*.log"))):
            if path.stat().st_size:
                _keep(path, f"{run.name}.{number}.{path.stem}.log", folder)
        shutil.rmtree(f"{folder}/logs", ignore_errors=True)
    return True


def _keep(path: Path, name: str, folder: str) -> None:
    text = path.read_text(errors="replace")
    for place, shown in ((folder, "/opt/job"), *PLACES):
        text = text.replace(place, shown)
    text = text.replace(os.uname().nodename, "n1")
    lines = [line.rsplit("\r", 1)[-1] for line in text.splitlines()]
    (HEALTHY / name).write_text("\n".join(lines) + "\n")


def main(names: list[str]) -> int:
    HEALTHY.mkdir(exist_ok=True)
    failed = 0
    for run in RUNS:
        if names and run.name not in names:
            continue
        ended_well = record(run)
        failed += not ended_well
        print(f"{run.name}: {'kept' if ended_well else 'FAILED'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
