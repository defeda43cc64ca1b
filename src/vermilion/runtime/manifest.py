"""What a compiled bundle says of itself: `manifest.json`, read strictly."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache

from vermilion.errors import ArtifactError
from vermilion.runtime.fields import Fields, parse_json
from vermilion.runtime.names import check_member_names
from vermilion.store.digest import cache_digest
from vermilion.store.signature import is_signed_here, signature_of

FORMAT_VERSION = 2
MANIFEST_FILE = "manifest.json"
SIGNATURE_FILE = "manifest.sig"
MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "weights.bin"
# A manifest is a few kilobytes; one of a thousand parts is under a megabyte.
MAX_MANIFEST_BYTES = 16 * 1024 * 1024

_SHA256 = re.compile(r"[0-9a-f]{64}")
_HINT = "the bundle is damaged or was changed by hand: compile the model again"
# What may change the bytes of a compiled bundle or how it runs.
TOOLS = ("vermilion", "onnxruntime", "onnx-ir", "onnx", "onnxscript", "numpy")

Dimension = int | str | None


@dataclass(frozen=True)
class Member:
    """A file of the bundle; its digest is that of its pieces, see `pieces`."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class TensorRecord:
    """An input or output of the model. `type` is ONNX Runtime's spelling: `tensor(float)`.

    `shape` is None where the model does not give even the number of dimensions.
    """

    name: str
    type: str
    shape: tuple[Dimension, ...] | None


@dataclass(frozen=True)
class PartRecord:
    """A compiled part; its files lie in the folder of its name."""

    name: str
    device: str
    backend: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    files: tuple[str, ...]
    operators: int
    gops: float
    modelled: bool
    details: Mapping[str, str]


@dataclass(frozen=True)
class Manifest:
    """The bundle's own description. `digest` covers all the rest, and through it every file."""

    digest: str
    created: str  # UTC, ISO 8601
    tools: Mapping[str, str]
    target: str
    options: Mapping[str, str]
    features: tuple[str, ...]  # what the machine must have, for machine code in the parts
    cache_parts: Mapping[str, str]
    cache_digest: str
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    parts: tuple[PartRecord, ...]  # in execution order
    members: tuple[Member, ...]
    format_version: int = FORMAT_VERSION
    seal: str = ""  # this machine's, over the digest; not covered by it

    def to_json(self) -> bytes:
        """Return the bytes of `manifest.json`."""
        return (json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n").encode()


def sealed(manifest: Manifest) -> Manifest:
    """Return the manifest with the digest that its content has, and this machine's seal of it."""
    digest = _content_digest(asdict(manifest))
    return replace(manifest, digest=digest, seal=signature_of(digest))


def is_ours(manifest: Manifest) -> bool:
    """Say whether this user wrote the bundle here: its signature covers the digest of all files."""
    return is_signed_here(manifest.digest, manifest.seal)


def read_manifest(data: bytes, where: str) -> Manifest:
    """Take `manifest.json` apart.

    Raises: ArtifactError for an unknown format version, a missing or unknown key, a wrong type,
    a name that leads out of the bundle, or a digest that does not fit.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise ArtifactError(f"the manifest has {len(data)} bytes", where=where, hint=_HINT)
    value = parse_json(data, where)
    fields = Fields(value, where)
    format_version = fields.integer("format_version")
    if format_version != FORMAT_VERSION:
        raise ArtifactError(
            f"the bundle has format version {format_version}, this program reads {FORMAT_VERSION}",
            where=where,
            hint="compile the model again with this version, or install the version that wrote it",
        )
    manifest = Manifest(
        digest=fields.text("digest"),
        created=fields.text("created"),
        tools=fields.text_map("tools"),
        target=fields.text("target"),
        options=fields.text_map("options"),
        features=fields.texts("features"),
        cache_parts=fields.text_map("cache_parts"),
        cache_digest=fields.text("cache_digest"),
        inputs=tuple(_tensor(tensor) for tensor in fields.objects("inputs")),
        outputs=tuple(_tensor(tensor) for tensor in fields.objects("outputs")),
        parts=tuple(_part(part) for part in fields.objects("parts")),
        members=tuple(_member(member) for member in fields.objects("members")),
        seal=fields.text("seal"),
    )
    fields.finish()
    _check(manifest, value, where)
    return manifest


def tool_versions() -> dict[str, str]:
    """Return the versions of the packages that have a say in what a compiled model is."""
    return {tool: _version(tool) for tool in TOOLS}


def now() -> str:
    """Return the time for `created`."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def _version(tool: str) -> str:
    # Reading manifests needs none of this, and it loads the libraries of mail. They read all that a
    # package says of itself: 5 ms for these, twice for each model that is compiled.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(tool)
    except PackageNotFoundError:
        return "not installed as a package"


def _tensor(fields: Fields) -> TensorRecord:
    name, type_text, dimensions = fields.text("name"), fields.text("type"), None
    listed = fields.items_or_none("shape")
    if listed is not None:
        dimensions = tuple(_known_dimension(item, name) for item in listed)
    fields.finish()
    return TensorRecord(name, type_text, dimensions)


def _known_dimension(item: object, name: str) -> Dimension:
    if item is None or isinstance(item, str):
        return item
    if isinstance(item, int) and not isinstance(item, bool) and item >= 0:
        return item
    raise ArtifactError(f"the shape of `{name}` has a dimension that is none", hint=_HINT)


def _part(fields: Fields) -> PartRecord:
    part = PartRecord(
        name=fields.text("name"),
        device=fields.text("device"),
        backend=fields.text("backend"),
        inputs=fields.texts("inputs"),
        outputs=fields.texts("outputs"),
        files=fields.texts("files"),
        operators=fields.integer("operators"),
        gops=fields.number("gops"),
        modelled=fields.flag("modelled"),
        details=fields.text_map("details"),
    )
    fields.finish()
    return part


def _member(fields: Fields) -> Member:
    member = Member(fields.text("name"), fields.integer("size"), fields.text("sha256"))
    fields.finish()
    return member


def _check(manifest: Manifest, value: object, where: str) -> None:
    if not isinstance(value, dict):
        raise AssertionError("Fields has checked that the manifest is an object")
    if manifest.digest != _content_digest(value):
        raise _damaged("the manifest does not have the digest that it states", where)
    if manifest.cache_digest != cache_digest(manifest.cache_parts):
        raise _damaged("the cache digest does not fit the parts of the cache key", where)
    check_member_names([member.name for member in manifest.members], where)
    for member in manifest.members:
        if not _SHA256.fullmatch(member.sha256):
            raise _damaged(f"`{member.name}` has a sha256 that is none", where)
    _check_parts(manifest, where)


def _check_parts(manifest: Manifest, where: str) -> None:
    present = {member.name for member in manifest.members}
    if not present.isdisjoint((MANIFEST_FILE, SIGNATURE_FILE)):
        raise _damaged("the manifest lists itself, or its signature", where)
    for needed in (MODEL_FILE, *_part_files(manifest.parts)):
        if needed not in present:
            raise _damaged(f"`{needed}` is used and not listed", where)
    known = {tensor.name for tensor in manifest.inputs}
    names: set[str] = set()
    for part in manifest.parts:
        if part.name in names:
            raise _damaged(f"two parts are called `{part.name}`", where)
        names.add(part.name)
        for name in part.inputs:
            if name not in known:
                raise _damaged(f"part `{part.name}` wants `{name}`, which nothing makes", where)
        for name in part.outputs:
            if name in known:
                raise _damaged(f"part `{part.name}` makes `{name}` a second time", where)
            known.add(name)


def _part_files(parts: Sequence[PartRecord]) -> Iterable[str]:
    return (f"{part.name}/{file}" for part in parts for file in part.files)


def _damaged(message: str, where: str) -> ArtifactError:
    return ArtifactError(message, where=where, hint=_HINT)


def _content_digest(content: Mapping[str, object]) -> str:
    rest = {key: value for key, value in content.items() if key not in ("digest", "seal")}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
