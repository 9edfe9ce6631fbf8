"""The command line of an engine: what the job's launcher says, but for how the container ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from clusterprep.remote.agent.containers import job_options

DECIDED = [
    (["--detach=true", "--rm=false", "--interactive=false", "--tty=true"], []),
    (["-d=true", "-t", "-i", "-dit", "-itd"], []),
    (["-itv", "/data:/data"], ["-v", "/data:/data"]),
    (["-dv/data:/data", "-Pd"], ["-v/data:/data", "-P"]),
    (["--attach", "stdout", "-a", "stderr", "-a=stdin", "-astdin", "-ia", "stdin"], []),
    (["--restart=always", "--restart", "always", "--name", "-d", "--pull=always"], []),
]
KEPT = [
    ["--device", "/dev/infiniband", "--ipc=host", "--ulimit", "memlock=-1"],
    ["--detach-keys=ctrl-x", "--init", "-e", "A=-d", "-w", "/srv", "-u1000:1000"],
    ["-Pq", "--env=RESTART=always"],
]


@pytest.mark.parametrize(("options", "expected"), DECIDED)
def test_no_spelling_puts_a_container_into_the_background_or_keeps_it(
    options: Sequence[str], expected: Sequence[str]
) -> None:
    assert job_options(options) == expected


@pytest.mark.parametrize("options", KEPT)
def test_all_other_options_are_the_launcher_s(options: Sequence[str]) -> None:
    kept = job_options(options)
    assert kept == (["-P", "-q", *options[1:]] if options[0] == "-Pq" else options)
