"""The package's build: the C library goes into the wheel, where there is a compiler.

`ziglang` is what the build asks pip for; it compiles for Linux and Windows. Without it, the
system's own compiler makes the Linux library; without any, the wheel has none.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LibraryHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the C library. `folder` in the configuration says where it lies in the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and put the libraries among the wheel's files."""
        if self.target_name != "wheel" or version == "editable":
            return
        build = _build_module(Path(self.root))
        self._made = tempfile.TemporaryDirectory(prefix="vermilion-build-")
        for system in build.wanted_systems():
            for files, write in (
                (build.LIBRARY_FILES, build.build_library),
                (build.PLUGIN_FILES, build.build_plugin),
            ):
                name = files[system]
                library = Path(self._made.name, name)
                try:
                    write(library, system=system, version=self.metadata.version)
                except build.NoCompilerError as error:
                    self.app.display_warning(f"{error}: the wheel has no {name}")
                    continue
                build_data["force_include"][str(library)] = f"{self.config['folder']}/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built."""
        if hasattr(self, "_made"):
            self._made.cleanup()


def _build_module(root: Path) -> ModuleType:
    """Return `vermilion/clib/build.py`, of a package that cannot be imported yet."""
    file = root / "src" / "vermilion" / "clib" / "build.py"
    spec = importlib.util.spec_from_file_location("vermilion_clib_build", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
