"""Mixing in the loops of Hugging Face and Lightning, with the real libraries."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

pytestmark = pytest.mark.slow


class Rows(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.full((3,), float(index % 5)), "labels": torch.tensor([1.0])}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


def test_the_trainer_of_hugging_face_mixes_after_each_step(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install transformers accelerate")
    pytest.importorskip("accelerate", reason="pip install accelerate")
    from clippedgossip.adapters.hugging_face import TrainerMixing

    model, seen = Net(), []
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=6,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    callback = TrainerMixing(lambda module: seen.append(module), every=2)
    transformers.Trainer(model, arguments, train_dataset=Rows(), callbacks=[callback]).train()
    assert callback.steps == 6
    assert seen == [model] * 3


def test_lightning_mixes_after_each_step_and_not_after_each_batch() -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="pip install lightning")
    from clippedgossip.adapters.lightning_callback import LightningMixing

    class Module(lightning.LightningModule):  # type: ignore[name-defined]  # the library may not be installed
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
            loss: Tensor = self.net(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    module, seen = Module(), []
    trainer = lightning.Trainer(
        max_epochs=1,
        accumulate_grad_batches=3,
        callbacks=[LightningMixing(lambda found: seen.append(found))],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(Rows(), batch_size=4))
    assert trainer.global_step == 2
    assert seen == [module, module]
