"""A Lightning module: the model, its loss, and what is worth logging about the layer.

``python docs/recipes/lightning_module.py``; Lightning writes its checkpoints into the folder ``checkpoints``.
"""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from caffnet import AffineSet, CAffNet, FeedForward, Status


def limits(x):
    """The outputs add up to the first input, and none is negative."""
    return AffineSet.equality([[1.0, 1.0, 1.0]], x[..., :1], names=["total"]) & AffineSet.box(0.0, None, dim=3)


class Allocation(lightning.LightningModule):
    def __init__(self, hidden: int = 64, rate: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.model = CAffNet(FeedForward(2, 3, hidden=hidden), limits, gradient="tangent", on_infeasible="nan")

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, _):
        answer, usable, loss = self.judge(*batch)
        self.log("on the boundary", (answer.status == Status.PROJECTED).float().mean())
        if not usable.any():
            return None  # nothing to learn from in this batch: Lightning takes no step
        self.log("loss", loss, batch_size=int(usable.sum()))
        return loss

    def validation_step(self, batch, _):
        answer, usable, loss = self.judge(*batch)
        if usable.any():
            self.log("validation loss", loss, batch_size=int(usable.sum()))
            self.log("largest violation", answer.violation[usable].max(), reduce_fx="max")
        self.log("infeasible", (answer.status == Status.INFEASIBLE).float().sum(), reduce_fx="sum")

    def judge(self, x, target):
        """The answer, which samples have one, and the loss over those: the values of the others are NaN."""
        answer = self.model.project(x)
        usable = answer.answered
        return answer, usable, (answer.value[usable] - target[usable]).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams["rate"])


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    x = torch.rand(256, 2)
    data = DataLoader(TensorDataset(x, x[:, :1] * torch.tensor([0.5, 0.3, 0.2])), batch_size=32, shuffle=True)
    check = DataLoader(data.dataset, batch_size=256)
    trainer = lightning.Trainer(
        max_epochs=5, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False
    )
    module = Allocation()
    trainer.fit(module, data, check)
    again = Allocation.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)  # hyperparameters come along
    assert torch.equal(again.eval()(x), module.eval()(x))
    print({name: float(value) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
