"""Building an OGA folder: onnxruntime-genai's model builder in a process of its own.

Everything is written into a folder beside the output, which is renamed when it has been checked;
a build that fails or is interrupted leaves its log and nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.llm.build_plan import BuildPlan, check_packages
from vermilion.llm.built_graph import mend_graph
from vermilion.llm.genai_check import check_genai_config
from vermilion.llm.genai_config import read_genai_config
from vermilion.llm.list_operators import OperatorList, Wanted, list_operators
from vermilion.progress import Progress, no_progress

if TYPE_CHECKING:
    from vermilion.llm.perplexity import Perplexity
    from vermilion.llm.rounding.compensate_folder import Compensated

# What the builder and its quantizer print of a layer.
_LAYER = re.compile(r"layers?[. ](\d{1,4})\b")
_LOG_NAME = "build.log"
_ERROR_LINE = re.compile(r"^[\w.]*(Error|Exception)\b.*|^Killed.*", re.ASCII)


@dataclass(frozen=True)
class Built:
    """A folder that was built and read back."""

    folder: Path
    size_bytes: int
    seconds: float
    operators: OperatorList
    mended: tuple[str, ...] = ()  # what the builder had left out
    compensated: Compensated | None = None
    checked: Perplexity | None = None  # against the source


def build(plan: BuildPlan, progress: Progress = no_progress) -> Built:
    """Build the folder that `plan` describes.

    Raises: UnsupportedError for missing packages or a builder that failed, with its last words;
    ModelError where what it wrote is not sound.
    """
    check_packages(from_gguf=plan.is_gguf)
    begin = time.monotonic()
    output, mended = plan.request.output.absolute(), list[str]()
    log = output.with_name(f"{output.name}.{_LOG_NAME}")
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as name:
        workplace = Path(name)
        new = workplace / "built"
        with log.open("w", encoding="utf-8") as stream:
            source = plan.request.source
            if plan.is_gguf:
                source = workplace / "source"
                words = ["-m", "vermilion.llm.gguf_folder", str(plan.request.source.absolute())]
                _run([*words, str(source)], log, stream, plan, progress, "reading GGUF")
            words = _builder_words(plan, source.absolute(), new, workplace / "cache")
            _run(words, log, stream, plan, progress, "building")
            model = new / read_genai_config(new).model_files()[0]
            for said in mend_graph(plan.request.source, model):
                stream.write(f"{said}\n")
                mended.append(said)
            compensated = _compensated(plan, model, progress)
            operators = _checked(new)
            # The builder has written graphs that ONNX Runtime refuses; better found now.
            words = ["-m", "vermilion.llm.stock_engine", str(new)]
            _run(words, log, stream, plan, progress, "loading")
        log.replace(new / _LOG_NAME)
        if output.is_dir():
            output.rmdir()  # the plan saw that it is empty
        new.rename(output)
    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    seconds = time.monotonic() - begin
    checked = _held_against_source(plan, output, progress) if plan.request.is_checked else None
    return Built(output, size, seconds, operators, tuple(mended), compensated, checked)


def _compensated(plan: BuildPlan, model: Path, progress: Progress) -> Compensated | None:
    """Round weights again where that was asked for."""
    request = plan.request
    if request.algorithm != "gptq":
        return None
    from vermilion.llm.rounding.compensate_folder import compensate_folder

    text = "" if request.calibration is None else read_text(request.calibration)
    return compensate_folder(
        request.source, model, is_symmetric=not request.has_zero_points,
        mean_bits=request.most_bits, text=text, progress=progress,
    )  # fmt: skip


def read_text(file: Path) -> str:
    """Return a text.

    Raises: OptionError for a file that is none.
    """
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"the text cannot be read: {error}", where=str(file), hint="a file in UTF-8"
        ) from error


def _held_against_source(plan: BuildPlan, output: Path, progress: Progress) -> Perplexity:
    """Return the perplexity of the folder and of its source, and how far they are apart."""
    from vermilion.llm.decoder import EngineOptions
    from vermilion.llm.perplexity import Text, measure_perplexity

    options = EngineOptions(engine="native")
    return measure_perplexity(
        output, options, Text(), against=(plan.request.source, options), progress=progress
    )


def _builder_words(plan: BuildPlan, source: Path, new: Path, cache: Path) -> list[str]:
    request = plan.request
    options = [f"{key}={value}" for key, value in request.builder_options().items()]
    return [
        *("-m", "vermilion.llm.run_builder"),
        *("-i", str(source), "-o", str(new), "-c", str(cache)),
        *("-p", request.precision, "-e", request.graph),
        *("--extra_options", *options),
    ]


def _run(
    words: Sequence[str],
    log: Path,
    stream: TextIO,
    plan: BuildPlan,
    progress: Progress,
    stage: str,
) -> None:
    """Run Python with these words, copy what it prints into the log, and watch the layers."""
    progress(stage, 0, plan.architecture.layers)
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=offline_environment(),
        encoding="utf-8",
        errors="replace",
    )
    last = ""
    try:
        assert process.stdout is not None, "stdout is a pipe"
        for line in process.stdout:
            stream.write(line)
            layer = _LAYER.search(line)
            if layer is not None:
                done = min(int(layer[1]) + 1, plan.architecture.layers)
                progress(stage, done, plan.architecture.layers)
            if _ERROR_LINE.match(line.strip()):
                last = line.strip()
        code = process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if code:
        raise UnsupportedError(
            f"{stage} failed: {last or f'the process ended with {code}'}",
            where=str(plan.request.source),
            hint=f"all that it printed is in {log}",
        )


def offline_environment() -> dict[str, str]:
    """Return an environment in which nothing is downloaded or reported to anybody."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "ORT_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _checked(folder: Path) -> OperatorList:
    """Read back what was built, through the same doors as anybody's folder."""
    wrong = [one for one in check_genai_config(read_genai_config(folder)) if one.level == "error"]
    if wrong:
        raise ModelError(
            f"the builder's configuration would not load: {wrong[0].what}",
            where=str(folder),
            hint="`pip install onnxruntime-genai==0.18.0` is the version that is known here",
        )
    return list_operators(folder, Wanted(prompt=1))


def free_bytes(output: Path) -> tuple[int, int]:
    """Return the free disk where the output will be, and the memory that can be had."""
    import psutil

    disk = shutil.disk_usage(output.absolute().parent).free
    return disk, int(psutil.virtual_memory().available)
