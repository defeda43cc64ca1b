"""Whose machine code runs here: this user's own, that of trusted keys; any, if the user says so.

Trusted keys stand in the file `trusted_keys` beside the machine's secret: a line a key, 64 hex
digits and a name. Empty lines and those that begin with `#` say nothing.
"""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

from vermilion.errors import ArtifactError, OptionError, Refusal
from vermilion.plain import open_plain
from vermilion.store.ed25519 import signer_of
from vermilion.store.signature import key_file

TRUST_VARIABLE = "VERMILION_TRUST"
UNSIGNED = "its machine code was not made on this machine"

_ROW = re.compile(r"([0-9a-f]{64}) (\S.*)")
_NAME = re.compile(r"[\w.@+-][\w.@+ -]{0,63}")
# Thousands of keys: nobody keeps so many.
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class TrustedKey:
    """A public key, 64 hex digits, and what the user calls it."""

    key: str
    name: str


def trusts_all() -> bool:
    """Return whether the user said that machine code from anywhere may run."""
    return os.environ.get(TRUST_VARIABLE) == "1"


def why_not_trusted(kind: str, digest: str, line: bytes) -> str:
    """Say why a signature does not let machine code run, empty where it does.

    `line` is the signature of the digest of a thing of that kind, empty where there is none.
    """
    if trusts_all():
        return ""
    if not line:
        return UNSIGNED
    signer = signer_of(line, kind, digest)
    if isinstance(signer, Refusal):
        return signer.reason
    if any(row.key == signer for row in trusted_keys()):
        return ""
    return f"its machine code is signed by the key {signer}, which is not trusted here"


def trusted_keys_file() -> Path:
    """Return the file of the trusted keys."""
    return key_file().with_name("trusted_keys")


def trusted_keys() -> tuple[TrustedKey, ...]:
    """Return the trusted keys, in the order in which they were added.

    Raises: ArtifactError for a file with a line that is none.
    """
    file = trusted_keys_file()
    try:
        with open_plain(file) as lines:
            text = lines.read(_MAX_FILE_BYTES).decode("utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(f"the trusted keys cannot be read: {error}", file) from error
    rows = []
    for number, row in enumerate(text.splitlines(), start=1):
        if not row.strip() or row.startswith("#"):
            continue
        found = _ROW.fullmatch(row.rstrip())
        if found is None:
            raise _damaged(f"line {number} of the trusted keys is no key and name", file)
        rows.append(TrustedKey(found[1], found[2]))
    return tuple(rows)


def trust_key(key: str, name: str) -> TrustedKey:
    """Trust a key from now on; one that is trusted already gets the name.

    Raises: OptionError for a name that is none, or that another key has.
    """
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"`{name}` cannot be the name of a key",
            hint="use up to 64 letters, digits, spaces and `._@+-`",
        )
    rows = [row for row in trusted_keys() if row.key != key]
    if any(row.name == name for row in rows):
        raise OptionError(
            f"another key is called `{name}`",
            hint="choose another `--name`, or take that key away with `vermilion trust remove`",
        )
    added = TrustedKey(key, name)
    _write([*rows, added])
    return added


def distrust_key(key_or_name: str) -> TrustedKey:
    """Trust a key no longer. Raises: OptionError where no trusted key has that name or digits."""
    rows = trusted_keys()
    for row in rows:
        if key_or_name in (row.name, row.key):
            _write([other for other in rows if other != row])
            return row
    raise OptionError(
        f"no trusted key is called `{key_or_name}`", hint="`vermilion trust list` shows them"
    )


def _write(rows: list[TrustedKey]) -> None:
    file = trusted_keys_file()
    new = file.with_name(f".{file.name}.{uuid.uuid4().hex[:12]}")
    text = "".join(f"{row.key} {row.name}\n" for row in rows)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as made:
            made.write(text)
        new.replace(file)
    except OSError as error:
        raise ArtifactError(
            f"the trusted keys cannot be written: {error.strerror or error}",
            where=str(file),
            hint="check that you may write to this folder",
        ) from error


def _damaged(problem: str, file: Path) -> ArtifactError:
    return ArtifactError(
        problem, where=str(file), hint="correct the file, or remove it and add the keys again"
    )
