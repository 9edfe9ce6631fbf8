"""The GPU's way through a rank, where there is no GPU.

In which order torch is called, and with what.

The stand-in refuses what the real one refuses: a collective or a group before a device is bound.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterprep.remote.agent import trial
from clusterprep.remote.agent.collectives import COLLECTIVES


class Event:
    """A CUDA event of a collective that takes `seconds`, or for ever."""

    def __init__(self, calls: list[str], seconds: float) -> None:
        self._calls, self._seconds = calls, seconds

    def record(self) -> None:
        self._calls.append("record")

    def query(self) -> bool:
        return self._seconds < 1e6

    def elapsed_time(self, end: Event) -> float:
        return self._seconds * 1000


class Torch:
    """As much of torch as the GPU's way needs."""

    def __init__(self, seconds: float = 0.25, old: bool = False) -> None:
        self.calls: list[str] = []
        self.bound: int | None = None
        self.cuda = SimpleNamespace(
            set_device=self._bind,
            synchronize=lambda: self.calls.append("synchronize"),
            Event=lambda enable_timing: Event(self.calls, seconds),
        )
        self.distributed = SimpleNamespace(init_process_group=self._old_init if old else self._init)
        self.device = lambda name: f"device({name})"

    def _bind(self, index: int) -> None:
        self.calls.append(f"set_device {index}")
        self.bound = index

    def zeros(self, count: int, device: str) -> None:
        assert device == f"cuda:{self.bound}", "memory on a GPU that is not bound"
        self.calls.append(f"zeros {device}")

    def _init(self, backend: str, timeout: Any = None, device_id: Any = None) -> None: ...
    def _old_init(self, backend: str, timeout: Any = None) -> None: ...

    def collective(self, async_op: bool) -> SimpleNamespace:
        assert self.bound is not None, "a collective before the device was bound"
        assert async_op, "the host would wait without a limit"
        self.calls.append("collective")
        return SimpleNamespace(wait=lambda: self.calls.append("wait"))


def test_the_device_is_bound_before_anything_else_uses_cuda() -> None:
    torch = Torch()
    assert trial.Cuda(torch, 3, identify=lambda ordinal: {"index": ordinal}).bind() == {"index": 3}
    assert torch.calls == ["set_device 3", "zeros cuda:3"]


def test_the_group_is_bound_to_the_gpu_where_torch_can_do_that() -> None:
    options = trial.Cuda(Torch(), 1).group_options(60.0)
    assert options["device_id"] == "device(cuda:1)"
    assert options["timeout"] == timedelta(seconds=60.0 + trial.LATER)  # our own limit comes first
    assert set(trial.Cuda(Torch(old=True), 1).group_options(60.0)) == {"timeout"}


def test_time_is_the_gpus_between_two_events() -> None:
    torch = Torch(0.25)
    torch.cuda.set_device(0)
    assert trial.Cuda(torch, 0).timed(torch.collective, 5.0) == 0.25
    assert torch.calls[1:] == ["synchronize", "record", "collective", "wait", "record"]


def test_a_collective_that_never_ends_is_given_up_by_the_host() -> None:
    torch = Torch(float("inf"))
    torch.cuda.set_device(0)
    with pytest.raises(RuntimeError, match=r"did not finish within 0\.05 s"):
        trial.Cuda(torch, 0).timed(torch.collective, 0.05)


@pytest.mark.parametrize(
    ("visible", "ordinal", "index"),
    [
        (None, 2, 2),
        ("", 1, 1),
        ("6,7", 1, 7),
        ("6, 7", 0, 6),
        ("GPU-8932f937,GPU-12", 1, None),
        ("3", 5, 5),
    ],
)
def test_without_the_drivers_list_the_index_is_what_cuda_visible_devices_says(
    tmp_path: Path, visible: str | None, ordinal: int, index: int | None
) -> None:
    assert trial.index_on_node("0000:17:00.0", ordinal, visible, str(tmp_path)) == index


@pytest.mark.parametrize("visible", [None, "GPU-b,GPU-a", "1,0", "MIG-1"])
def test_the_index_is_that_of_nvidia_smi_whatever_the_order_in_which_cuda_counts(
    tmp_path: Path, visible: str | None
) -> None:
    """As on a box with two models, of which CUDA puts the faster one first."""
    for address in ("0000:17:00.0", "0000:0F:00.0", "0001:00:00.0"):
        (tmp_path / "driver/nvidia/gpus" / address).mkdir(parents=True)
    found = [
        trial.index_on_node(address, 0, visible, str(tmp_path))
        for address in ("0000:0f:00.0", "0000:17:00.0", "0001:00:00.0")
    ]
    assert found == [0, 1, 2]


def test_a_barrier_is_waited_for_once_it_is_done() -> None:
    """Torch's wait() of a barrier over NCCL stops the host, for which there is no limit."""
    looks = iter([False, False, True])
    torch = Torch(0.25)
    torch.cuda.set_device(0)

    def barrier(async_op: bool) -> SimpleNamespace:
        def is_completed() -> bool:
            torch.calls.append("look")
            return next(looks)

        return SimpleNamespace(is_completed=is_completed, wait=lambda: torch.calls.append("wait"))

    trial.Cuda(torch, 0).timed(barrier, 5.0, blocks=True)
    assert torch.calls[1:] == ["synchronize", "record", "look", "look", "look", "wait", "record"]


def test_a_barrier_that_never_ends_is_given_up_by_the_rank_itself() -> None:
    torch = Torch(0.25)
    torch.cuda.set_device(0)

    def forever() -> None:
        raise AssertionError("the host would wait without a limit")

    def barrier(async_op: bool) -> SimpleNamespace:
        return SimpleNamespace(is_completed=lambda: False, wait=forever)

    with pytest.raises(RuntimeError, match=r"did not finish within 0\.05 s"):
        trial.Cuda(torch, 0).timed(barrier, 0.05, blocks=True)


def test_of_all_collectives_the_barrier_alone_stops_the_host() -> None:
    assert [name for name, made in COLLECTIVES.items() if made.blocks] == ["barrier"]


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("-1\n", None), ("x", None), (None, None)])
def test_the_numa_node_of_a_gpu(tmp_path: Any, text: str | None, node: int | None) -> None:
    folder = tmp_path / "bus/pci/devices/0000:17:00.0"
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "numa_node").write_text(text)
    assert trial.numa_node("0000:17:00.0", str(tmp_path)) == node


def test_a_barrier_names_the_device_of_its_rank() -> None:
    """Left to itself torch guesses it from the rank, which may be another rank's GPU."""
    assert trial.Cuda(Torch(), 3).barrier_options() == {"device_ids": [3]}
    assert trial.Cpu(Torch(), 3).barrier_options() == {}


def test_the_room_of_a_rank_is_what_is_free_on_its_gpu() -> None:
    torch = Torch()
    torch.cuda.mem_get_info = lambda index: (index * 1000, 1 << 40)
    assert trial.Cuda(torch, 2).room() == 2000
