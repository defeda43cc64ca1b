"""Which bundles were compiled here: a seal made with a secret of this user on this machine.

A bundle may hold machine code, and a digest only says that nobody changed it since somebody wrote
it. What carries this machine's seal was written by this program here; code from anywhere else is
not run unasked.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from functools import cache
from pathlib import Path

import platformdirs

_KEY_BYTES = 32
_log = logging.getLogger(__name__)


def seal_of(digest: str) -> str:
    """Give this machine's seal of a bundle's digest, empty where no secret can be kept."""
    key = _secret()
    return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest() if key else ""


def is_sealed_here(digest: str, seal: str) -> bool:
    """Say whether the seal is this machine's."""
    mine = seal_of(digest)
    return bool(mine) and hmac.compare_digest(mine, seal)


def key_file() -> Path:
    """Give the file of the secret."""
    folder = platformdirs.user_data_dir("vermilion", appauthor=False)
    return Path(folder) / "machine.key"


def _secret() -> bytes:
    return _read_or_make(key_file())


@cache
def _read_or_make(file: Path) -> bytes:
    """Read the secret, made the first time; readable by this user alone."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            pass
        else:
            import secrets

            with os.fdopen(descriptor, "wb") as made:
                made.write(secrets.token_bytes(_KEY_BYTES))
        key = file.read_bytes()
    except OSError as error:
        _log.warning(
            "`%s` cannot be written (%s): compiled models are compiled again when opened",
            file,
            error.strerror or error,
        )
        return b""
    # A process that was interrupted while it wrote leaves a short file: no secret.
    return key if len(key) == _KEY_BYTES else b""
