"""The facts on which the ranks of one compressed_allreduce must agree."""

from __future__ import annotations

import hashlib

import torch

from bluecomm.errors import MismatchError
from bluecomm.ops.refusal import told
from bluecomm.runtime import Communicator

# A head has a digest of the facts, and the facts in words, as far as they fit.
HEAD_NBYTES = 256
_DIGEST_NBYTES = 16


class CompressedAgreement:
    """Compares the facts on which the ranks of one call must agree.

    Args:
        comm: Ranks that take part.
        name: Name of the call.
        facts: The facts, in words.

    Attributes:
        head: The head of this rank; ``torch.uint8``, of ``HEAD_NBYTES``.
    """

    def __init__(self, comm: Communicator, name: str, facts: str) -> None:
        self._comm = comm
        self._name = name
        text = facts.encode()
        digest = hashlib.blake2b(text, digest_size=_DIGEST_NBYTES).digest()
        head = (digest + text)[:HEAD_NBYTES].ljust(HEAD_NBYTES, b"\0")
        self.head = torch.frombuffer(bytearray(head), dtype=torch.uint8)

    def check(self, heads: torch.Tensor) -> None:
        """Raise if the heads of all ranks are not equal. All ranks raise then.

        Raises:
            MismatchError: They differ.
        """
        differing = (heads != heads[0]).any(1).nonzero().flatten().tolist()
        if not differing:
            return
        ranks = self._comm.ranks[0], self._comm.ranks[differing[0]]
        raise told(
            MismatchError.describe(
                f"ranks {ranks[0]} and {ranks[1]} have made different calls",
                operation="compressed_allreduce",
                name=self._name,
                rank=self._comm.world.rank,
                peers=ranks,
                expected=_facts_in(heads[0]),
                got=_facts_in(heads[differing[0]]),
                remedy="Pass the same codec, with the same options, and op, and "
                "tensors of the same shape and type on all ranks",
            )
        )


def _facts_in(head: torch.Tensor) -> str:
    text = bytes(head[_DIGEST_NBYTES:].tolist()).rstrip(b"\0")
    return text.decode(errors="ignore")
