"""A small fit under Lightning: two processes on the CPU, a validation, a checkpoint."""

import logging
import os
import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("LEVEL"):
    logging.basicConfig(level=os.environ["LEVEL"], stream=sys.stderr)


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _index):
        loss = self.layer(batch[0]).square().mean()
        self.log("train_loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def validation_step(self, batch, _index):
        self.log("val_loss", self.layer(batch[0]).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main():
    lightning.seed_everything(1)
    data = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=os.environ.get("STRATEGY", "ddp"),
        max_epochs=2,
        log_every_n_steps=1,
        profiler=os.environ.get("PROFILER"),
        default_root_dir=os.environ.get("ROOT_DIR", "."),
    )
    trainer.fit(Line(), data, data)


if __name__ == "__main__":
    main()
