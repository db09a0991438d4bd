"""How the ranks of a job get a common secret without an agent.

bfrun's agents and MPI carry the secret themselves. Others can read the key-value stores
of torch, so the secret must not be there. It is in a file that the user provides, or
that rank 0 creates if all ranks are on one machine or share a folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import stat
from pathlib import Path

from bluecomm.errors import BluecommError

_log = logging.getLogger("bluecomm")

_NBYTES = 32


class SecretHandover:
    """Carries rank 0's secret to the other ranks.

    Args:
        file: The user's file on every machine (``BLUECOMM_SECRET_FILE``), or None.
        folder: This rank's folder, which only this user can enter.
        channel: Description of the medium of the offer, for the warning.
        shared_folder: A folder that all machines of the job share, if there is one.
            Other users may be able to enter it.
    """

    def __init__(
        self,
        file: str | None,
        folder: str,
        *,
        channel: str,
        shared_folder: str | None = None,
    ) -> None:
        self._file = file
        self._folder = folder
        self._channel = channel
        self._shared_folder = shared_folder
        self._made: Path | None = None

    def give(self, start: str, *, one_machine: bool) -> tuple[bytes, str]:
        """Return the secret of a start, and the offer to send to the other ranks.

        Args:
            start: Unique name of this start of the job.
            one_machine: Whether all ranks share this machine.

        Raises:
            BluecommError: The file cannot be read or written.
        """
        if self._file is not None:
            return self.take(start, ""), ""
        secret = secrets.token_bytes(_NBYTES)
        folder = self._folder if one_machine else self._shared_folder
        if folder is not None:
            path = Path(folder, f"bluecomm-secret-{start}")
            _write_private(path, secret)
            self._made = path
            return secret, f"file {path}"
        _log.warning(
            "the keys of this job's connections go through %s: anybody who can reach "
            "that port can read them. Give each machine a file of random bytes that "
            "only you can read, and name it in BLUECOMM_SECRET_FILE",
            self._channel,
        )
        return secret, f"open {secret.hex()}"

    def take(self, start: str, offer: str) -> bytes:
        """Return the secret that rank 0 offers.

        Raises:
            BluecommError: The file cannot be read, or other users can read it, or only
                some ranks have one.
        """
        kind, _, value = offer.partition(" ")
        if (self._file is None) != (kind != ""):
            raise BluecommError(
                "init: BLUECOMM_SECRET_FILE is set only on some ranks; set it on all "
                "or on none",
                operation="init",
            )
        if self._file is not None:
            content = _read_private(Path(self._file), "BLUECOMM_SECRET_FILE")
            key = hashlib.sha256(content).digest()
            return hashlib.blake2b(start.encode(), key=key, digest_size=32).digest()
        if kind == "file":
            return _read_private(
                Path(value), "the file of rank 0 with the job's secret"
            )
        return bytes.fromhex(value)

    def forget(self) -> None:
        """Remove the file that ``give`` created, after all ranks have read it."""
        if self._made is not None:
            self._made.unlink(missing_ok=True)
            self._made = None


def _write_private(path: Path, content: bytes) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
    except OSError as error:
        raise BluecommError(
            f"init: the file of the job's secret, '{path}', cannot be written: "
            f"{error.strerror}; make its folder writable, or name a file of random "
            "bytes on each machine in BLUECOMM_SECRET_FILE",
            operation="init",
        ) from None


def _read_private(path: Path, what: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise BluecommError(
            f"init: {what}, '{path}', cannot be read: {error.strerror}",
            operation="init",
        ) from None
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(file.fileno())
        is_private = not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if not stat.S_ISREG(status.st_mode) or not is_private:
            raise BluecommError(
                f"init: {what}, '{path}', must be a file that only its owner can "
                f"read, but its mode is {stat.filemode(status.st_mode)}; chmod 600 it",
                operation="init",
            )
        if status.st_uid != os.geteuid():
            raise BluecommError(
                f"init: {what}, '{path}', belongs to user {status.st_uid}, but "
                f"this process to user {os.geteuid()}",
                operation="init",
            )
        content = file.read()
    if len(content) < 16:
        raise BluecommError(
            f"init: {what}, '{path}', has {len(content)} bytes, but needs at "
            "least 16; fill it with random bytes",
            operation="init",
        )
    return content
