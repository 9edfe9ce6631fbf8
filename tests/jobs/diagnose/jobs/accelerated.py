"""A small training loop under accelerate, which gathers a metric and ends its tracker."""

import os

import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    logger = get_logger("accelerated", log_level=os.environ.get("LEVEL", "INFO"))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    data = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    logger.info("%s", accelerator.state, main_process_only=True)
    for epoch in range(2):
        for batch in data:
            with accelerator.accumulate(model):
                loss = model(batch[0]).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        losses = accelerator.gather(loss.detach())
        accelerator.print(f"epoch {epoch}: mean loss {losses.mean().item():.4f}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
