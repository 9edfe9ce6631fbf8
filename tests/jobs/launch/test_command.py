"""What stands behind `--`: how it is understood, and what is refused because launch assigns it."""

from __future__ import annotations

import pytest

from clusterprep.errors import InputError
from clusterprep.jobs.launch.command import Program, program_of

PYTHON = "/opt/job/bin/python"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train.py --lr 1", Program("script", ("train.py", "--lr", "1"))),
        ("python train.py --lr 1", Program("script", ("train.py", "--lr", "1"))),
        ("/usr/bin/python3.11 -u train.py", Program("script", ("train.py",))),
        ("-m pkg.train x", Program("module", ("pkg.train", "x"))),
        ("python3 -m pkg.train x", Program("module", ("pkg.train", "x"))),
        ("python -X dev train.py", Program("other", ("python", "-X", "dev", "train.py"))),
        ("./train.sh a", Program("other", ("./train.sh", "a"))),
        ("torchrun train.py --nnodes 3", Program("script", ("train.py", "--nnodes", "3"))),
        (
            "torchrun --max-restarts 3 --tee=3 -m pkg x",
            Program("module", ("pkg", "x"), ("--max-restarts", "3", "--tee=3")),
        ),
        ("torchrun --no_python ./a.out", Program("other", ("./a.out",))),
        (
            "torchrun --virtual_local_rank train.py 1",
            Program("script", ("train.py", "1"), ("--virtual_local_rank",)),
        ),
        (
            "python -m torch.distributed.launch --use_env train.py 1",
            Program("script", ("train.py", "1")),
        ),
        ("python -m torch.distributed.run train.py", Program("script", ("train.py",))),
        (
            "python -m torch.distributed.launch train.py 1",
            Program("script", ("train.py", "--local-rank=${local_rank}", "1")),
        ),
        (
            "python -m torch.distributed.launch -m pkg.train 1",
            Program("module", ("pkg.train", "--local-rank=${local_rank}", "1")),
        ),
    ],
)
def test_commands(words: str, expected: Program) -> None:
    assert program_of(words.split()) == expected


def test_a_rank_that_is_started_directly_is_told_its_number_too() -> None:
    program = program_of("python -m torch.distributed.launch train.py 1".split())
    said = program.argv_of_rank(PYTHON, 3)
    assert said == (PYTHON, "-u", "train.py", "--local-rank=3", "1")
    plain = program_of("train.py --local-rank=0".split())
    assert plain.argv_of_rank(PYTHON, 3) == plain.argv(PYTHON)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("python -m torch.distributed.launch --no-python ./a.out", "--use-env"),
        ("", "no command"),
        ("-m", "no module"),
        ("torchrun", "nothing to run"),
        ("torchrun --nnodes=2 train.py", "--nnodes"),
        ("torchrun --nproc_per_node 2 train.py", "--nproc-per-node"),
        ("torchrun --rdzv-backend c10d train.py", "--rdzv-backend"),
        ("torchrun --standalone train.py", "--standalone"),
    ],
)
def test_what_is_refused(words: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        program_of(words.split())


@pytest.mark.parametrize("option", ["--run-path", "--run_path"])
def test_run_path_is_refused_with_what_to_do_instead(option: str) -> None:
    with pytest.raises(InputError, match="--run-path") as refused:
        program_of(["torchrun", option, "/srv/train.py", "--lr", "1"])
    (problem,) = refused.value.problems
    assert problem.hint == "leave it out: each rank then runs the script in a new interpreter"


def test_run_path_behind_the_script_belongs_to_the_script() -> None:
    words = ["torchrun", "train.py", "--run-path", "x"]
    assert program_of(words) == Program("script", ("train.py", "--run-path", "x"))


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        ("train.py 1", (PYTHON, "-u", "train.py", "1")),
        ("-m train 1", (PYTHON, "-u", "-m", "train", "1")),
        ("./a.out 1", ("./a.out", "1")),
    ],
)
def test_as_one_process(words: str, argv: tuple[str, ...]) -> None:
    assert program_of(words.split()).argv(PYTHON) == argv
