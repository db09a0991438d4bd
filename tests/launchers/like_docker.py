"""Runs a command under the limits of a Docker container: ``like_docker.py CMD...``

It gets 64 MB of /dev/shm, and system calls that Docker's default profile refuses to a
container without further capabilities end with EPERM.

Source: Docker's documentation, "Seccomp security profiles for Docker"; seccomp(2).
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys

SHM_NBYTES = 64 << 20

# System call numbers of x86-64. Docker also refuses clone with flags for namespaces,
# unlike this filter.
REFUSED = {
    "ptrace": 101,
    "syslog": 103,
    "personality": 135,
    "pivot_root": 155,
    "acct": 163,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "reboot": 169,
    "init_module": 175,
    "mbind": 237,
    "set_mempolicy": 238,
    "get_mempolicy": 239,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "migrate_pages": 256,
    "unshare": 272,
    "move_pages": 279,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "fsopen": 430,
    "pidfd_getfd": 438,
    "process_madvise": 440,
}

_AUDIT_ARCH_X86_64 = 0xC000003E
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO, _EPERM = 0x7FFF0000, 0x00050000, 1
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2


def program() -> bytes:
    """Return the filter as instructions of classic BPF."""

    def instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    count = len(REFUSED)
    words = [
        instruction(_LOAD, 4),  # seccomp_data.arch
        instruction(_JUMP_IF_EQUAL, _AUDIT_ARCH_X86_64, 0, count + 2),
        instruction(_LOAD, 0),  # seccomp_data.nr
    ]
    # The last instruction refuses, and the one before it allows.
    words += [
        instruction(_JUMP_IF_EQUAL, number, count - position)
        for position, number in enumerate(REFUSED.values())
    ]
    words += [instruction(_RETURN, _ALLOW), instruction(_RETURN, _ERRNO | _EPERM)]
    return b"".join(words)


def refuse_system_calls() -> None:
    """Apply the filter to this process and its descendants."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = program()
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    for words in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.c_char_p(head), 0, 0),
    ):
        if libc.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def main(command: list[str]) -> None:
    """Apply the limits and run ``command``. Needs its own mount namespace."""
    size = f"size={SHM_NBYTES}"
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", "/dev/shm"], check=True
    )
    refuse_system_calls()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
