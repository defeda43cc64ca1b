"""What a file is that is no ONNX model, by how it begins, and what to do with it instead."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_BYTES = 512
"""As much of a file as has to be looked at."""

_EXPORT = "export the model to ONNX"
_PICKLE = ("a Python pickle", "opening a pickle runs its code; `vermilion export` makes ONNX")
_WEB = ("a web page", "the download failed; fetch the file again")
_UNPACK = "unpack it first"
_NO_MODEL = "give the `.onnx` file"


@dataclass(frozen=True)
class ForeignFile:
    """What the file is, and what to do instead."""

    what: str
    hint: str


# Where the bytes stand, the bytes, what has them there, and what to do.
_MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    *((0, b"\x80" + bytes([protocol]), *_PICKLE) for protocol in range(2, 6)),
    (0, b"GGUF", "a GGUF language model", "GGUF models are built with `vermilion llm`"),
    (4, b"TFL3", "a TensorFlow Lite model", "convert it with `tf2onnx --tflite`"),
    (4, b"ORTM", "an ONNX Runtime `.ort` model", "use the `.onnx` file it was made from"),
    (0, b"\x89HDF", "a Keras or HDF5 file", f"{_EXPORT} with `tf2onnx`"),
    (0, b"\x93NUMPY", "a NumPy array", "pass arrays with `--input`, and an ONNX model here"),
    (0, b"\x7fELF", "a program or library", _NO_MODEL),
    (0, b"MZ", "a Windows program or library", _NO_MODEL),
    (0, b"\x89PNG", "an image", _NO_MODEL),
    (0, b"\xff\xd8\xff", "an image", _NO_MODEL),
    (0, b"%PDF", "a PDF document", _NO_MODEL),
    (0, b"\x1f\x8b", "a gzip archive", _UNPACK),
    (0, b"BZh", "a bzip2 archive", _UNPACK),
    (0, b"\xfd7zXZ", "an xz archive", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive", _UNPACK),
    (0, b"7z\xbc\xaf", "a 7-Zip archive", _UNPACK),
    (0, b"Rar!", "a RAR archive", _UNPACK),
    (257, b"ustar", "a tar archive", _UNPACK),
    (8, b'{"', "a safetensors file", f"it has weights and no graph; {_EXPORT}"),
)

# The same for text: blanks before it and the case of letters do not matter.
_TEXT: tuple[tuple[bytes, str, str], ...] = (
    (b"<?xml", "an XML file (OpenVINO keeps its graphs so)", _EXPORT),
    (b"<!doctype", *_WEB),
    (b"<html", *_WEB),
    (b"version https://git-lfs", "a Git LFS pointer, not the model", "run `git lfs pull`"),
    (b"{", "a JSON file", _NO_MODEL),
    (b"7767517", "an ncnn graph", _EXPORT),
    (b"#!", "a script", _NO_MODEL),
)


def foreign_file(head: bytes, suffix: str) -> ForeignFile | None:
    """Name the format that a file beginning with `head` has, None where it may be ONNX."""
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08"):
        if suffix.lower() == ".rai":
            hint = "`vermilion run` takes it; here the `.onnx` is needed"
            return ForeignFile("a compiled bundle", hint)
        hint = "`vermilion export` turns a PyTorch model into ONNX"
        return ForeignFile("a ZIP archive (PyTorch checkpoints are such)", hint)
    for offset, magic, what, hint in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return ForeignFile(what, hint)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for start, what, hint in _TEXT:
        if text.startswith(start):
            return ForeignFile(what, hint)
    return None
