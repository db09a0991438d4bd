"""Strategies for PyTorch Lightning and Fabric, by the name of an algorithm.

::

    import bluecomm.lightning

    trainer = Trainer(accelerator="cpu", strategy="bluecomm_neighbor_allreduce")

    trainer = Trainer(
        accelerator="cpu",
        strategy=bluecomm.lightning.BluecommStrategy("neighbor_allreduce", order="atc"),
    )

``Fabric`` takes the same names, and ``BluecommFabricStrategy``. The launcher decides
how many ranks there are: ``bfrun -np 4 python train.py``, torchrun, srun or mpirun. So
``devices`` and ``num_nodes`` need not be given.
"""

from bluecomm.lightning import requirement as requirement  # isort: skip
from bluecomm.lightning.environment import BluecommEnvironment
from bluecomm.lightning.fabric_strategy import BluecommFabricStrategy
from bluecomm.lightning.registration import register
from bluecomm.lightning.trainer_strategy import BluecommStrategy

__all__ = ["BluecommEnvironment", "BluecommFabricStrategy", "BluecommStrategy"]

register()
