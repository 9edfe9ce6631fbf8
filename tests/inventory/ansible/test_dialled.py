"""What we dial for an inventory of Ansible is what `ansible -m ping` dials."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.inventory.ansible.dialled import RECORDED, by_ansible, by_us, lay
from tests.inventory.ansible.shapes import SHAPES, Shape

ROOT = Path(__file__).resolve().parents[3]
ANSWERS = json.loads(RECORDED.read_text())


@pytest.fixture(params=SHAPES, ids=str)
def named(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Shape]:
    """Lay one shape into the current folder."""
    name = request.param
    shape = SHAPES[name]
    lay(shape, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/of/nobody")
    for variable in [key for key in os.environ if key.startswith("ANSIBLE_")]:
        monkeypatch.delenv(variable)
    for variable, value in shape.environment.items():
        monkeypatch.setenv(variable, value)
    return name, shape


def test_nodes_are_dialled_as_ansible_dials_them(named: tuple[str, Shape]) -> None:
    name, shape = named
    assert by_us(shape) == ANSWERS[name]


@pytest.mark.slow
def test_ansible_still_dials_as_recorded(named: tuple[str, Shape]) -> None:
    name, shape = named
    make = subprocess.run(
        ["make", ".venv-bench/.installed"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if make.returncode and not os.environ.get("CI"):
        pytest.skip(f"no Ansible here: {make.stderr.strip().splitlines()[-1]}")
    assert by_ansible(shape, Path.cwd(), ROOT / ".venv-bench/bin") == ANSWERS[name]
