"""A callback for Hugging Face's ``Trainer``, by the name of an algorithm.

::

    from bluecomm.transformers import BluecommCallback

    torch.distributed.init_process_group("bluecomm")
    trainer = Trainer(
        model,
        TrainingArguments(use_cpu=True),
        train_dataset=data,
        callbacks=[BluecommCallback("neighbor_allreduce", topology="one_peer")],
    )
    trainer.train()

It works with every subclass of ``Trainer``. The launcher decides how many ranks there
are: ``bfrun -np 4 python train.py``, or torchrun.
"""

from bluecomm.transformers import requirement as requirement  # isort: skip
from bluecomm.transformers.callback import BluecommCallback

__all__ = ["BluecommCallback"]
