"""What was compiled here: a signature made with a secret of this user on this machine.

A digest only says that nobody changed something since somebody wrote it. What carries this
machine's signature was written by this program here; machine code from anywhere else is not run
unasked, wherever it lies: in a bundle, in the cache of the language engine or of calibration.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from functools import cache
from pathlib import Path

import platformdirs

from vermilion.plain import open_plain

_KEY_BYTES = 32
_log = logging.getLogger(__name__)


def signature_of(digest: str) -> str:
    """Return this machine's signature of a digest, empty where no secret can be kept."""
    key = _secret()
    return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest() if key else ""


def is_signed_here(digest: str, signature: str) -> bool:
    """Return whether the signature is this machine's."""
    mine = signature_of(digest)
    return bool(mine) and hmac.compare_digest(mine.encode(), signature.encode())


def key_file() -> Path:
    """Return the file of the secret."""
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
        with open_plain(file) as stored:
            key = stored.read(_KEY_BYTES + 1)
    except OSError as error:
        _log.warning(
            "`%s` cannot be written (%s): compiled models are compiled again when opened",
            file,
            error.strerror or error,
        )
        return b""
    # A process that was interrupted while it wrote leaves a short file: no secret.
    return key if len(key) == _KEY_BYTES else b""
