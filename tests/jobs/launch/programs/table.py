"""A job without torch: every rank says what it was given."""

import json
import os

NAMES = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE"),
)
given = {name: os.environ.get(name) for name in NAMES}
print("table", json.dumps({**given, "node": os.uname().nodename}), flush=True)
