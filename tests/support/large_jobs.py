"""Logs of jobs with thousands of ranks, as NCCL 2.21 to 2.27 writes them with NCCL_DEBUG=INFO.

`lines_of_rank(7, 2048)` is what one rank prints until its communicator is ready, about 4 KB.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

GPUS = 8  # of each node
CHANNELS = 6
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total "
    "capacity of 79.11 GiB of which 12.69 MiB is free. Process 4242 has 79.09 GiB memory in use."
)
FRAMES = 19  # calls in the traceback of `out_of_memory`


def lines_of_rank(rank: int, world: int, seed: int = 1) -> list[str]:
    """Return the lines of NCCL of one rank, with pointers and process ids of its own."""
    source = random.Random(seed * world + rank)
    node, gpu = divmod(rank, GPUS)
    pid = source.randrange(1_000, 4_000_000)
    who = f"gpu-node-{node:04}:{pid}:{pid + source.randrange(3_000)} [{gpu}] NCCL INFO "
    comm = (
        f"comm 0x{source.getrandbits(47):x} rank {rank} nranks {world} cudaDev {gpu} "
        f"nvmlDev {gpu} busId {source.choice('1359bd')}{source.choice('1ab')}000 "
        "commId 0x5ae77eb5ea4ec1ee"
    )
    address = f"eth0:10.{node // 250}.4.{node % 250 + 1}<0>"
    cards = " ".join(f"[{card}]mlx5_{card}:1/IB" for card in range(GPUS))
    texts = [
        "cudaDriverVersion 12080",
        "NCCL_SOCKET_IFNAME set by environment to eth0",
        f"Bootstrap: Using {address}",
        "NCCL version 2.26.2+cuda12.2",
        "NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.",
        "NCCL_IB_HCA set to mlx5",
        f"NET/IB : Using {cards} [RO]; OOB {address}",
        "PROFILER/Plugin: Could not find: libnccl-profiler.so.",
        "Using network IB",
        f"DMA-BUF is available on GPU device {gpu}",
        f"ncclCommInitRankConfig {comm} - Init START",
        (
            f"Bootstrap timings total 0.{source.randrange(10**6):06} (create 0.000029, "
            f"send 0.000073, recv 0.{source.randrange(10**6):06}, ring 0.000164, delay 0.000000)"
        ),
        f"Setting affinity for GPU {gpu} to {source.getrandbits(64):016x}",
        (
            f"comm 0x{source.getrandbits(47):x} rank {rank} nRanks {world} nNodes {world // GPUS} "
            f"localRanks {GPUS} localRank {gpu} MNNVL 0"
        ),
        _trees(rank, world),
        "P2P Chunksize set to 131072",
        *_channels(rank, world),
        "Connected all rings, use ring PXN 0 GDR 1",
        "Connected all trees",
        f"[Proxy Service] Device {gpu} CPU core {source.randrange(200)}",
        f"[Proxy Service UDS] Device {gpu} CPU core {source.randrange(200)}",
        "threadThresholds 8/8/64 | 16384/8/64 | 512 | 512",
        (
            f"{CHANNELS} coll channels, {CHANNELS} collnet channels, 0 nvls channels, "
            "8 p2p channels, 1 p2p channels per peer"
        ),
        "TUNER/Plugin: Could not find: libnccl-tuner.so libnccl-net.so.",
        f"ncclCommInitRankConfig {comm} - Init COMPLETE",
        (
            f"Init timings - ncclCommInitRankConfig: rank {rank} nranks {world} total "
            f"{source.random() * 9:.2f} (kernels 0.31, bootstrap {source.random():.2f}, rest 0.00)"
        ),
    ]
    return [who + text for text in texts]


def _trees(rank: int, world: int) -> str:
    """Return the place of a rank in the trees of all channels; -1 where nobody is."""
    parts: list[str] = []
    for channel in range(CHANNELS):
        children = [2 * rank + 1, 2 * rank + 2] if rank % (channel + 2) else [rank + 1]
        below = [str(child) if child < world else "-1" for child in children]
        below += ["-1"] * (3 - len(below))
        parts.append(f"[{channel}] {'/'.join(below)}->{rank}->{(rank - 1) // 2 if rank else -1}")
    return "Trees " + " ".join(parts)


def _channels(rank: int, world: int) -> Iterator[str]:
    gpu = rank % GPUS
    after = (rank + 1) % world
    before = (rank - 1) % world
    for channel in range(CHANNELS):
        path = f"[send] via NET/IB/{channel % GPUS}/GDRDMA" if gpu == GPUS - 1 else "via P2P/CUMEM"
        yield f"Channel {channel:02}/0 : {rank}[{gpu}] -> {after}[{after % GPUS}] {path}"
        if not gpu:
            yield (
                f"Channel {channel:02}/0 : {before}[{before % GPUS}] -> {rank}[0] [receive] "
                f"via NET/IB/{channel % GPUS}/GDRDMA"
            )


def traceback(rank: int, error: str = OUT_OF_MEMORY) -> list[str]:
    """Return the traceback of a rank, 40 lines, as torch prints it since 2.3."""
    lines = ["Traceback (most recent call last):"]
    for depth in range(FRAMES):
        lines += [
            f'  File "/opt/train/model/layer{depth}.py", line {30 + depth}, in forward',
            f"    hidden = self.layers[{depth}](hidden, mask)",
        ]
    lines.append(error)
    return [f"[rank{rank}]: {line}" for line in lines]


def timeout(rank: int, seq: int = 88_123) -> str:
    """Return the line of the watchdog of a rank, as torch 2.3 to 2.9 prints it."""
    return (
        f"[rank{rank}]:[E1121 04:10:{rank % 60:02}.{rank:09} ProcessGroupNCCL.cpp:629] "
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
        "OpType=ALLREDUCE, NumelIn=25557032, NumelOut=25557032, Timeout(ms)=600000) ran for "
        f"{600_000 + rank % 97} milliseconds before timing out."
    )


def steps(ranks: Iterable[int], number: int) -> Iterator[str]:
    """Yield a line of progress of each rank."""
    for rank in ranks:
        loss = 2.5 + rank % 7 / 10
        yield f"[rank{rank}]: step {number} loss {loss:.4f} tokens/s {rank * 13 % 997}"
