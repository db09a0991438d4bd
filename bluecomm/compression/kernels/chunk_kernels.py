"""Runs the kernels of a codec on the chunks of tensors."""

from __future__ import annotations

from types import ModuleType

import torch

from bluecomm.compression.kernels.threads import share_out
from bluecomm.device.runtime import current_runtime


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on a CUDA device."""
    return current_runtime().index_of(tensor) is not None


class ChunkKernels:
    """Runs the kernels of a codec, on the device of the tensors.

    A kernel takes the arrays and numbers of the call, and then:

    * A kernel for CPUs takes the first chunk and the end of its share of the chunks.
      If ``check`` runs it, it returns whether all is well with them.
    * A kernel for GPUs works on the chunk of its block, or on many of them. If
      ``check`` runs it, it takes an array with True for each chunk, and writes False
      where something is wrong.

    The names of the two modules differ in their ends, ``_cpu`` and ``_cuda``. The
    second one is imported when a kernel for GPUs runs.

    Args:
        cpu: The module with the kernels for CPUs.
    """

    def __init__(self, cpu: ModuleType) -> None:
        self._cpu = cpu

    def run(self, name: str, chunks: int, *arguments: torch.Tensor | float) -> None:
        """Run the kernel ``name`` on all chunks; on a GPU, do not wait for its end."""
        if self._is_for_cuda(arguments):
            self._launch(name, chunks, *arguments)
        else:
            self._share_out(name, chunks, *arguments)

    def check(self, name: str, chunks: int, *arguments: torch.Tensor | float) -> bool:
        """Run the kernel ``name`` on all chunks; return whether all is well."""
        return bool(self.start_check(name, chunks, *arguments))

    def start_check(
        self, name: str, chunks: int, *arguments: torch.Tensor | float
    ) -> torch.Tensor:
        """Do what ``check`` does, but on a GPU do not wait for the end of the kernel.

        Returns:
            Whether all is well, on the device of the tensors; shape ``()``,
            ``torch.bool``.
        """
        if not self._is_for_cuda(arguments):
            return torch.tensor(self._share_out(name, chunks, *arguments))
        first = next(one for one in arguments if isinstance(one, torch.Tensor))
        well = first.new_ones(chunks, dtype=torch.bool)
        self._launch(name, chunks, *arguments, well)
        return well.all()

    @staticmethod
    def _is_for_cuda(arguments: tuple[torch.Tensor | float, ...]) -> bool:
        tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
        return any(map(is_on_gpu, tensors))

    def _launch(self, name: str, chunks: int, *arguments: torch.Tensor | float) -> None:
        module = f"{self._cpu.__name__.removesuffix('_cpu')}_cuda"
        current_runtime().launch(module, name, chunks, arguments)

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
