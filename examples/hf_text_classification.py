"""Train a tiny transformer that classifies texts with Hugging Face's Trainer.

    bfrun -np 4 python examples/hf_text_classification.py
    torchrun --nproc-per-node 4 examples/hf_text_classification.py

The texts are sequences of words drawn here, and the model is built here, so nothing is
downloaded. A text is positive if it has more good words than bad ones.
"""

from __future__ import annotations

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
from bluecomm.transformers import BluecommCallback
from classification import report
from dist_optimizer import WITH_QADAM, make_parser, options_of, qadam_for

WORDS, LENGTH = 40, 12


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


def main() -> None:
    parser = make_parser(__doc__, epochs=8, lr=3e-3)
    parser.add_argument("--samples", type=int, default=1024, help="default: 1024")
    args = parser.parse_args()
    bf.init()
    torch.distributed.init_process_group("bluecomm")
    with tempfile.TemporaryDirectory() as folder:
        model = make_model()
        # Otherwise the Trainer makes AdamW.
        optimizer: torch.optim.Optimizer | None = None
        if args.dist_optimizer in WITH_QADAM:
            optimizer = qadam_for(args, model.parameters(), lr=args.lr)
        elif args.dist_optimizer == "demo":
            optimizer = torch.optim.SGD(model.parameters(), args.lr)
        trainer = Trainer(
            model=model,
            optimizers=(optimizer, None),
            args=TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                num_train_epochs=args.epochs,
                per_device_train_batch_size=args.batch_size,
                learning_rate=args.lr,
                seed=args.seed,
                # Each rank's loss is the mean over its own texts.
                average_tokens_across_devices=False,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=make_texts(args.samples, seed=1),
            callbacks=[BluecommCallback(**options_of(args))],
        )
        trainer.train()
    # The callback has left the average of the models.
    model, test = trainer.model.eval(), make_texts(256, seed=2)
    with torch.no_grad():
        scores = model(torch.stack([text["input_ids"] for text in test])).logits
    labels = torch.tensor([text["labels"] for text in test])
    report(args, model, float((scores.argmax(1) == labels).float().mean()))
    torch.distributed.destroy_process_group()
    trainer.accelerator.state._reset_state(True)


if __name__ == "__main__":
    main()
