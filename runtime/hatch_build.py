"""The build of `vermilion-runtime`: the C library of the package beside it, in the wheel."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# What a wheel of one system is for; one of both is for any, and carries both libraries.
_TAGS = {"linux": "manylinux_2_28_x86_64", "windows": "win_amd64"}


class LibraryHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the library; a wheel without it would be of no use, so that is an error."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and put the libraries among the wheel's files."""
        if version == "editable":
            return
        file = Path(self.root).parent / "src" / "vermilion" / "clib" / "build.py"
        spec = importlib.util.spec_from_file_location("vermilion_clib_build", file)
        assert spec is not None
        assert spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = build  # dataclasses look their module up
        spec.loader.exec_module(build)
        self._made = tempfile.TemporaryDirectory(prefix="vermilion-build-")
        systems = build.wanted_systems()
        if not systems:
            raise RuntimeError("the C library is for Linux and Windows on x86-64")
        if len(systems) == 1:
            build_data["tag"], build_data["pure_python"] = f"py3-none-{_TAGS[systems[0]]}", False
        for system in systems:
            name = build.LIBRARY_FILES[system]
            library = Path(self._made.name, name)
            build.build_library(library, system=system, version=self.metadata.version)
            build_data["force_include"][str(library)] = f"vermilion_runtime/lib/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built."""
        if hasattr(self, "_made"):
            self._made.cleanup()
