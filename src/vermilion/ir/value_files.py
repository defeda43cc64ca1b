"""What a model takes and gives, in files: `.npz`, one `.npy`, or a folder of `.npy` and an index.

    file or folder ⇄ plain arrays + index ⇄ values by name

A plain array is one that `numpy.load` opens without pickle. Other values are made of such: numbers
that numpy lacks become wider ones (bfloat16 → float32, int4 → int8), texts of one width, sequences
and maps several arrays. The index says what they were; an `.npz` has one only where it is needed.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vermilion.errors import OptionError
from vermilion.files import aside_of, resolved, writing
from vermilion.ir.arrays import INDEX_MEMBER, npz_index, read_npy, read_npz

Array = NDArray[Any]

INDEX_FILE = "index.json"
_FORMAT = 1
# Numbers of other kinds than numpy's own; each value of theirs is one of the wider type's.
_WIDER: dict[np.dtype[Any], type[np.generic]] = {
    np.dtype(getattr(ml_dtypes, name)): wider
    for wider, names in (
        (
            np.float32,
            "bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
            " float4_e2m1fn",
        ),
        (np.int8, "int2 int4"),
        (np.uint8, "uint2 uint4"),
    )
    for name in names.split()
    if hasattr(ml_dtypes, name)
}
_BY_NAME = {dtype.name: dtype for dtype in _WIDER}
# Texts of one width: beyond this, and sixteen times what the texts are, they go into the index.
_WIDE_BYTES = 64 << 20
# Of a name in a ZIP, with room for the ending.
_MOST_NAME_BYTES = 65_000


def plain_array(value: object) -> Array:
    """Return an array that `numpy.load` opens without pickle: wider numbers, texts of one width."""
    array = np.asarray(value)
    if array.dtype in _WIDER:
        return array.astype(_WIDER[array.dtype])
    if array.dtype.kind == "O":
        return np.array(array.tolist(), dtype=np.str_).reshape(array.shape)
    return array


def write_values(path: Path, values: Mapping[str, object]) -> None:
    """Write values, aside and then under their name: the ending says how.

    Raises: OptionError where this form cannot hold them, or something else is there; DeviceError
    where they cannot be written.
    """
    parts = _Parts()
    index = {name: parts.add(name, value) for name, value in values.items()}
    if path.suffix == ".npy" and (len(index) != 1 or len(parts.arrays) != 1):
        raise OptionError(
            f"a .npy file holds one array; the outputs are {', '.join(map(_quoted, values))}",
            where=str(path),
            hint=_OTHER_FORMS,
        )
    is_folder = path.suffix not in (".npz", ".npy")
    if is_folder:
        _check_replaceable(path)
    path = path if is_folder else resolved(path)  # of a link, what it leads to
    with writing(path, "the folder" if is_folder else "the file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside_of(path, path.suffix) as aside:
            if path.suffix == ".npz":
                _write_npz(aside, parts, index)
            elif path.suffix == ".npy":
                np.save(aside, next(iter(parts.arrays.values())), allow_pickle=False)
            else:
                aside.mkdir()
                _write_folder(aside, parts, index)
                if path.exists():
                    shutil.rmtree(path)
            aside.replace(path)


def check_form(path: Path) -> None:
    """Refuse an ending that no form has. Raises: OptionError."""
    if path.suffix not in ("", ".npz", ".npy"):
        raise OptionError(
            f"the output `{path}` is neither NAME.npz, NAME.npy nor a folder", hint=_OTHER_FORMS
        )
    if not path.suffix:
        _check_replaceable(path)


def read_values(path: Path) -> dict[str, Any]:
    """Read an `.npz`, or a folder that `write_values` wrote; plain arrays need no index.

    Raises: OptionError where it is missing or damaged.
    """
    if not path.is_dir():
        return _put_together(read_npz(path), npz_index(path), path)
    try:
        index = json.loads((path / INDEX_FILE).read_text(encoding="utf-8"))
        files = {str(key): str(name) for key, name in index["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(
            f"the folder has no `{INDEX_FILE}` that can be read",
            where=str(path),
            hint="name a folder that `vermilion run --output FOLDER` wrote, or a .npz file",
        ) from error
    if any(Path(name).name != name for name in files.values()):
        raise _damaged(path, "it names files outside of the folder")
    arrays = {key: read_npy(path / name) for key, name in files.items()}
    return _put_together(arrays, index, path)


_OTHER_FORMS = "name it NAME.npz, or a folder: a .npy file for each output, and an index"


def _quoted(name: str) -> str:
    return f"`{name}`"


class _Parts:
    """Values taken apart: plain arrays by a key of their own, which is their name where it can."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.needs_index = False

    def add(self, key: str, value: object) -> dict[str, object]:
        """Keep a value; give what the index says of it."""
        if value is None:
            self.needs_index = True
            return {"none": True}
        if isinstance(value, list | tuple):
            self.needs_index = True
            return {"sequence": [self.add(f"{key}[{at}]", one) for at, one in enumerate(value)]}
        if isinstance(value, Mapping):
            self.needs_index = True
            keys, items = list(value), list(value.values())
            is_flat = all(np.isscalar(one) for one in items)
            return {
                "keys": self.add(f"{key} keys", np.array(keys)),
                "values": self.add(f"{key} values", np.array(items) if is_flat else items),
            }
        return self._add_array(key, np.asarray(value))

    def _add_array(self, key: str, array: Array) -> dict[str, object]:
        while key in self.arrays:
            key += "_"
            self.needs_index = True
        said: dict[str, object] = {"array": key}
        if array.dtype.kind == "O":
            texts = [str(one) for one in array.reshape(-1).tolist()]
            longest, total = max(map(len, texts), default=0), sum(map(len, texts))
            too_wide = 4 * longest * len(texts) > max(_WIDE_BYTES, 64 * total)
            # Numpy takes zeros at the end of a text for its end.
            if too_wide or any(text.endswith("\0") for text in texts):
                self.needs_index = True
                return {"texts": texts, "shape": list(array.shape)}
        if array.dtype in _WIDER:
            self.needs_index = True
            said["dtype"] = array.dtype.name
        self.arrays[key] = plain_array(array)
        return said


def _put_together(arrays: Mapping[str, Array], index: Any, path: Path) -> dict[str, Any]:
    if index is None:
        return dict(arrays)
    try:
        if index["format"] != _FORMAT:
            raise _damaged(path, f"its index has format {index['format']}")
        return {str(name): _value(said, arrays) for name, said in index["values"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"its index does not fit: {type(error).__name__}: {error}") from error


def _value(said: Mapping[str, Any], arrays: Mapping[str, Array]) -> Any:
    if "none" in said:
        return None
    if "sequence" in said:
        return [_value(one, arrays) for one in said["sequence"]]
    if "keys" in said:
        keys, items = (_value(said[part], arrays) for part in ("keys", "values"))
        found = items.tolist() if isinstance(items, np.ndarray) else items
        return dict(zip(keys.tolist(), found, strict=True))
    if "texts" in said:
        return np.array(said["texts"], object).reshape(said["shape"])
    array = arrays[said["array"]]
    return array.astype(_BY_NAME[said["dtype"]]) if "dtype" in said else array


def _index(index: Mapping[str, object]) -> dict[str, object]:
    return {"format": _FORMAT, "values": index}


def _write_npz(path: Path, parts: _Parts, index: Mapping[str, object]) -> None:
    """Write what `numpy.savez` would, under any name."""
    for key in parts.arrays:
        is_taken = key.endswith(".npy") and key.removesuffix(".npy") in parts.arrays
        if is_taken or "\0" in key or len(key.encode("utf-8", "replace")) > _MOST_NAME_BYTES:
            raise OptionError(
                f"a .npz file cannot tell an array called `{key[:80]}` from others",
                where=str(path.parent),
                hint="write a folder: `--output FOLDER`",
            )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for key, array in parts.arrays.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)
        if parts.needs_index:
            archive.writestr(INDEX_MEMBER, json.dumps(_index(index)))


def _write_folder(folder: Path, parts: _Parts, index: Mapping[str, object]) -> None:
    """Write files of names of ours: an output's own may be none that a file can have."""
    files = {key: f"{at:03d}.npy" for at, key in enumerate(parts.arrays)}
    for key, name in files.items():
        np.save(folder / name, parts.arrays[key], allow_pickle=False)
    text = json.dumps({**_index(index), "files": files}, indent=1)
    (folder / INDEX_FILE).write_text(text + "\n", encoding="utf-8")


def _check_replaceable(path: Path) -> None:
    if not path.exists():
        return
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else {path.name}
    others = {name for name in names if name != INDEX_FILE and not name.endswith(".npy")}
    if others or (names and INDEX_FILE not in names):
        raise OptionError(
            "there is something else of that name, which is not replaced",
            where=str(path),
            hint="name a folder that is not there yet, or NAME.npz",
        )


def _damaged(path: Path, problem: str) -> OptionError:
    return OptionError(f"this cannot be read: {problem}", where=str(path), hint="write it again")
