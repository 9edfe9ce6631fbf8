"""Training that meets trouble and goes on: a read is tried again, errors are caught."""

import logging
import os
import sys
import time
import traceback
import warnings

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
log = logging.getLogger("train")


def read(attempt):
    if attempt == 0:
        raise TimeoutError("timed out reading shard-00017.tar, retrying")
    return torch.ones(8, 16)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
    for step in range(int(os.environ.get("STEPS", "12"))):
        attempt = 0 if step == 3 and rank == 1 else 1
        try:
            batch = read(attempt)
        except TimeoutError:
            log.exception("rank %d: reading failed, attempt 1 of 3", rank)
            batch = read(1)
        loss = model(batch).square().mean()
        loss.backward()
        if step == 5:
            warnings.warn("Error fetching the card: no network; using the cached one", stacklevel=1)
            try:
                raise RuntimeError("CUDA error: out of memory probe at batch 512, taking 256")
            except RuntimeError:
                traceback.print_exc(file=sys.stdout)
        log.info("step %d loss %.4f grad overflow: skipping 0 steps, timeout=1800", step, loss)
        time.sleep(0.05)
    dist.barrier()
    dist.destroy_process_group()
    log.info("training finished: 0 failed steps, 0 errors")


if __name__ == "__main__":
    main()
