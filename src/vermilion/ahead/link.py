"""A model → a library: `NAME.so`, `NAME.a` or `NAME.o`, its header, and what builds ask for.

Compiled for each target, then linked.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vermilion.ahead.interface import Interface, checked_name, header_text, interface_of
from vermilion.ahead.objects import with_prefix, write_static
from vermilion.ahead.source import LinkedPart, LinkedTarget, source_text
from vermilion.api import Compiled
from vermilion.backends.native_files import TABLE_FILE, WEIGHTS_FILE
from vermilion.clib.build import (
    FLAGS,
    HINT,
    INCLUDE,
    SOURCE,
    CompileFailedError,
    Compiler,
    NoCompilerError,
    compiler,
)
from vermilion.clib.library import linked_object
from vermilion.codegen.table import RUN, SERVE
from vermilion.errors import DeviceError, OptionError, UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.runtime.artifact import ArtifactReader, open_artifact
from vermilion.version import VERSION

SUFFIXES = (".so", ".a", ".o")


@dataclass(frozen=True)
class Library:
    """What was written: the library, and the files beside it."""

    path: Path
    name: str
    targets: tuple[str, ...]
    header: Path
    pkg_config: Path
    cmake: Path

    def as_json(self) -> dict[str, object]:
        """Return the keys of `library` in `compile --json`."""
        return {
            "path": str(self.path),
            "name": self.name,
            "targets": list(self.targets),
            "header": str(self.header),
            "pkg_config": str(self.pkg_config),
            "cmake": str(self.cmake),
        }


def is_library(output: Path | None) -> bool:
    """Say whether a file is to be a library, by its ending."""
    return output is not None and output.suffix in SUFFIXES


def compile_library(
    compile_for: Callable[[str], Compiled], targets: str, output: Path
) -> tuple[Compiled, Library]:
    """Compile a model for each of `zen2,zen4,zen5`, and write one library of them.

    `compile_for` compiles it for one target. Return what the first of them gave, and the library.

    Raises: OptionError for targets that are no processors; what compiling and `link` raise.
    """
    names = list(dict.fromkeys(filter(None, map(str.strip, targets.split(",")))))
    for name in names:
        if find_target(name).kind != "cpu":
            raise OptionError(
                f"a library is for processors, and `{name}` is none",
                where=str(output),
                hint="`vermilion compile MODEL --target zen4 -o NAME.so`",
            )
    compiled = [compile_for(name) for name in names]
    if not compiled:
        raise OptionError("no target is named", where="--target")
    return compiled[0], link([open_artifact(one.artifact) for one in compiled], output)


def link(bundles: Sequence[ArtifactReader], output: Path) -> Library:
    """Write a library of one model that was compiled for one target or several.

    At run time the one with the most features that the processor has is chosen.

    Raises: UnsupportedError where a part is not native; DeviceError where there is no C compiler.
    """
    name = checked_name(output.stem)
    ordered = sorted(bundles, key=lambda bundle: -len(bundle.manifest.features))
    interface = _common_interface(name, ordered)
    targets = tuple(bundle.manifest.target for bundle in ordered)
    header = header_text(interface, ", ".join(targets), VERSION)
    with tempfile.TemporaryDirectory(prefix="vermilion-") as folder:
        objects, linked = _objects(Path(folder), name, ordered)
        source = source_text(interface, linked)
        return write_library(Path(folder), output, name, targets, (header, source), objects)


def write_library(
    place: Path,
    output: Path,
    name: str,
    targets: tuple[str, ...],
    texts: tuple[str, str],
    objects: Sequence[Path],
) -> Library:
    """Link objects and assembly files with the C library, in an empty folder or theirs.

    `texts` are the header and the source.

    Raises: DeviceError where there is no C compiler, or it refuses.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    header, pkg_config, cmake = (
        output.with_name(f"{name}.{ending}") for ending in ("h", "pc", "cmake")
    )
    (place / header.name).write_text(texts[0], encoding="utf-8")
    (place / "model.c").write_text(texts[1], encoding="utf-8")
    shutil.move(_linked(place, output, name, objects), output)
    shutil.move(place / header.name, header)
    pkg_config.write_text(_pkg_config(name, output.name), encoding="utf-8")
    cmake.write_text(_cmake(name, output), encoding="utf-8")
    return Library(output, name, targets, header, pkg_config, cmake)


def _common_interface(name: str, bundles: Sequence[ArtifactReader]) -> Interface:
    manifests = [bundle.manifest for bundle in bundles]
    first = manifests[0]
    for bundle in bundles:
        for part in bundle.manifest.parts:
            if part.backend != "native":
                raise UnsupportedError(
                    f"part `{part.name}` runs in another runtime (`{part.backend}`): a library "
                    "holds machine code alone",
                    where=str(bundle.path),
                    hint="`vermilion inspect MODEL` says why; `vermilion compile --nodes` where",
                )
    for other in manifests[1:]:
        if (other.inputs, other.outputs) != (first.inputs, first.outputs):
            raise UnsupportedError("the targets' models have different inputs or outputs")
    return interface_of(name, first.inputs, first.outputs)


def _objects(
    place: Path, name: str, bundles: Sequence[ArtifactReader]
) -> tuple[list[Path], list[LinkedTarget]]:
    """Write every target's code, texts and weights to files; equal weights once."""
    objects: list[Path] = []
    targets: list[LinkedTarget] = []
    data: dict[str, Path] = {}
    weights: dict[str, str] = {}
    for at, bundle in enumerate(bundles):
        manifest, symbol = bundle.manifest, f"{name}_t{at}"
        digests = {member.name: member.sha256 for member in manifest.members}
        parts = []
        for number, part in enumerate(manifest.parts):
            prefix, files = f"{symbol}_p{number}", bundle.part(part.name)
            table = json.loads(bytes(files.read(TABLE_FILE)))
            for row in table["objects"]:
                objects.append(place / f"{prefix}_{row['file']}")
                objects[-1].write_bytes(with_prefix(bytes(files.read(row["file"])), f"{prefix}_"))
            data[f"{prefix}_table"] = _written(place, f"{prefix}_table", files.read(TABLE_FILE))
            packed = files.read(WEIGHTS_FILE)
            own = weights.setdefault(digests[f"{part.name}/{WEIGHTS_FILE}"], f"{prefix}_weights")
            if own not in data:
                data[own] = _written(place, own, packed)
            kernels = [function for row in table["objects"] for function in row["functions"]]
            parts.append(
                LinkedPart(
                    part.name, prefix, data[f"{prefix}_table"].stat().st_size, own, len(packed),
                    (*kernels, RUN, SERVE),
                )
            )  # fmt: skip
        text = _about(manifest.to_json())
        data[f"{symbol}_manifest"] = _written(place, f"{symbol}_manifest", memoryview(text))
        targets.append(LinkedTarget(symbol, len(text), tuple(parts)))
    return [*objects, data_assembly(place, data)], targets


def _about(manifest: bytes) -> bytes:
    """Return what a linked model needs to know of itself."""
    whole = json.loads(manifest)
    kept = ("digest", "target", "features", "inputs", "outputs")
    parts = [{"name": part["name"], "backend": part["backend"]} for part in whole["parts"]]
    return json.dumps({**{key: whole[key] for key in kept}, "parts": parts}).encode()


def _written(place: Path, name: str, data: memoryview) -> Path:
    file = place / f"{name}.bin"
    file.write_bytes(data)
    return file


def data_assembly(place: Path, data: Mapping[str, Path]) -> Path:
    """Write an assembly file that has the bytes of files as read-only data, by their symbols."""
    rows = "".join(
        f'.balign 64\n.globl {name}\n.hidden {name}\n{name}:\n.incbin "{path.name}"\n.byte 0\n'
        for name, path in data.items()
    )
    file = place / "data.S"
    text = f'.section .rodata\n{rows}.section .note.GNU-stack,"",@progbits\n'
    file.write_text(text, encoding="utf-8")
    return file


def _linked(place: Path, output: Path, name: str, objects: Sequence[Path]) -> Path:
    try:
        chosen = compiler("linux")
    except NoCompilerError as error:
        raise DeviceError(
            f"a library is linked by a C compiler, and {error}", where=str(output), hint=HINT
        ) from error
    try:
        return _compiled(chosen, place, output, name, objects)
    except CompileFailedError as error:
        raise DeviceError(f"the library cannot be linked: {error}", where=str(output)) from error


def _compiled(
    chosen: Compiler, place: Path, output: Path, name: str, objects: Sequence[Path]
) -> Path:
    flags = [
        *FLAGS, f"-I{INCLUDE}", f"-I{SOURCE}", f"-I{place}",
    ]  # fmt: skip
    library = place / "library.o"
    library.write_bytes(with_prefix(linked_object().read_bytes(), f"{name}_"))
    compiled = [library]
    for text in (place / "model.c", *(path for path in objects if path.suffix == ".S")):
        compiled.append(text.with_suffix(".o"))
        # The paths of `.incbin` are those of the folder.
        chosen.run("linux", [*flags, f"-Wa,-I{place}", "-c", str(text), "-o", str(compiled[-1])])
    compiled += [path for path in objects if path.suffix == ".o"]
    made = place / f"made-{output.name}"
    files = list(map(str, compiled))
    if output.suffix == ".so":
        # -O2 is not for the objects: without it, ziglang first makes a sanitizer's library, which
        # takes 8 s of a processor and is not needed.
        words = ["-shared", "-O2", "-s", f"-Wl,-soname,{output.name}", "-o", str(made)]
        chosen.run("linux", [*words, *files, "-lpthread"])
    elif output.suffix == ".o":
        chosen.run("linux", ["-r", "-nostdlib", "-o", str(made), *files])
    else:
        write_static(made, compiled)
    return made


def _pkg_config(name: str, file: str) -> str:
    return (
        f"Name: {name}\nDescription: a model compiled by Vermilion\nVersion: {VERSION}\n"
        "Cflags: -I${pcfiledir}\n"
        f"Libs: ${{pcfiledir}}/{file} -lpthread\n"
    )


def _cmake(name: str, output: Path) -> str:
    kind = {".so": "SHARED", ".a": "STATIC", ".o": "OBJECT"}[output.suffix]
    where = f"${{CMAKE_CURRENT_LIST_DIR}}/{output.name}"
    place = f"IMPORTED_OBJECTS {where}" if kind == "OBJECT" else f"IMPORTED_LOCATION {where}"
    return (
        f"# include({name}.cmake), then target_link_libraries(YOURS PRIVATE {name}::{name})\n"
        "find_package(Threads REQUIRED)\n"
        f"add_library({name}::{name} {kind} IMPORTED)\n"
        f"set_target_properties({name}::{name} PROPERTIES\n"
        f"  {place}\n"
        "  INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_LIST_DIR}\n"
        "  INTERFACE_LINK_LIBRARIES Threads::Threads)\n"
    )
