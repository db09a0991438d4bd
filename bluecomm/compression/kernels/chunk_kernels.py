"""Runs the kernels of a codec on the chunks of tensors."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch

from bluecomm.compression.kernels.threads import share_out


class ChunkKernels:
    """Runs the kernels of a codec, on the device of the tensors.

    A kernel takes the arrays and numbers of the call, and then:

    * A kernel for CPUs takes the first chunk and the end of its share of the chunks.
      If ``check`` runs it, it returns whether all is well with them.
    * A kernel for GPUs works on the chunk of its block. If ``check`` runs it, it takes
      an array with a 1 for each chunk, and writes a 0 where something is wrong.

    Args:
        cpu: The module with the kernels for CPUs.
        load_cuda: Imports the module with the kernels for GPUs, if there is one.
    """

    def __init__(
        self, cpu: ModuleType, load_cuda: Callable[[], ModuleType] | None = None
    ) -> None:
        self._cpu = cpu
        self._load_cuda = load_cuda

    def run(self, name: str, chunks: int, *arguments: torch.Tensor | float) -> None:
        """Run the kernel ``name`` on all chunks; on a GPU, do not wait for its end."""
        if self._is_for_cuda(arguments):
            self._launch(name, chunks, *arguments)
        else:
            self._share_out(name, chunks, *arguments)

    def check(self, name: str, chunks: int, *arguments: torch.Tensor | float) -> bool:
        """Run the kernel ``name`` on all chunks; return whether all is well."""
        if not self._is_for_cuda(arguments):
            return self._share_out(name, chunks, *arguments)
        device = next(one.device for one in arguments if isinstance(one, torch.Tensor))
        well = torch.ones(chunks, dtype=torch.uint8, device=device)
        self._launch(name, chunks, *arguments, well)
        return bool(well.all())

    @staticmethod
    def _is_for_cuda(arguments: tuple[torch.Tensor | float, ...]) -> bool:
        return any(isinstance(one, torch.Tensor) and one.is_cuda for one in arguments)

    def _launch(self, name: str, chunks: int, *arguments: torch.Tensor | float) -> None:
        assert self._load_cuda, "Codec._check refuses the tensors"
        try:
            from bluecomm.compression.kernels.cuda_launch import launch

            kernel = getattr(self._load_cuda(), name)
        except ImportError as error:
            raise RuntimeError(
                "codecs need numba.cuda for CUDA tensors, and it cannot be imported "
                f"({error}); install numba-cuda, or call cpu() first"
            ) from error
        launch(kernel, chunks, arguments)

    def _share_out(
        self, name: str, chunks: int, *arguments: torch.Tensor | float
    ) -> bool:
        kernel = getattr(self._cpu, name)
        arrays = [
            one.numpy() if isinstance(one, torch.Tensor) else one for one in arguments
        ]
        bad = []

        def work(first: int, end: int) -> None:
            well = kernel(*arrays, first, end)
            if well is not None and not well:
                bad.append(first)

        share_out(chunks, work)
        return not bad
