"""File permissions that count for whoever runs the tests, root too.

Root reads and writes what it has no permission for, since it has the capability to; so that is put down for a while.
Only this thread and those that it starts then are held to the permissions.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

VERSION_3 = 0x20080522
OVERRIDES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
WORDS = 6  # effective, permitted, inheritable, for capabilities 0-31 and again for 32-63


@contextmanager
def permissions_count() -> Iterator[None]:
    """Have a file without read permission not be readable."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * WORDS)()
    _call(libc.capget(header, data))
    effective = data[0]
    data[0] = effective & ~OVERRIDES
    _call(libc.capset(header, data))
    try:
        yield
    finally:
        data[0] = effective
        _call(libc.capset(header, data))


def _call(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
