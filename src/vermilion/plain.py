"""Files that this package has written itself, opened to be read."""

from __future__ import annotations

import os
import stat
from errno import EINVAL
from pathlib import Path
from typing import IO

_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


def open_plain(path: Path) -> IO[bytes]:
    """Open a file, and nothing else that somebody may have put in its place.

    A pipe there would be waited for, a device has no end. Raises: OSError for both.
    """
    file = os.fdopen(os.open(path, _FLAGS), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(EINVAL, "it is no plain file", str(path))
