"""A bundle's signature by a key: `manifest.sig`, of the manifest and so of every file."""

from __future__ import annotations

import uuid
from hashlib import sha256
from pathlib import Path

from vermilion.errors import ArtifactError
from vermilion.runtime.bundle import Bundle
from vermilion.runtime.manifest import MANIFEST_FILE, SIGNATURE_FILE, Manifest, read_manifest
from vermilion.store.ed25519 import SIGNATURE_BYTES, SigningKey
from vermilion.store.trust import why_not_trusted

KIND = "bundle"


def sign_bundle(folder: Path, key: SigningKey) -> None:
    """Sign a bundle that is a folder; what signed it before goes.

    Raises: ArtifactError where the folder cannot be written.
    """
    new = folder / f".{SIGNATURE_FILE}.{uuid.uuid4().hex[:12]}"
    try:
        digest = sha256((folder / MANIFEST_FILE).read_bytes()).hexdigest()
        new.write_bytes(key.signature_of(KIND, digest))
        new.replace(folder / SIGNATURE_FILE)
    except OSError as error:
        raise ArtifactError(
            f"the signature cannot be written: {error.strerror or error}",
            where=str(folder),
            hint="choose another folder with `--cache-dir`",
        ) from error


def why_not_signed(bundle: Bundle, manifest: Manifest) -> str:
    """Say why no signature lets the bundle's machine code run here, empty where one does."""
    line = b""
    if bundle.has(SIGNATURE_FILE):
        view = bundle.view(SIGNATURE_FILE)
        line = bytes(view[: SIGNATURE_BYTES + 1])
    data = bytes(bundle.view(MANIFEST_FILE))
    reason = why_not_trusted(KIND, sha256(data).hexdigest(), line)
    # What was read is what is signed: nobody exchanged the mapped file meanwhile.
    if not reason and read_manifest(data, MANIFEST_FILE) != manifest:
        return "its manifest was changed while it was opened"
    return reason
