"""Train a tiny transformer that classifies texts with Hugging Face's Trainer.

    bfrun -np 4 python examples/hf_text_classification.py
    torchrun --nproc-per-node 4 examples/hf_text_classification.py

The texts are sequences of words drawn here, and the model is built here, so nothing is
downloaded. A text is positive if it has more good words than bad ones.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

import bluecomm as bf
from dist_optimizer import add_arguments, distribute

WORDS, LENGTH = 40, 12


class BluecommTrainer(Trainer):
    """Trains with a distributed optimizer, and without DDP.

    Args:
        dist_options: Options of the command line that choose the optimizer.
        **arguments: Arguments of ``Trainer``.
    """

    def __init__(self, dist_options: argparse.Namespace, **arguments: Any) -> None:
        self.dist_options = dist_options
        super().__init__(**arguments)
        bf.broadcast_parameters(self.model)
        prepare_model = self.accelerator.prepare_model

        def prepare_without_ddp(model: Any, **options: Any) -> Any:
            # Its device is cpu:0, and a move there takes parameters out of the buckets.
            options |= {"evaluation_mode": True, "device_placement": False}
            return prepare_model(model, **options)

        self.accelerator.prepare_model = prepare_without_ddp
        # The Trainer accumulates gradients within this context.
        self.accelerator.no_sync = lambda model: self._distributed.no_sync()

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            plain = super().create_optimizer(model)
            self._distributed = distribute(plain, self.model, self.dist_options)
            self.optimizer = self._distributed
        return self.optimizer


def make_texts(count: int, seed: int) -> list[dict[str, Any]]:
    """Return texts of words 1 to 40, of which the first half is good."""
    generator = torch.Generator().manual_seed(seed)
    texts = torch.randint(1, WORDS + 1, (count, LENGTH), generator=generator)
    positive = (texts <= WORDS // 2).sum(1) > LENGTH // 2
    return [
        {"input_ids": text, "labels": int(label)}
        for text, label in zip(texts, positive, strict=True)
    ]


def make_model() -> BertForSequenceClassification:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS + 1,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--epochs", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=16, help="default: 16")
    parser.add_argument("--lr", type=float, default=3e-3, help="default: %(default)s")
    parser.add_argument("--samples", type=int, default=1024, help="default: 1024")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    bf.init()
    torch.distributed.init_process_group("bluecomm")
    with tempfile.TemporaryDirectory() as folder:
        trainer = BluecommTrainer(
            args,
            model=make_model(),
            args=TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                num_train_epochs=args.epochs,
                per_device_train_batch_size=args.batch_size,
                learning_rate=args.lr,
                seed=args.seed,
                save_strategy="no",
                # Each rank's loss is the mean over its own texts.
                average_tokens_across_devices=False,
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=make_texts(args.samples, seed=1),
        )
        trainer.train()
    model, test = trainer.model.eval(), make_texts(256, seed=2)
    with bf.averaged(model), torch.no_grad():
        scores = model(torch.stack([text["input_ids"] for text in test])).logits
    labels = torch.tensor([text["labels"] for text in test])
    averaged = float((scores.argmax(1) == labels).float().mean())
    result = {
        "dist_optimizer": args.dist_optimizer,
        "ranks": trainer.args.world_size,
        "averaged_model_accuracy": averaged,
        "consensus_distance": float(bf.consensus_distance(model)),
    }
    torch.distributed.destroy_process_group()
    trainer.accelerator.state._reset_state(True)
    if bf.rank() == 0:
        print(f"test accuracy of the averaged model: {100 * averaged:.1f} %")
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()
