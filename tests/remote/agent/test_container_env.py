"""What containers.conf and enroot's files give, as podman and enroot read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.remote.agent import container_env


@pytest.mark.parametrize(
    ("text", "entries", "appends"),
    [
        ('[containers]\nenv = ["A=1", \'B="2"\']\n', [[2, "A=1"], [2, 'B="2"']], False),
        ('[containers] # x\n env=[\n  # "C=3"\n  "D=4",\n]\n', [[4, "D=4"]], False),
        ('[containers]\nenv = ["A=\\"x\\" \\\\ ]", {append=true}]\n', [[2, 'A="x" \\ ]']], True),
        ("[containers]\nenv = []\n", [], False),
    ],
)
def test_the_list_of_podman(text: str, entries: list[object], appends: bool) -> None:
    assert container_env.env_list(text) == (entries, appends)


@pytest.mark.parametrize(
    "text",
    ["", '[engine]\nenv = ["A=1"]\n', '[containers]\n#env = ["A=1"]\nenv_host = true\n'],
)
def test_what_sets_no_list(text: str) -> None:
    assert container_env.env_list(text) is None


def test_a_later_file_replaces_the_list_or_adds_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "conf.d"
    own = tmp_path / "home/.config/containers"
    for place in (folder, own):
        place.mkdir(parents=True)
    monkeypatch.setattr(container_env, "PODMAN", (str(tmp_path),))
    monkeypatch.setattr(container_env, "CONTAINERS_CONF", (f"{folder}/*",))
    (folder / "a.conf").write_text('[containers]\nenv = ["NCCL_A=1", "HF_TOKEN=canary"]\n')
    (folder / "b.conf").write_text("[containers]\nenv = [\n'NCCL_B=it''s',\n]\n")
    (folder / "c.off").write_text("[containers]\nenv = ['NCCL_C=1']\n")
    home = str(tmp_path / "home")
    (row,) = container_env.podman(home) or []
    assert row[0] == str(folder / "b.conf")
    (folder / "a.conf").write_text('[containers]\nenv = ["NCCL_A=1", "HF_TOKEN=canary"]\n')
    (folder / "b.conf").unlink()
    (own / "containers.conf").write_text('[containers]\nenv = ["NCCL_D=x y", {append=true}]\n')
    assert container_env.podman(home) == [
        [str(folder / "a.conf"), [[2, "NCCL_A='1'"]]],
        [str(own / "containers.conf"), [[2, "NCCL_D='x y'"]]],
    ]
    assert container_env.read_container_defaults() == {str(folder / "a.conf"): 2}


def test_without_engines_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PODMAN", "ENROOT", "DOCKER"):
        monkeypatch.setattr(container_env, name, ("/nowhere",))
    assert container_env.podman("/root") is None
    assert container_env.enroot("/root") is None
    assert container_env.docker() is None


def test_enroot_reads_files_of_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_env, "ENROOT", (str(tmp_path),))
    monkeypatch.setattr(container_env, "ENVIRON", f"{tmp_path}/*")
    (tmp_path / "10.env").write_text("# x\nNCCL_DEBUG=INFO\nHF_TOKEN=canary\n")
    (tmp_path / "10.sh").write_text("NCCL_DEBUG=TRACE\n")
    assert container_env.enroot("/nowhere") == [
        [str(tmp_path / "10.env"), [[2, "NCCL_DEBUG=INFO"]]]
    ]
