"""What the script finds of torch in real folders, and how NCCL's numbers are read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterprep.facts.torch import SCRIPT, Torch, nccl_version
from clusterprep.model import Absent
from tests.fleet import learned

CUDA_WHEEL = """\
from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.6.0+cu124'
debug = False
cuda: Optional[str] = '12.4'
git_version = '2236df1770800ffea5697b11b0bb0d910b2e59e1'
hip: Optional[str] = None
rocm: Optional[str] = None
xpu: Optional[str] = None
"""
CPU_WHEEL = CUDA_WHEEL.replace("+cu124", "+cpu").replace("'12.4'", "None")
OLD_WHEEL = """\
__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '1.13.1+cu117'
debug = False
cuda = '11.7'
git_version = '49444c3e546bf240bed24a101e747422d1f8a0ee'
hip = None
"""
NVIDIA_IMAGE = CUDA_WHEEL.replace("2.6.0+cu124", "2.6.0a0+df5bbc09d1.nv24.12").replace("'12.4'", '"12.6"')


def run(folder: Path) -> dict[str, Any]:
    """The script's answer from an interpreter that sees only this folder beside its standard library."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", SCRIPT], env=environment, cwd="/", capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def install(folder: Path, version: str) -> Path:
    place = folder / "torch"
    place.mkdir()
    (place / "__init__.py").write_text("raise SystemExit('torch must not be imported')\n")
    (place / "version.py").write_text(version)
    return place


@pytest.mark.parametrize(
    ("text", "version", "cuda"),
    [
        pytest.param(CUDA_WHEEL, "2.6.0+cu124", "12.4", id="cuda-wheel"),
        pytest.param(CPU_WHEEL, "2.6.0+cpu", None, id="cpu-wheel"),
        pytest.param(OLD_WHEEL, "1.13.1+cu117", "11.7", id="without-types"),
        pytest.param(NVIDIA_IMAGE, "2.6.0a0+df5bbc09d1.nv24.12", "12.6", id="nvidia-image"),
    ],
)
def test_a_build_is_read_without_importing_it(tmp_path: Path, text: str, version: str, cuda: str | None) -> None:
    place = install(tmp_path, text)
    assert learned("torch.build", ["ok", run(tmp_path)]) == Torch(version, cuda, None, str(place))


def test_no_torch_is_an_answer(tmp_path: Path) -> None:
    assert learned("torch.build", ["ok", run(tmp_path)]) == Torch(None, None, None, None)


def test_a_folder_that_happens_to_be_called_torch_is_none(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    assert learned("torch.build", ["ok", run(tmp_path)]).version is None


def test_a_build_without_a_version_is_garbled(tmp_path: Path) -> None:
    install(tmp_path, "__version__ = None\n")
    found = learned("torch.build", ["ok", run(tmp_path)])
    assert isinstance(found, Absent)
    assert found.reason == "garbled"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (2408, "2.4.8"),
        (2708, "2.7.8"),
        (20903, "2.9.3"),
        (21003, "2.10.3"),
        (21805, "2.18.5"),
        (22105, "2.21.5"),
        (22703, "2.27.3"),
        (23007, "2.30.7"),
    ],
)
def test_nccls_number_is_decoded_by_its_age(code: int, text: str) -> None:
    assert nccl_version(code) == text
    answer = {"python": "p", "version": "2.6.0", "cuda": "12.4", "nccl": code, "where": "/torch"}
    assert learned("torch.build", ["ok", answer]).nccl == text


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, {"version": "2.6.0"}, {"version": "2", "cuda": None, "nccl": "new", "where": "/"}],
)
def test_another_shape_is_garbled(answer: object) -> None:
    assert learned("torch.build", ["ok", answer]).reason == "garbled"


@pytest.mark.parametrize("reason", ["missing_tool", "denied", "hung", "timed_out"])
def test_an_interpreter_that_did_not_answer_is_not_one_without_torch(reason: str) -> None:
    assert learned("torch.build", ["no", reason, "/usr/bin/python3"]) == Absent(reason, "/usr/bin/python3")
