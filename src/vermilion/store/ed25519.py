"""Ed25519 keys and signatures, through the `cryptography` package, loaded when they are used.

A signature is one line of a fixed length, so that a C program reads it without a parser:
`ed25519`, the public key and the signature in lower-case hex. What is signed is a text of three
lines that names the kind of thing, so that a signature of one kind is none of another.
Source: RFC 8032, PureEdDSA over edwards25519.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from vermilion.errors import OptionError, Refusal, UnsupportedError

SIGNATURE_BYTES = 202

_LINE = re.compile(rb"ed25519 ([0-9a-f]{64}) ([0-9a-f]{128})\n")
_KEY = re.compile(r"[0-9a-f]{64}")
# A key file has a few hundred bytes; OpenSSH's of an encrypted one under two thousand.
_MAX_KEY_FILE_BYTES = 64 * 1024
_INSTALL = "pip install cryptography"
_NEW_KEY = "make one with `vermilion trust new KEY.pem`"


class SigningKey:
    """A private key; `public` is its other half, 64 hex digits."""

    def __init__(self, private: Any) -> None:
        self._private = private
        self.public: str = private.public_key().public_bytes_raw().hex()

    def signature_of(self, kind: str, digest: str) -> bytes:
        """Return the line that signs the digest of a thing of that kind."""
        signature = self._private.sign(_message(kind, digest)).hex()
        return f"ed25519 {self.public} {signature}\n".encode()


def signer_of(line: bytes, kind: str, digest: str) -> str | Refusal:
    """Return the public key whose signature of a digest this is, or why it is none."""
    found = _LINE.fullmatch(line)
    if found is None:
        return Refusal("its signature is damaged")
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        return Refusal("its signature cannot be checked without `cryptography`", hint=_INSTALL)
    key, signature = found[1].decode(), bytes.fromhex(found[2].decode())
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(
            signature, _message(kind, digest)
        )
    except (InvalidSignature, ValueError):
        return Refusal("its signature does not fit: it was changed since it was signed")
    return key


def read_signing_key(path: Path) -> SigningKey:
    """Read a private key: PEM (PKCS #8) or OpenSSH's form, without a passphrase.

    Raises: OptionError for a file that holds none.
    """
    return SigningKey(_private_key(_key_file(path), path))


def read_public_key(text: str) -> tuple[str, str]:
    """Return a public key in hex and the name that stands beside it, if one does.

    `text` is 64 hex digits or a file: OpenSSH's line, PEM, hex digits, or the private key.

    Raises: OptionError.
    """
    if _KEY.fullmatch(text.lower()):
        return text.lower(), ""
    path = Path(text)
    data = _key_file(path)
    stripped = data.strip().decode("ascii", "replace").lower()
    if _KEY.fullmatch(stripped):
        return stripped, path.stem
    if b"PRIVATE KEY" in data:
        return SigningKey(_private_key(data, path)).public, path.stem
    return _public_key(data, path), _comment(data) or path.stem


def make_key(path: Path) -> SigningKey:
    """Write a new private key, readable by its user alone, and `.pub` beside it.

    Raises: OptionError where one of the files is there already or cannot be written.
    """
    _, ed25519, serialization = _cryptography()
    private = ed25519.Ed25519PrivateKey.generate()
    data = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    line = private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    public = path.with_name(f"{path.name}.pub")
    written: list[Path] = []
    try:
        for file, content, mode in ((path, data, 0o600), (public, line + b"\n", 0o644)):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            written.append(file)
            with os.fdopen(descriptor, "wb") as made:
                made.write(content)
    except OSError as error:
        for file in written:
            with contextlib.suppress(OSError):
                file.unlink()
        raise OptionError(
            f"the key cannot be written: {error.strerror or error}",
            where=str(error.filename or path),
            hint="choose a name that is not taken, in a folder that you may write to",
        ) from error
    return SigningKey(private)


def _message(kind: str, digest: str) -> bytes:
    return f"vermilion signature 1\n{kind}\n{digest}\n".encode()


def _private_key(data: bytes, path: Path) -> Any:
    exceptions, ed25519, serialization = _cryptography()
    problem = ""
    is_openssh = b"OPENSSH PRIVATE KEY" in data
    load = serialization.load_ssh_private_key if is_openssh else serialization.load_pem_private_key
    try:
        key = load(data, None)
        if isinstance(key, ed25519.Ed25519PrivateKey):
            return key
        problem = "it is a key of another kind than Ed25519"
    except TypeError:
        problem = "it has a passphrase"
    except (ValueError, exceptions.UnsupportedAlgorithm):
        problem = "it is no private key in PEM or OpenSSH's form"
    hint = "take the passphrase off a copy" if "passphrase" in problem else _NEW_KEY
    raise OptionError(f"the key cannot be used: {problem}", where=str(path), hint=hint)


def _public_key(data: bytes, path: Path) -> str:
    exceptions, ed25519, serialization = _cryptography()
    is_openssh = data.lstrip().startswith(b"ssh-")
    load = serialization.load_ssh_public_key if is_openssh else serialization.load_pem_public_key
    try:
        key = load(data.strip() if is_openssh else data)
    except (ValueError, exceptions.UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise OptionError(
            "this holds no Ed25519 public key",
            where=str(path),
            hint="give OpenSSH's line (`ssh-ed25519 …`), a PEM file, or 64 hex digits",
        )
    return str(key.public_bytes_raw().hex())


def _comment(data: bytes) -> str:
    """Return what stands behind the key in OpenSSH's line."""
    words = data.decode("utf-8", "replace").split(maxsplit=2)
    return words[2].strip() if len(words) == 3 and words[0].startswith("ssh-") else ""


def _key_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_KEY_FILE_BYTES + 1)
    except OSError as error:
        raise OptionError(
            f"the key cannot be read: {error.strerror or error}", where=str(path), hint=_NEW_KEY
        ) from error
    if len(data) > _MAX_KEY_FILE_BYTES:
        raise OptionError("the file is too large to be a key", where=str(path), hint=_NEW_KEY)
    return data


def _cryptography() -> tuple[Any, Any, Any]:
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise UnsupportedError("signing needs the package `cryptography`", hint=_INSTALL) from error
    return exceptions, ed25519, serialization
