"""Run a program for which one folder is writable and everything else on the machine is not.

Run as a script, ``python -I -S confine.py FOLDER PROGRAM ARGUMENT...``, so that the calling
process, which has threads, never has to fork Python code. Unpacking a hostile archive then cannot
write outside FOLDER, whatever links it makes.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_SYS_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY = 1


def _check(result: int, step: str) -> None:
    if result != 0:
        sys.exit(f"confine: {step}: {os.strerror(ctypes.get_errno())}")


def main(argv: list[str]) -> None:
    """Set up the private view of the mounts, then become the program."""
    folder, command = os.fsencode(argv[1]), argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS), "unshare")
    _check(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "make mounts private")
    _check(libc.mount(folder, folder, None, _MS_BIND, None), "bind")
    for path, flags, on, off in (
        (b"/", _AT_RECURSIVE, _MOUNT_ATTR_RDONLY, 0),
        (folder, 0, 0, _MOUNT_ATTR_RDONLY),
    ):
        attributes = struct.pack("=QQQQ", on, off, 0, 0)
        call = (_SYS_MOUNT_SETATTR, _AT_FDCWD, path, flags, attributes, len(attributes))
        _check(libc.syscall(*call), "mount_setattr")
    # The working directory still lies on the mount beneath the bind.
    os.chdir(folder)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv)
