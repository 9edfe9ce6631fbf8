"""Counters of RDMA ports, as the kernel shows them and where a port does not count."""

from __future__ import annotations

import pytest

from tests.support.fleet import learned

ROOT = "/sys/class/infiniband"


def test_counters_are_told_by_port_and_name() -> None:
    files = {
        f"{ROOT}/mlx5_1/ports/2/counters/symbol_error": "12",
        f"{ROOT}/mlx5_1/ports/2/hw_counters/rnr_nak_retry_err": "0",
        f"{ROOT}/mlx5_0/ports/1/counters/link_downed": "3",
        f"{ROOT}/mlx5_0/ports/1/counters/symbol_error": "N/A (no PMA)",
    }
    assert learned("ib.counters", ["ok", files]) == {
        "mlx5_0:1": {"link_downed": 3},
        "mlx5_1:2": {"symbol_error": 12, "rnr_nak_retry_err": 0},
    }


def test_a_node_without_ports_has_no_counters() -> None:
    assert learned("ib.counters", ["ok", {}]) == {}


@pytest.mark.parametrize(
    "files",
    [{f"{ROOT}/mlx5_0/ports/1/counters/symbol_error": "many"}, {"/sys/class/net/eth0/mtu": "1500"}],
)
def test_what_is_no_counter_is_not_known(files: dict[str, str]) -> None:
    assert learned("ib.counters", ["ok", files]).reason == "garbled"
