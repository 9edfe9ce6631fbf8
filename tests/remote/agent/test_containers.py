"""The command line of an engine: what the job's launcher says, but for how the container ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from clusterprep.remote.agent.containers import MOST_SEARCHED, job_options, problem

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


@pytest.mark.parametrize("word", ["failed to find ", ".sqsh ", "Error: destination "])
def test_what_an_image_prints_is_searched_at_its_end_alone(word: str) -> None:
    """The agent is silent meanwhile: 60 kB of such words took three seconds, all of these hours."""
    text = word * (256 << 10) + "\nError: no such image\n"
    assert problem({"engine": "podman"}, 125, text) is not None
    assert problem({"engine": "podman"}, 125, "x" * MOST_SEARCHED + "\nError: no such image\n") == (
        "no_image",
        "Error: no such image",
    )
