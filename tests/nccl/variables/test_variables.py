"""The registry of variables, and which names have an effect in NCCL's own file."""

from __future__ import annotations

import pytest

from clusterprep.nccl.variables.variables import conf_file_has_effect, registry


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "NCCL_IB_DISABLE",
        "NCCL_DEBUG",
        "NCCL_DEBUG_FILE",
        "NCCL_IB_TC",
        "NCCL_SOMETHING_OF_THE_NEXT_RELEASE",
    ],
)
def test_nccl_finds_its_own_names_in_its_file(name: str) -> None:
    assert conf_file_has_effect(name)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("NCCL_CONF_FILE", id="names-the-file-itself"),
        pytest.param("NCCL_VERSION", id="of-container-images-and-never-read"),
        pytest.param("NCCL_ASYNC_ERROR_HANDLING", id="torch-reads-it"),
        pytest.param("NCCL_BLOCKING_WAIT", id="torch-reads-it-too"),
        pytest.param("TORCH_NCCL_ASYNC_ERROR_HANDLING", id="torch-by-name"),
        pytest.param("GLOO_SOCKET_IFNAME", id="gloo"),
        pytest.param("CUDA_DEVICE_ORDER", id="cuda"),
        pytest.param("NPROC_PER_NODE", id="launcher"),
        pytest.param("OMP_NUM_THREADS", id="not-in-the-registry"),
    ],
)
def test_other_names_have_no_effect_there(name: str) -> None:
    assert not conf_file_has_effect(name)


def test_every_entry_has_what_we_read_of_it() -> None:
    keys = {
        "name",
        "owner",
        "summary",
        "uniformity",
        "readable_from_conf_file",
        "allowed_values",
        "default",
    }
    assert all(keys <= entry.keys() for entry in registry().values())
    assert all(name == entry["name"] for name, entry in registry().items())
