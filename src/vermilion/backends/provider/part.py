"""A part of a model on its way into a child: its tensors, its file, the folder of the provider."""

from __future__ import annotations

import io
import shutil
import tarfile
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from vermilion.backends.base import Array, Part, Tensors
from vermilion.backends.provider.contract import MODEL_FILE
from vermilion.backends.provider.faults import find_faults
from vermilion.errors import ArtifactError, DeviceError, Refusal, UnsupportedError
from vermilion.ir.literal.run import open_literally, run_literally
from vermilion.ir.opset import static_shape
from vermilion.ir.samples import draw_accepted
from vermilion.process.arrays import TensorFile
from vermilion.proof.bounds import FormatName
from vermilion.proof.judge import Question

_DAMAGED = "the bundle is damaged: compile the model again"
_FORBIDDEN = frozenset('\\:*?"<>|')
# Of Windows, with or without an ending.
_DEVICES = frozenset(
    ("con", "prn", "aux", "nul", "conin$", "conout$",
     *(f"{port}{n}" for port in ("com", "lpt") for n in "123456789¹²³"))
)  # fmt: skip
_LONGEST_NAME = 255


def pack_folder(folder: Path, target: Path) -> None:
    """Move what is in a folder, which need not exist, into a TAR.

    Raises: DeviceError for a file with a name that `unpack_folder` refuses, and for one that cannot
    be read or has no room.
    """
    names: set[str] = set()
    try:
        # A file of two names is kept twice: `unpack_folder` takes no links.
        with tarfile.open(target, "w", dereference=True) as archive:
            for path in written_files(folder):
                name = path.relative_to(folder).as_posix()
                if not _is_plain_name(name) or _folded(name) in names:
                    raise _not_kept(f"{name!a}", folder, "every system must take its name")
                names.add(_folded(name))
                archive.add(path, name, filter=_plain)
    except OSError as error:
        raise _not_kept(error.strerror or str(error), folder, _ROOM) from error
    shutil.rmtree(folder, ignore_errors=True)


def written_files(folder: Path) -> list[Path]:
    """Return the plain files in a folder, which need not exist.

    Raises: DeviceError where they cannot be listed: paths may be longer than any may be.
    """
    try:
        found = sorted(folder.rglob("*")) if folder.is_dir() else []
        return [path for path in found if not path.is_symlink() and path.is_file()]
    except OSError as error:
        raise _not_kept(error.strerror or str(error), folder, _ROOM) from error


_ROOM = "make room for it; where there is, report it to AMD with the model"


def _not_kept(what: str, folder: Path, hint: str) -> DeviceError:
    return DeviceError(
        f"the provider wrote a file that cannot be kept: {what}", where=str(folder), hint=hint
    )


def _folded(name: str) -> str:
    """Return what systems that ignore case take a name for."""
    return unicodedata.normalize("NFC", name).casefold()


def _is_plain_name(name: str) -> bool:
    """Say whether every system takes a name, which leads nowhere else."""
    return all(
        segment not in ("", ".", "..")
        and segment.isprintable()
        and not set(segment) & _FORBIDDEN
        and not segment.endswith((".", " "))
        and segment.partition(".")[0].rstrip(" ").lower() not in _DEVICES
        and len(segment.encode("utf-8", "replace")) <= _LONGEST_NAME
        for segment in name.split("/")
    )


def unpack_folder(data: memoryview, folder: Path) -> None:
    """Write the files of a TAR below a folder.

    Raises: ArtifactError for a damaged one, or one whose files lead elsewhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                _write_member(archive, member, folder)
    except (tarfile.TarError, EOFError) as error:
        raise ArtifactError(
            f"the provider's files cannot be unpacked: {error}", hint=_DAMAGED
        ) from error


def _write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    content = archive.extractfile(member) if member.isfile() else None
    if content is None or not _is_plain_name(member.name):
        raise ArtifactError(
            f"the provider's files cannot be unpacked: `{member.name}` is no plain file below them",
            hint=_DAMAGED,
        )
    path = folder.joinpath(*member.name.split("/"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.read())


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out what differs from run to run: times, owners."""
    member.mtime = 0
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def tensor_files(kind: str, values: Sequence[ir.Value]) -> tuple[TensorFile, ...]:
    """Return a file for each tensor. `kind`, `input` or `output`, is in their names.

    Raises: UnsupportedError for a tensor without a fixed shape or a plain type.
    """
    found = []
    for number, value in enumerate(values):
        shape = static_shape(value)
        if shape is None or value.dtype is None or value.dtype.numpy().kind not in "fiub":
            raise UnsupportedError(
                f"the {kind} `{value.name}` has no fixed shape or no plain type",
                hint="bind the model's dimensions with `--dim`",
            )
        dtype = value.dtype.numpy().str
        found.append(TensorFile(value.name or "", f"{kind}{number}.raw", dtype, shape))
    return tuple(found)


def write_model(serialized: bytes, weights: Mapping[str, Array], folder: Path) -> None:
    """Write a whole model: the weights that `split_weights` took out, where it says they lie."""
    (folder / MODEL_FILE).write_bytes(serialized)
    proto = onnx.ModelProto.FromString(serialized)
    for tensor in proto.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}
        path = folder / Path(place["location"]).name
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(int(place.get("offset", "0")))
            file.write(weights[tensor.name].tobytes())


def accepted_inputs(part: Part) -> Tensors:
    """Return a sample that the part's literal run takes.

    Raises: DeviceError where none is found: what the device computes could not be checked.
    """
    drawn = draw_accepted(part.model, "ordinary", open_literally(part.model).run)
    if isinstance(drawn, Refusal):
        raise DeviceError(
            f"no sample was found to check its numbers with: {drawn.reason}",
            where=part.name,
            hint="the part runs on the CPU instead",
        )
    return drawn[0].inputs


def check_numbers(
    part: Part, inputs: Tensors, found: Tensors, form: FormatName, model: ir.Model | None = None
) -> None:
    """Hold what the child computed against the literal run of the part.

    `form` is the number format that the provider computes in; `model` the part with the roundings
    of that format written into it, the part's own model by default.

    Raises: DeviceError.
    """
    literal = part.model if model is None else model
    reference = run_literally(literal, inputs).outputs
    leading = {len(array) for array in inputs.values() if array.ndim > 1}
    batch = leading.pop() if len(leading) == 1 else None
    faults = find_faults(Question(literal, inputs, reference, found, form), batch=batch)
    if faults:
        raise DeviceError(
            "; ".join(f"output `{fault.output}`: {fault.words}" for fault in faults[:3]),
            where=part.name,
            hint="the provider computes something else than the CPU; report it to AMD with the"
            " smallest model that shows it (`compile --bisect`)",
        )
