"""Registers the backend "bluecomm" with ``torch.distributed``.

torch calls ``register`` through an entry point: torch 2.5 to 2.13 when it is imported
(group ``torch.backends``), later ones when a program names the backend (group
``torch.distributed.backends``). With torch 2.4, ``import bluecomm`` calls it.

This module is not in the package, because an import of one of its modules imports all
of bluecomm. That happens when a program makes a process group with this backend.
"""

from __future__ import annotations

import logging
from typing import Any

NAME = "bluecomm"


def register() -> None:
    """Register the backend, unless it is registered.

    Never raises, because an error here would break ``import torch``.
    """
    try:
        _register()
    except Exception:
        logging.getLogger(NAME).warning(
            "bluecomm cannot be a backend of torch.distributed here", exc_info=True
        )


def register_at_import_of_torch() -> None:
    """Call ``register`` unless this torch does so when a program names the backend."""
    import torch.distributed

    backend = getattr(torch.distributed, "Backend", None)
    if not hasattr(backend, "_ensure_backend_registered"):
        register()


def _register() -> None:
    import torch.distributed

    # Before 2.13, torch refuses to register a name twice.
    if not torch.distributed.is_available() or hasattr(
        torch.distributed.Backend, NAME.upper()
    ):
        return
    torch.distributed.Backend.register_backend(
        NAME, _create_group, extended_api=True, devices=["cpu", "cuda"]
    )


def _create_group(options: Any, backend_options: Any) -> Any:
    """Make a process group, for torch."""
    from bluecomm.torch_backend.backend import create_group

    return create_group(options, backend_options)
