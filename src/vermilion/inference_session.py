"""`Session` with the call forms of an `onnxruntime.InferenceSession`: a model is compiled first."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vermilion.backends.base import Backend
from vermilion.errors import OptionError
from vermilion.hardware.targets.target import Target
from vermilion.runtime.artifact import ArtifactReader
from vermilion.runtime.session import Session as BundleSession

_OURS = ("CPUExecutionProvider", "VermilionNative")


class Session(BundleSession):
    """A compiled model, ready to run. Safe to call from several threads.

    In place of ONNX Runtime's: `Session("model.onnx", options, providers=[…])`. An ONNX file or its
    bytes are compiled for this CPU, or found in the cache.
    """

    def __init__(
        self,
        artifact: str | os.PathLike[str] | bytes | ArtifactReader,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, str]] | None = None,
        *,
        threads: int = 0,
        verify: bool = True,
        backends: Mapping[str, Backend] | None = None,
        target: Target | None = None,
        trust_code: bool = False,
    ) -> None:
        """Open a folder, a `.rai`, an ONNX file, its bytes, or what `open_artifact` gave.

        Of `sess_options` the threads are used. `providers` change nothing: where a model runs is
        decided when it is compiled, and a note says so.
        Raises: OptionError for what is none of these, and what compiling raises.
        """
        threads = threads or int(getattr(sess_options, "intra_op_num_threads", 0) or 0)
        super().__init__(
            _bundle_of(artifact), threads=threads, verify=verify, backends=backends, target=target,
            trust_code=trust_code,
        )  # fmt: skip
        self._session_options = sess_options
        named = [one if isinstance(one, str) else one[0] for one in providers or ()]
        others = [name for name in named if name not in (*_OURS, *self.get_providers())]
        if others:
            self.notes += (
                f"{', '.join(others)} not used: where a model runs is decided when it is compiled "
                "(`vermilion compile MODEL --target NAME`)",
            )


def _bundle_of(
    given: str | os.PathLike[str] | bytes | ArtifactReader,
) -> str | os.PathLike[str] | ArtifactReader:
    if isinstance(given, bytes):
        with tempfile.TemporaryDirectory(prefix="vermilion-") as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(given)
            return _compiled(path)
    if isinstance(given, ArtifactReader):
        return given
    if not isinstance(given, str | os.PathLike):
        raise OptionError(
            f"a session is not opened on a {type(given).__name__}",
            hint="give a folder, a .rai, an ONNX file, or its bytes",
        )
    path = Path(given)
    return _compiled(path) if path.is_file() and path.suffix != ".rai" else given


def _compiled(path: Path) -> Path:
    from vermilion.api import compile_model

    return compile_model(path).artifact
