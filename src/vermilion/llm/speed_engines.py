"""Engines that `llm bench` measures, each opened in a process of its own.

A worker (`vermilion.process`) sleeps between messages:

open   name, setting          → engine, reason, load_s, load_cpu_s
once   prompt, new, seed      → the four times of a `Sample`, peak_rss_mb
bandwidth  threads, buffer_bytes (of each; may be left out) → gb_per_s

A prompt is made of random tokens, so that lengths are exact. Time to first token covers reading
the prompt and making one token; decode is the tokens after it.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vermilion.bench.bandwidth import BUFFER_BYTES, read_bandwidth_gb_per_s
from vermilion.errors import OptionError, UnsupportedError
from vermilion.llm.decoder import EngineOptions
from vermilion.llm.open_model import AnyModel, open_model
from vermilion.memory import peak_rss_mb

OURS = "vermilion"
SPEED_WORKER = ("vermilion.llm.speed_engines",)
# Ids below are often special tokens.
FIRST_ID = 100

Tokens = NDArray[np.int32]
Moment = tuple[float, float]


@dataclass(frozen=True)
class Sample:
    """One measurement: wall time and this process's own, to the first token and after it."""

    first_s: float
    rest_s: float
    first_cpu_s: float
    rest_cpu_s: float


def now() -> Moment:
    """Return the wall's time and this process's own, in seconds."""
    return time.perf_counter(), time.process_time()


def sample_of(begin: Moment, first: Moment, end: Moment) -> Sample:
    """Return the times between three moments."""
    return Sample(first[0] - begin[0], end[0] - first[0], first[1] - begin[1], end[1] - first[1])


def token_moments(generator: Any, tokens: Tokens, new_tokens: int) -> list[Moment]:
    """Return the moments before a prompt is read, after it, and after each new token."""
    moments = [now()]
    generator.append_tokens(tokens)
    moments.append(now())
    for _ in range(new_tokens):
        generator.generate_next_token()
        moments.append(now())
    return moments


def measure_once(opened: AnyModel, length: int, new_tokens: int, seed: int) -> Sample:
    """Read a prompt of random tokens, and make so many new ones."""
    vocabulary = opened.config.model.get("vocab_size")
    tokens = random_prompt(length, vocabulary if isinstance(vocabulary, int) else 0, seed)
    whole = length + new_tokens + 1
    generator = opened.generator({"max_length": whole, "min_length": whole, "do_sample": False})
    moments = token_moments(generator, tokens, new_tokens)
    return sample_of(moments[0], moments[2], moments[-1])


def random_prompt(length: int, vocabulary: int, seed: int) -> NDArray[np.int32]:
    """Return tokens that are no special ones, the same for the same seed.

    A shorter prompt of the same seed is no beginning of a longer one: an engine that keeps what it
    has read (openvino-genai does) would not read that part again.
    """
    low, most = (FIRST_ID, vocabulary) if vocabulary > 2 * FIRST_ID else (0, 64)
    random = np.random.default_rng((seed, length))
    return random.integers(low, most, size=length, dtype=np.int32)


@dataclass(frozen=True)
class SpeedSetting:
    """What an engine is opened on. `gguf` is the same model for engines that read no OGA folder."""

    folder: Path
    gguf: Path | None = None
    threads: int = 1
    engine: str = "auto"  # ours: which of them
    prefill: str = "auto"
    on_cpu: bool = False

    def as_message(self) -> dict[str, object]:
        """Return it as a message can carry it."""
        return {
            "folder": str(self.folder),
            "gguf": str(self.gguf) if self.gguf else "",
            "threads": self.threads,
            "engine": self.engine,
            "prefill": self.prefill,
            "on_cpu": self.on_cpu,
        }

    @staticmethod
    def of_message(message: Mapping[str, Any]) -> SpeedSetting:
        """Read what `as_message` gave."""
        gguf = Path(message["gguf"]) if message["gguf"] else None
        return SpeedSetting(
            Path(message["folder"]),
            gguf,
            message["threads"],
            message["engine"],
            message["prefill"],
            message["on_cpu"],
        )

    def options(self, engine: str) -> EngineOptions:
        """Return the options for one of our engines, or onnxruntime-genai."""
        names = cast("Any", (engine, self.prefill))
        return EngineOptions(self.threads, self.on_cpu, names[0], names[1])


@dataclass(frozen=True)
class OpenEngine:
    """An engine that is ready: `once` takes prompt length, new tokens and a seed."""

    label: str
    reason: str
    once: Callable[[int, int, int], Sample]


@dataclass(frozen=True)
class Peer:
    """Another engine: the module that it needs, and what it is opened on.

    `is_variant`: measured only where it is named.
    """

    module: str
    needs_gguf: bool
    open: Callable[[SpeedSetting], OpenEngine]
    is_variant: bool = False


def open_engine(name: str, setting: SpeedSetting) -> OpenEngine:
    """Open an engine by its name.

    Raises: what opening it raises.
    """
    if name == OURS:
        return _folder_engine(setting, setting.engine)
    return PEERS[name].open(setting)


def peers_for(words: str, gguf: Path | None) -> tuple[str, ...]:
    """Return the peers that a list names; of `installed`, those that are and can run the model.

    Raises: OptionError for a name that there is not; UnsupportedError where it is not installed.
    """
    if words == "installed":
        return tuple(
            name for name, peer in PEERS.items() if not peer.is_variant and not _lacking(peer, gguf)
        )
    chosen = [word.strip() for word in words.split(",") if word.strip() not in ("", "none")]
    for name in chosen:
        if name not in PEERS:
            raise OptionError(
                f"`--against {name}`", hint=f"there are {', '.join(PEERS)}, and `none`"
            )
        lacking = _lacking(PEERS[name], gguf)
        if lacking:
            raise UnsupportedError(f"`{name}` cannot be measured: {lacking}")
    return tuple(dict.fromkeys(chosen))


def _lacking(peer: Peer, gguf: Path | None) -> str:
    if find_spec(peer.module) is None:
        return f"the package `{peer.module}` is not installed"
    if peer.needs_gguf and gguf is None:
        return "it reads GGUF files: give the same model with `--gguf`"
    return ""


def _folder_engine(setting: SpeedSetting, engine: str) -> OpenEngine:
    opened = open_model(setting.folder, setting.options(engine))
    return OpenEngine(
        opened.engine,
        opened.reason,
        lambda length, new, seed: measure_once(opened, length, new, seed),
    )


def _open_stock(setting: SpeedSetting) -> OpenEngine:
    return _folder_engine(setting, "onnxruntime-genai")


def _open_llama_cpp(setting: SpeedSetting) -> OpenEngine:
    import llama_cpp

    longest = 4096
    model = llama_cpp.Llama(
        model_path=str(setting.gguf),
        n_ctx=longest,
        n_threads=setting.threads,
        n_threads_batch=setting.threads,
        flash_attn=True,  # its own program chooses this by itself; it is the faster
        verbose=False,
    )

    def likeliest() -> int:
        # Its own sampler sorts candidates, which is no part of the model's speed.
        logits = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        return int(np.ctypeslib.as_array(logits, (model.n_vocab(),)).argmax())

    def once(length: int, new: int, seed: int) -> Sample:
        tokens = random_prompt(length, model.n_vocab(), seed).tolist()
        model.reset()
        moments = [now()]
        model.eval(tokens)
        for index in range(new):
            token = likeliest()
            if index == 0:
                moments.append(now())
            if index + 1 < new:
                model.eval([token])
        return sample_of(moments[0], moments[1], now())

    return OpenEngine(f"llama.cpp (llama-cpp-python {llama_cpp.__version__})", "", once)


def _open_openvino(setting: SpeedSetting) -> OpenEngine:
    return _openvino_with(setting, {})


def _open_openvino_bf16(setting: SpeedSetting) -> OpenEngine:
    # By itself it quantizes the activations of weights of few bits to 8 bits.
    exact: Mapping[str, int | str] = {
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "INFERENCE_PRECISION_HINT": "bf16",
    }
    return _openvino_with(setting, exact)


def _openvino_with(setting: SpeedSetting, properties: Mapping[str, int | str]) -> OpenEngine:
    import openvino
    import openvino_genai as genai

    pipeline = genai.LLMPipeline(
        str(setting.gguf), "CPU", INFERENCE_NUM_THREADS=setting.threads, **properties
    )
    vocabulary = len(pipeline.get_tokenizer().get_vocab())

    class Noting(genai.StreamerBase):  # type: ignore[misc]
        """Says when each token came: the processor's time of the first is asked nowhere else."""

        def __init__(self, moments: list[Moment]) -> None:
            super().__init__()
            self._moments = moments

        def write(self, token: object) -> Any:
            self._moments.append(now())
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    def once(length: int, new: int, seed: int) -> Sample:
        tokens = random_prompt(length, vocabulary, seed).astype(np.int64)[None]
        inputs = genai.TokenizedInputs(
            openvino.Tensor(tokens), openvino.Tensor(np.ones_like(tokens))
        )
        config = genai.GenerationConfig(max_new_tokens=new, ignore_eos=True, do_sample=False)
        moments = [now()]
        pipeline.generate(inputs, config, Noting(moments))
        return sample_of(moments[0], moments[1], now())

    return OpenEngine(f"openvino-genai {version('openvino-genai')}", "", once)


PEERS: Mapping[str, Peer] = {
    "onnxruntime-genai": Peer("onnxruntime_genai", False, _open_stock),
    "llama.cpp": Peer("llama_cpp", True, _open_llama_cpp),
    "openvino-genai": Peer("openvino_genai", True, _open_openvino),
    "openvino-genai-bf16": Peer("openvino_genai", True, _open_openvino_bf16, is_variant=True),
}


class Worker:
    """What is open in this process."""

    def __init__(self) -> None:
        self._engine: OpenEngine | None = None

    def open(self, name: str, setting: Mapping[str, Any]) -> dict[str, Any]:
        """Open the model in an engine."""
        begin, begin_cpu = time.perf_counter(), time.process_time()
        self._engine = open_engine(name, SpeedSetting.of_message(setting))
        return {
            "engine": self._engine.label,
            "reason": self._engine.reason,
            "load_s": time.perf_counter() - begin,
            "load_cpu_s": time.process_time() - begin_cpu,
        }

    def once(self, prompt: int, new: int, seed: int) -> dict[str, Any]:
        """Generate once. Raises: OptionError where nothing is open."""
        if self._engine is None:
            raise OptionError("a worker has to `open` before this")
        gc.collect()
        sample = self._engine.once(prompt, new, seed)
        return {**dataclasses.asdict(sample), "peak_rss_mb": peak_rss_mb()}

    def bandwidth(self, threads: int, buffer_bytes: int = BUFFER_BYTES) -> dict[str, Any]:
        """Measure what the memory gives."""
        return {"gb_per_s": read_bandwidth_gb_per_s(threads, buffer_bytes)}
