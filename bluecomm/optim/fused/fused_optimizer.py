"""The base that fused optimizers have in addition to the user's own class."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from bluecomm.optim.derived_class import copy_as_plain
from bluecomm.optim.fused.fusion import Fusion, FusionCounts
from bluecomm.optim.fused.probe import check_elementwise
from bluecomm.optim.fused.unhooked import unhooked

if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object

# Keys in ``__dict__`` of a fused optimizer: its flat groups, and the optimizer that was
# fused, which schedulers may refer to.
FUSION_KEY = "_bluecomm_fusion"
GIVEN_KEY = "_bluecomm_given"


class Fused(_Base):
    """Steps on flat memory; everything else is as in the class of the optimizer."""

    @property
    def fusion_counts(self) -> FusionCounts:
        """The numbers of steps, and of tensors stepped in them."""
        fusion: Fusion = getattr(self, FUSION_KEY)
        return fusion.counts

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Run the given optimizer's step on flat memory.

        Args:
            closure: Evaluated once, before the step.
            **kwargs: Passed to the given optimizer's step.

        Returns:
            The result of the closure, or else of the given optimizer's step.

        Raises:
            RuntimeError: A parameter or its state has another shape, dtype or device
                than at the start.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.__dict__[GIVEN_KEY].__dict__["_opt_called"] = True
        plain_step = unhooked(super().step)
        result = self.__dict__[FUSION_KEY].step(self, lambda: plain_step(**kwargs))
        return result if closure is None else loss

    # Step hooks see the parameters, not the flat memory.
    step = torch.optim.Optimizer.profile_hook_step(step)
    step.hooked = True  # type: ignore[attr-defined]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a param group, as in the given optimizer.

        Raises:
            ValueError: With the options of this group, the optimizer cannot be fused.
        """
        super().add_param_group(param_group)
        try:
            check_elementwise(self, self.param_groups[-1:])
        except ValueError:
            self.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state from ``state_dict`` of this or of a plain optimizer."""
        super().load_state_dict(state_dict)
        # A scheduler made before fusing still refers to the given optimizer.
        given = self.__dict__[GIVEN_KEY]
        given.__dict__["state"] = self.state
        given.__dict__["param_groups"] = self.param_groups

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A copy is a plain optimizer: its parameters are not in flat memory.
        return copy_as_plain(self)
