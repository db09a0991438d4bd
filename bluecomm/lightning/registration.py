"""Makes the strategies known to Lightning by name."""

from __future__ import annotations

from lightning.fabric.strategies import STRATEGY_REGISTRY
from lightning.pytorch.strategies import StrategyRegistry

from bluecomm.lightning.fabric_strategy import BluecommFabricStrategy
from bluecomm.lightning.trainer_strategy import BluecommStrategy
from bluecomm.optim.registry import algorithm_names


def register() -> None:
    """Register ``bluecomm``, and ``bluecomm_`` with the name of each algorithm."""
    for registry, strategy in (
        (StrategyRegistry, BluecommStrategy),
        (STRATEGY_REGISTRY, BluecommFabricStrategy),
    ):
        registry.register(
            "bluecomm", strategy, description="neighbor_allreduce of bluecomm"
        )
        for name in algorithm_names():
            registry.register(
                f"bluecomm_{name}",
                strategy,
                description=f"{name} of bluecomm",
                algorithm=name,
            )
