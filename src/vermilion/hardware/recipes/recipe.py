"""One recipe: what has to be there, the script that builds, the script that verifies.

Sources, of which release of ONNX Runtime goes with which of ROCm, and of what it needs to build:
AMD's wheels (repo.radeon.com/rocm/manylinux, from 7.14 on rocm.frameworks.amd.com) for the pairs
from 6.4 on, ONNX Runtime's page of the ROCm provider before; microsoft/onnxruntime, pull request
25181, for the end of that provider; cmake/CMakeLists.txt of each release for the tools.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from vermilion.errors import OptionError
from vermilion.hardware.recipes.verify import verification_script
from vermilion.version import is_older, version_fields

Project = Literal["onnxruntime", "genai"]
Provider = Literal["migraphx", "rocm"]

_GPU = re.compile(r"gfx[0-9]{3,4}[a-f]?")
_NAMES = {"migraphx": "MIGraphXExecutionProvider", "rocm": "ROCMExecutionProvider"}


@dataclass(frozen=True)
class Release:
    """A release of ROCm: ONNX Runtime's tag for it, the providers that can be built, the tools."""

    rocm: str
    tag: str
    providers: tuple[str, ...]
    cmake: str
    gcc: str
    python: str


_BOTH = ("migraphx", "rocm")

# The newest first. A release between two rows takes the older of them.
RELEASES = (
    Release("10.1", "v1.29.0", ("migraphx",), "3.28", "11.1", "3.12"),
    Release("7.2", "v1.23.2", ("migraphx",), "3.28", "11.1", "3.10"),
    Release("7.1", "v1.23.1", ("migraphx",), "3.28", "11.1", "3.10"),
    Release("7.0", "v1.22.1", _BOTH, "3.28", "11.1", "3.10"),
    Release("6.4", "v1.21.0", _BOTH, "3.28", "11.1", "3.10"),
    Release("6.2", "v1.20.1", _BOTH, "3.26", "11.1", "3.10"),
    Release("5.7", "v1.17.3", _BOTH, "3.26", "9.0", "3.8"),
)


def find_release(rocm: str) -> Release:
    """Return the row for a release of ROCm.

    Raises: OptionError for what is no release, or one before the first row.
    """
    if not version_fields(rocm):
        raise OptionError(
            f"`--rocm {rocm}` is no release of ROCm",
            hint="write it as `7.0`; `cat /opt/rocm/.info/version` says which is installed",
        )
    for release in RELEASES:
        if not is_older(rocm, release.rocm):
            return release
    raise OptionError(
        f"there is no recipe for ROCm {rocm}", hint=f"the oldest is {RELEASES[-1].rocm}"
    )


@dataclass(frozen=True)
class Wanted:
    """What is to be built, for which release of ROCm and which GPUs.

    Raises: OptionError for what there is no recipe for.
    """

    project: str
    rocm: str
    gpus: tuple[str, ...]
    provider: str = "migraphx"
    home: str = "/opt/rocm"

    def __post_init__(self) -> None:
        for value, kinds, name in (
            (self.project, get_args(Project), "--build-recipe"),
            (self.provider, get_args(Provider), "--provider"),
        ):
            if value not in kinds:
                raise OptionError(f"`{name} {value}`", hint=f"one of {', '.join(kinds)}")
        wrong = [gpu for gpu in self.gpus if _GPU.fullmatch(gpu) is None]
        if wrong or not self.gpus:
            raise OptionError(
                f"`--gfx {','.join(self.gpus)}` names no GPUs",
                hint="write `--gfx gfx1100`, or several with commas; `rocminfo | grep gfx` says "
                "which is there",
            )

    @property
    def provider_name(self) -> str:
        """Return ONNX Runtime's name of the provider."""
        return _NAMES[self.provider]


@dataclass(frozen=True)
class Need:
    """A tool or package that has to be there, why, and the command that says so."""

    what: str
    why: str
    check: str


@dataclass(frozen=True)
class Recipe:
    """The scripts of a recipe by file name, and what they need."""

    wanted: Wanted
    release: Release
    needs: tuple[Need, ...]
    files: dict[str, str]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """Return the recipe's facts by name."""
        return {
            "project": self.wanted.project,
            "rocm": self.wanted.rocm,
            "gpus": list(self.wanted.gpus),
            "provider": self.wanted.provider_name,
            "tag": self.release.tag,
            "needs": [
                {"what": need.what, "why": need.why, "check": need.check} for need in self.needs
            ],
            "files": self.files,
            "notes": list(self.notes),
        }


def make_recipe(wanted: Wanted) -> Recipe:
    """Return the scripts that build a project for a release of ROCm.

    Raises: OptionError where that release has no such provider.
    """
    release = find_release(wanted.rocm)
    if wanted.provider not in release.providers:
        raise OptionError(
            f"ONNX Runtime {release.tag} for ROCm {wanted.rocm} has no ROCm provider: it ended "
            "with 1.22",
            hint="leave `--provider` out: MIGraphX is AMD's provider since",
        )
    files = {"build_onnxruntime.sh": _onnxruntime_script(wanted, release)}
    if wanted.project == "genai":
        files["build_genai.sh"] = _genai_script(wanted, release)
    files["verify_build.py"] = verification_script(wanted.project, wanted.provider_name)
    return Recipe(wanted, release, _needs(wanted, release), files, _notes(wanted, release))


def write_recipe(recipe: Recipe, folder: Path) -> tuple[Path, ...]:
    """Write the scripts into a folder; shell scripts can be run as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in recipe.files.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        written.append(path)
    return tuple(written)


def _needs(wanted: Wanted, release: Release) -> tuple[Need, ...]:
    home = wanted.home
    rows = [
        Need(f"ROCm {wanted.rocm} in {home}", "headers, libraries and hipcc",
             f"cat {home}/.info/version"),
        Need("the GPU, and rights to it", "to verify; not to build",
             "rocminfo | grep gfx && ls -l /dev/kfd"),
        Need(f"CMake {release.cmake} or newer", "ONNX Runtime's build", "cmake --version"),
        Need(f"GCC {release.gcc} or newer", "ONNX Runtime's host code", "g++ --version"),
        Need(f"Python {release.python} or newer, with headers", "the wheel",
             "python3-config --help"),
        Need("git, ninja, patch", "sources and third parties", "git --version && ninja --version"),
        Need("about 40 GB of disk and 2 GB of memory a job", "a Release build",
             "df -h . && free -g"),
    ]  # fmt: skip
    if wanted.provider == "migraphx":
        rows.insert(
            1,
            Need("MIGraphX with its headers (apt: migraphx migraphx-dev half)", "the provider",
                 f"ls {home}/include/migraphx/migraphx.h"),
        )  # fmt: skip
    else:
        rows.insert(
            1,
            Need("hipBLAS, MIOpen, hipFFT, hipRAND, RCCL, hipCUB (apt: rocm-dev rocm-libs)",
                 "the provider's kernels", f"ls {home}/include/miopen/miopen.h"),
        )  # fmt: skip
    return tuple(rows)


def _notes(wanted: Wanted, release: Release) -> tuple[str, ...]:
    notes = [
        "made from documented switches; nothing was built here",
        "a provider that is built in and cannot load gives a CPU session without an error: "
        "verify_build.py asks the session, not the list of providers",
    ]
    if wanted.provider == "rocm":
        notes.append("1.22 is the last release with the ROCm provider; MIGraphX is AMD's since")
    if wanted.project == "genai":
        notes.append(
            "onnxruntime-genai has no switch for AMD GPUs in its own build.py: it hands the "
            "provider's name to ONNX Runtime; `--use_migraphx` is a fork's, and is used where the "
            "checkout has it"
        )
    if any(gpu.startswith("gfx103") for gpu in wanted.gpus):
        notes.append("MIGraphX is not tested on RDNA 2 by AMD")
    del release
    return tuple(notes)


_HEAD = """#!/usr/bin/env bash
# {what}
set -euo pipefail

ROCM_PATH="${{ROCM_PATH:-{home}}}"
WORK="${{WORK:-$PWD/build-rocm}}"
JOBS="${{JOBS:-$(nproc)}}"
export ROCM_PATH ROCM_HOME="$ROCM_PATH"
export CMAKE_PREFIX_PATH="$ROCM_PATH${{CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}}"
export PATH="$ROCM_PATH/bin:$ROCM_PATH/llvm/bin:$PATH"

need() {{ command -v "$1" >/dev/null || {{ echo "missing: $1 ($2)" >&2; exit 1; }}; }}
need git "apt install git"
need cmake "pip install 'cmake>={cmake}'"
need ninja "pip install ninja"
need g++ "apt install g++"
need hipcc "ROCm: apt install rocm-dev, and PATH with $ROCM_PATH/bin"
have="$(cat "$ROCM_PATH/.info/version" 2>/dev/null || echo unknown)"
case "$have" in
  {rocm}*) ;;
  *) echo "ROCm $have is in $ROCM_PATH, and this recipe is for {rocm}" >&2 ;;
esac
mkdir -p "$WORK"
"""


def _head(wanted: Wanted, release: Release, what: str) -> str:
    return _HEAD.format(what=what, home=wanted.home, cmake=release.cmake, rocm=wanted.rocm)


def _onnxruntime_script(wanted: Wanted, release: Release) -> str:
    title = (
        f"ONNX Runtime {release.tag} with the {wanted.provider_name} for ROCm {wanted.rocm}, "
        + ", ".join(wanted.gpus)
    )
    gpus = ";".join(wanted.gpus)
    if wanted.provider == "migraphx":
        test = 'test -e "$ROCM_PATH/include/migraphx/migraphx.h"'
        hint = "MIGraphX's headers are missing (apt install migraphx-dev half)"
        switches = '--use_migraphx --migraphx_home "$ROCM_PATH"'
    else:
        test = 'test -e "$ROCM_PATH/include/miopen/miopen.h"'
        hint = "MIOpen's headers are missing (apt install rocm-libs)"
        switches = '--use_rocm --rocm_home "$ROCM_PATH" --rocm_version "$have"'
    return (
        _head(wanted, release, title)
        + f"""{test} || {{ echo "{hint}" >&2; exit 1; }}

python3 -m venv "$WORK/venv"
# shellcheck disable=SC1091
. "$WORK/venv/bin/activate"
pip install --upgrade pip 'cmake>={release.cmake}' ninja numpy packaging setuptools wheel pybind11

cd "$WORK"
[ -d onnxruntime ] || git clone --recursive --depth 1 --branch {release.tag} \\
  https://github.com/microsoft/onnxruntime.git
cd onnxruntime
./build.sh --config Release --update --build --parallel "$JOBS" --build_wheel --build_shared_lib \\
  --skip_tests --skip_submodule_sync --allow_running_as_root --cmake_generator Ninja \\
  {switches} \\
  --cmake_extra_defines CMAKE_HIP_COMPILER="$ROCM_PATH/llvm/bin/clang++" \\
    CMAKE_HIP_ARCHITECTURES="{gpus}" onnxruntime_BUILD_UNIT_TESTS=OFF

pip install --force-reinstall build/Linux/Release/dist/*.whl
cmake --install build/Linux/Release --prefix "$WORK/onnxruntime-home"
echo "built; now: $WORK/venv/bin/python verify_build.py"
"""
    )


def _genai_script(wanted: Wanted, release: Release) -> str:
    title = f"onnxruntime-genai on ONNX Runtime {release.tag} for ROCm {wanted.rocm}"
    return (
        _head(wanted, release, title)
        + """# shellcheck disable=SC1091
. "$WORK/venv/bin/activate"
home="${ORT_HOME:-$WORK/onnxruntime-home}"
test -e "$home/include" || { echo "run build_onnxruntime.sh first, or set ORT_HOME" >&2; exit 1; }
# genai looks for the headers in include/ itself and the libraries in lib/.
find "$home/include" -mindepth 2 -name '*.h' -exec cp -u {} "$home/include/" \\;

cd "$WORK"
[ -d onnxruntime-genai ] || git clone --recursive --depth 1 --branch "${GENAI_TAG:-main}" \\
  "${GENAI_SOURCE:-https://github.com/microsoft/onnxruntime-genai.git}"
cd onnxruntime-genai
switch=""
if grep -q -- --use_migraphx build.py; then switch="--use_migraphx"; fi
# shellcheck disable=SC2086
python build.py --config Release --parallel --skip_tests --ort_home "$home" $switch
pip install --force-reinstall --no-deps build/Linux/Release/wheel/*.whl
echo "built; now: $WORK/venv/bin/python verify_build.py FOLDER_OF_A_MODEL"
"""
    )
