"""Reading the compiled bundle, as a folder or as one `.rai`.

Opening needs no library of graphs: only what asks for the model itself loads one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vermilion.backends.base import Array
from vermilion.errors import ArtifactError
from vermilion.files import aside_of
from vermilion.runtime.bundle import Bundle, Verify, open_bundle
from vermilion.runtime.manifest import (
    MANIFEST_FILE,
    MODEL_FILE,
    SIGNATURE_FILE,
    WEIGHTS_FILE,
    Manifest,
    PartRecord,
    is_ours,
    read_manifest,
)
from vermilion.runtime.summary import Summary, summary_from_json
from vermilion.store.ed25519 import SIGNATURE_BYTES, SigningKey
from vermilion.store.trust import why_not_trusted

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir


SUMMARY_TEXT_FILE = "final-vaiml-pass-summary.txt"
SUMMARY_JSON_FILE = "summary.json"
PART_MODEL_FILE = "part.onnx"

_OUR_FILES = (MODEL_FILE, SUMMARY_JSON_FILE, SUMMARY_TEXT_FILE)


class PartReader:
    """The files of one part of an open bundle (a `PartFiles` for its backend)."""

    def __init__(self, reader: ArtifactReader, part: PartRecord) -> None:
        self._reader = reader
        self._part = part

    def read(self, name: str) -> memoryview:
        """Return the bytes of a file of the part, mapped."""
        if name not in self._part.files:
            raise ArtifactError(
                f"part `{self._part.name}` has no file `{name}`",
                where=str(self._reader.path),
                hint="compile the model again with this version",
            )
        return self._reader.read(f"{self._part.name}/{name}")

    def weights(self) -> Mapping[str, Array]:
        """Return the tensors that `part.onnx` keeps in `weights.bin`, by name, read only."""
        return self._reader.weights_of(f"{self._part.name}/{PART_MODEL_FILE}")


class ArtifactReader:
    """An open bundle. What it hands out stays valid after `close`, as long as it is held."""

    def __init__(self, path: Path, bundle: Bundle, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.is_compiled_here = False  # by this very process, whatever its signature says
        self._bundle = bundle
        self._listed = frozenset(member.name for member in manifest.members)

    @property
    def why_foreign(self) -> str:
        """Why this user does not run the bundle's machine code, empty where this user does."""
        return "" if is_ours(self.manifest) else why_not_signed(self._bundle, self.manifest)

    def read(self, name: str) -> memoryview:
        """Return the bytes of a file of the bundle, mapped."""
        if name not in self._listed:
            raise ArtifactError(f"the bundle has no file `{name}`", where=str(self.path))
        return self._bundle.view(name)

    def part(self, name: str) -> PartReader:
        """Return access to one part's files."""
        for part in self.manifest.parts:
            if part.name == name:
                return PartReader(self, part)
        raise ArtifactError(f"the bundle has no part `{name}`", where=str(self.path))

    def weights(self) -> Mapping[str, Array]:
        """Return the tensors that `model.onnx` keeps in `weights.bin`, by name, read only."""
        return self.weights_of(MODEL_FILE)

    def weights_of(self, name: str) -> Mapping[str, Array]:
        """Return the tensors that a model of the bundle keeps in `weights.bin`, by name."""
        from vermilion.runtime.weights import lent_weights

        stored = self.read(WEIGHTS_FILE) if WEIGHTS_FILE in self._listed else memoryview(b"")
        return lent_weights(self.read(name), stored, f"{self.path}, {name}")

    def model(self) -> ir.Model:
        """Return the model that the bundle was compiled from; large weights stay mapped."""
        import onnx_ir as ir

        from vermilion.runtime.weights import parse_model

        weights = self.weights()
        proto = parse_model(self.read(MODEL_FILE), f"{self.path}, {MODEL_FILE}")
        model = ir.from_proto(proto)
        for name, array in weights.items():
            model.graph.initializers[name].const_value = ir.Tensor(array, name=name)
        return model

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """The model as a message, without its large weights."""
        from vermilion.runtime.weights import parse_model

        return parse_model(self.read(MODEL_FILE), f"{self.path}, {MODEL_FILE}")

    @property
    def metadata(self) -> Mapping[str, str]:
        """The model's own metadata: class names, dictionaries, and so on."""
        return {entry.key: entry.value for entry in self.proto.metadata_props}

    def summary(self) -> Summary:
        """Return the summary of the compilation."""
        return summary_from_json(bytes(self.read(SUMMARY_JSON_FILE)), str(self.path))


def open_artifact(
    path: str | os.PathLike[str], *, verify: bool | Literal["as read"] = True
) -> ArtifactReader:
    """Open a bundle, folder or `.rai`.

    With `verify` every byte is compared with the digests in the manifest, 2 GB/s a core; with
    `as read`, those of each file when it is first asked for; without, so are those of all but the
    weights, which are taken as they are.

    Raises: ArtifactError for whatever is damaged, foreign, unsafe or of another version.
    """
    how: Verify = "as read" if verify == "as read" else "all" if verify else "nothing"
    bundle, manifest = open_bundle(Path(path), verify=how)
    return ArtifactReader(Path(path), bundle, manifest)


def is_replaceable(folder: Path) -> bool:
    """Say whether a folder is empty or a bundle of ours, whole or damaged."""
    try:
        names = {entry.name for entry in folder.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not names or (MANIFEST_FILE in names and any(name in names for name in _OUR_FILES))


KIND = "bundle"


def sign_bundle(folder: Path, key: SigningKey) -> None:
    """Sign a bundle that is a folder; what signed it before goes.

    Raises: ArtifactError where the folder cannot be written.
    """
    place = folder / SIGNATURE_FILE
    try:
        digest = sha256((folder / MANIFEST_FILE).read_bytes()).hexdigest()
        with aside_of(place) as new:
            new.write_bytes(key.signature_of(KIND, digest))
            new.replace(place)
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
