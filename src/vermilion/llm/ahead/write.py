"""A compiled decoder → a library to link, or a `.rai` for the C library."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from vermilion.ahead.decoder import DecoderFacts, decoder_header, decoder_source
from vermilion.ahead.link import Library, data_assembly, write_library
from vermilion.ahead.objects import with_prefix
from vermilion.ahead.source import LinkedPart, LinkedTarget
from vermilion.errors import ArtifactError, UnsupportedError
from vermilion.hardware.targets.target import Target
from vermilion.llm.ahead.parts import PART, TABLE_FILE, WEIGHTS_FILE, DecoderParts
from vermilion.llm.engine.image import Image
from vermilion.runtime.archive import write_archive
from vermilion.runtime.artifact import KIND
from vermilion.runtime.manifest import (
    MANIFEST_FILE,
    MODEL_FILE,
    SIGNATURE_FILE,
    Manifest,
    Member,
    PartRecord,
    now,
    sealed,
    tool_versions,
)
from vermilion.store.digest import cache_digest, digest_of, digest_of_file
from vermilion.store.ed25519 import SigningKey
from vermilion.version import VERSION

# Code reaches what it is linked with by 32 bits.
_MOST_LINKED_BYTES = 1_900_000_000


@dataclass(frozen=True, eq=False)
class TargetDecoder:
    """A decoder compiled for one target."""

    target: Target
    image: Image
    parts: DecoderParts


def write_decoder_library(
    made: Sequence[TargetDecoder], output: Path, facts: DecoderFacts
) -> Library:
    """Write a library of a decoder for one target or several, the one with most features first.

    Raises: UnsupportedError for weights that are too large; DeviceError without a C compiler.
    """
    size = sum(one.parts.size_bytes for one in made)
    if size > _MOST_LINKED_BYTES:
        raise UnsupportedError(
            f"the weights, {size / 1e9:.1f} GB, are too large for a library",
            where=str(output),
            hint="write `NAME.rai` and open it with `vermilion_decoder_open`",
        )
    targets = tuple(one.target.name for one in made)
    header = decoder_header(facts, ", ".join(targets), VERSION)
    with tempfile.TemporaryDirectory(prefix="vermilion-") as folder:
        objects, linked = _linked_files(Path(folder), facts.name, made)
        texts = header, decoder_source(facts.name, linked)
        return write_library(Path(folder), output, facts.name, targets, texts, objects)


def _linked_files(
    place: Path, name: str, made: Sequence[TargetDecoder]
) -> tuple[list[Path], list[LinkedTarget]]:
    objects: list[Path] = []
    data: dict[str, Path] = {}
    weights: dict[str, str] = {}
    targets = []
    for at, one in enumerate(made):
        symbol = f"{name}_t{at}"
        prefix = f"{symbol}_{PART}"
        about = {"target": one.target.name, "features": sorted(one.target.features)}
        packed = place / f"{prefix}_weights.bin"
        one.parts.write_weights(packed)
        own = weights.setdefault(digest_of_file(packed), f"{prefix}_weights")
        data[own] = place / f"{own}.bin"
        for kind, content in (("manifest", json.dumps(about).encode()), ("table", one.parts.table)):
            file = place / f"{symbol if kind == 'manifest' else prefix}_{kind}.bin"
            file.write_bytes(content)
            data[file.stem] = file
        table_bytes, weight_bytes = len(one.parts.table), one.parts.size_bytes
        parts = [LinkedPart(PART, prefix, table_bytes, own, weight_bytes, ())]
        for program, files in one.parts.objects.items():
            stage = f"{prefix}_{program}"
            for code in files:
                objects.append(place / f"{stage}_{code.name}")
                objects[-1].write_bytes(with_prefix(code.data, f"{stage}_"))
            functions = tuple(function for code in files for function in code.functions)
            parts.append(LinkedPart(f"{PART}/{program}", stage, 0, "", 0, functions))
        targets.append(LinkedTarget(symbol, len(json.dumps(about)), tuple(parts)))
    return [*objects, data_assembly(place, data)], targets


def write_decoder_bundle(
    made: TargetDecoder, output: Path, key: SigningKey | None = None, model: bytes = b""
) -> None:
    """Write a `.rai` of one part. `model` is the ONNX model whose node it computes, if any.

    Raises: ArtifactError where it cannot be written.
    """
    try:
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as folder:
            place = Path(folder)
            sources = [(MODEL_FILE, place / "model"), *_part_files(made.parts, place)]
            (place / "model").write_bytes(model)
            members = [
                Member(name, file.stat().st_size, digest_of_file(file)) for name, file in sources
            ]
            manifest = _manifest(made, members).to_json()
            own = [(MANIFEST_FILE, manifest)]
            if key is not None:
                signature = key.signature_of(KIND, sha256(manifest).hexdigest())
                own.append((SIGNATURE_FILE, signature))
            for name, content in own:
                (place / name).write_bytes(content)
            first = [(name, place / name) for name, _ in own]
            write_archive(place / "whole", [*first, *sources])
            (place / "whole").replace(output)
    except OSError as error:
        raise ArtifactError(
            f"the model cannot be written: {error.strerror or error}",
            where=str(output),
            hint="choose a folder that you may write to, with room for it",
        ) from error


def _part_files(parts: DecoderParts, place: Path) -> Iterator[tuple[str, Path]]:
    (place / TABLE_FILE).write_bytes(parts.table)
    yield f"{PART}/{TABLE_FILE}", place / TABLE_FILE
    parts.write_weights(place / WEIGHTS_FILE)
    yield f"{PART}/{WEIGHTS_FILE}", place / WEIGHTS_FILE
    for code in (code for files in parts.objects.values() for code in files):
        (place / code.name).write_bytes(code.data)
        yield f"{PART}/{code.name}", place / code.name


def _manifest(made: TargetDecoder, members: Sequence[Member]) -> Manifest:
    files = tuple(m.name.removeprefix(f"{PART}/") for m in members if m.name != MODEL_FILE)
    part = PartRecord(PART, "CPU", PART, (), (), files, 0, 0.0, modelled=False, details={})
    cache_parts = {"decoder": digest_of(made.parts.table)}
    return sealed(
        Manifest(
            digest="",
            created=now(),
            tools=tool_versions(),
            target=made.target.name,
            options={},
            features=tuple(sorted(made.target.features)),
            cache_parts=cache_parts,
            cache_digest=cache_digest(cache_parts),
            inputs=(),
            outputs=(),
            parts=(part,),
            members=tuple(members),
        )
    )
