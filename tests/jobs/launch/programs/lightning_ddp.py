"""A LightningModule trained by a Trainer on two nodes, with Lightning's own DDP."""

import json
import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


lightning.seed_everything(1)
data = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=4)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    num_nodes=2,
    strategy="ddp",
    max_steps=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Line(), data)
where = {
    "RANK": trainer.global_rank,
    "LOCAL_RANK": trainer.local_rank,
    "NODE_RANK": trainer.node_rank,
}
print(
    "table",
    json.dumps({**where, "WORLD_SIZE": trainer.world_size, "node": os.uname().nodename}),
    flush=True,
)
print("steps", trainer.global_step, flush=True)
# The process group ends here, and not with the interpreter, where a thread of torch 2.13 once
# aborted a rank that had done its work («terminate called without an active exception»).
torch.distributed.barrier()
torch.distributed.destroy_process_group()
