"""Results of verbs that take seconds or a device, made here, as the verbs draw them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Group, RenderableType

from vermilion.batch.assemble import Failed
from vermilion.batch.batch import Result as BatchResult
from vermilion.batch.devices import BatchDevice
from vermilion.batch.schedule import DeviceRecord
from vermilion.bench.cases import Case
from vermilion.bench.engines import Engine
from vermilion.bench.harness import Timed
from vermilion.bench.measure import CaseResult, EngineResult
from vermilion.bench.peak import Peak
from vermilion.bench.profile import CaseProfiles, Line, Profile
from vermilion.bench.regress import Delta
from vermilion.bench.tables import suite_tables
from vermilion.cli import (
    batch,
    bench_views,
    devices,
    doctor,
    export,
    llm_run,
    llm_speed,
    plan,
)  # fmt: skip
from vermilion.cli.fitted import Verbatim
from vermilion.cli.model_benchmark import _lines
from vermilion.errors import DeviceError
from vermilion.export.model import ExportReport, TensorFacts
from vermilion.hardware.checks import Finding
from vermilion.hardware.cpu import CpuInfo
from vermilion.hardware.devices import Machine
from vermilion.hardware.gpu import GpuInfo
from vermilion.hardware.npu import NpuInfo
from vermilion.hardware.providers import ProviderInfo
from vermilion.ir.measure import Agreement
from vermilion.llm.benchmark import Benchmark, Measured, Times
from vermilion.llm.generate import Generated
from vermilion.llm.perplexity import Perplexity, Scored
from vermilion.llm.speed import Comparison, EngineSpeed, Limit, Speed, SpeedRatio
from vermilion.planning import Choice, DevicePlan, Span

LONG = "/encoder/layer.11/attention/self/query/MatMul_output_0_QuantizeLinear"
PATH = Path("/home/somebody/models of last week/with a long name/resnet50_v1.5_opset17.onnx")


def machine() -> RenderableType:
    cpu = CpuInfo("AMD Ryzen AI 9 HX 370", "AuthenticAMD", 26, 36, "zen5", frozenset(), 12, 24,
                  33_000_000_000, 20_000_000_000)  # fmt: skip
    npu = NpuInfo("Strix Point", "known", "strix", "1022:17f0", 16, "0000:c6:00.1",
                  "amdxdna", "0.6")  # fmt: skip
    gpu = GpuInfo("Radeon 890M", "gfx1150", "1002:150e", "0000:c5:00.0", "kfd", 16)
    providers = (
        ProviderInfo("VitisAIExecutionProvider", "plugin", "/opt/ryzen-ai/lib/onnxruntime_vitisai"
                     "_ep.so", "1.7", "", False, "libxrt_coreutil.so.2 is not there"),
        ProviderInfo("CPUExecutionProvider", "built in", "onnxruntime", "1.32.0", "", True),
    )  # fmt: skip
    return devices._view(Machine("Linux", "6.14", "3.12", cpu, (npu,), (gpu,), providers))


def findings() -> RenderableType:
    return doctor._view([
        Finding("npu.driver", "error", "the NPU (Strix Point) has no driver, so nothing runs on it",
                "sudo apt install amdxdna-dkms && sudo modprobe amdxdna, then log in again"),
        Finding("cache.room", "warning", f"the cache `{PATH.parent}` has 0.4 GB left"),
        Finding("cpu", "ok", "AMD Ryzen AI 9 HX 370, 12 cores"),
    ])  # fmt: skip


def _engine(name: str, precision: str, base: float, **more: object) -> EngineResult:
    runs = tuple(base * (1 + at / 100) for at in range(10))
    return EngineResult(
        Engine(name, precision), version="1.32.0", runs_on="CPU", timed=Timed(runs, runs, 1.0),
        outputs=(Agreement("y", 0.999999, 90.1, 1e-5),), load_s=0.123, compile_s=1.5,
        peak_rss_mb=234.0, **more,
    )  # type: ignore[arg-type]  # fmt: skip


def bench() -> RenderableType:
    case = Case("resnet50", PATH, 1, PATH, ("x",), {}, "fp32", 1, None, 2, 8.21)
    peak = Peak("fp32", 2, 512.0, "vfmadd231ps zmm")
    engines = (
        _engine("vermilion", "fp32", 28.123, placement="124 of 124 operators native on the CPU"),
        _engine("ort", "fp32", 36.3),
        EngineResult(Engine("openvino", "fp32"), error=DeviceError("it is not installed")),
    )
    key = {"model": "resnet50", "engine": "vermilion", "precision": "fp32", "batch": 1,
           "sequence": None}  # fmt: skip
    delta = Delta(key, "matched", 28.0, 31.2, 11.4, 0.0003, "ort", True)
    return bench_views.bench_view([CaseResult(case, engines, peak, 0.01)], [delta], 30)


def suite() -> RenderableType:
    rows = []
    for batch_size in (1, 64):
        for at, name in enumerate(("vermilion", "ort", "openvino")):
            ms = 14.2 * batch_size * (1 + at / 5)
            rows.append(
                {
                    "model": "resnet50", "batch": batch_size, "sequence": None, "engine": name,
                    "precision": "fp32", "version": "1.0", "runs_on": "CPU (native code)",
                    "latency_ms": {"p50": ms, "p90": ms, "p99": ms, "min": ms, "mean": ms},
                    "peak_rss_mb": 312.0, "turn_ms": [ms] * 6, "compile_s": None, "load_s": 0.2,
                    "outputs": [{"cosine": 0.9999999}],
                }
            )  # fmt: skip
    tables = suite_tables({"results": rows}, with_quoted=True)
    return Group(*(bench_views.table_view(table) for table in tables))


def profile() -> RenderableType:
    steps = (
        Line(LONG, "gemm", "CPU", 12.345, 0.61, 402.0),
        Line("conv1", "convolution (Winograd)", "CPU", 3.2, 0.16, 510.0, 3),
        Line("odd", "Softplus", "CPU in ONNX Runtime", 1.0, 0.05, None),
    )
    kinds = (Line("gemm", "gemm", "CPU", 12.345, 0.61, 402.0),)
    found = Profile("vermilion", "fp32", "1.0", 19.9, 5, 20.2, steps, kinds, kinds, ())
    case = Case("bert", PATH, 1, PATH, ("x",), {}, "fp32", 1, 128, 2, 22.0)
    return bench_views.profile_view(CaseProfiles(case, (found,), (), ()), 2)


def many_inputs() -> RenderableType:
    records = tuple(
        DeviceRecord(BatchDevice(f"cpu:{at}", "cpu", at, (at,), 1), "CPU (native code, AVX-512)",
                     (), 12_345, at, 1.25, 33.5, 210.0)
        for at in range(2)
    )  # fmt: skip
    failed = (Failed(7, "photos/07.png", "it is not an image that can be read"),)
    out = Path("/home/somebody/results") / ("of a long run " * 6) / "means.npz"
    done = BatchResult(out, 24_690, failed, 1_000, 8, 35.1, 703.4, records, "7 of 7 native")
    return batch._view(done)


def exported() -> RenderableType:
    output = TensorFacts("logits", "float32", (1, 1000))
    found = Agreement("logits", 0.99999999, 132.1, 2.1e-6)
    report = ExportReport(PATH, 17, "torchscript", (TensorFacts("image", "float32", (1, 3, 224,
                          224)),), (output,), (found,), (), 3.2)  # fmt: skip
    return export._view(report)


def language_speed() -> RenderableType:
    speeds = tuple(Speed(n, 64, 120.5 + n, 3_741.2, 485.3, 512.0) for n in (128, 1024))
    engines = (
        EngineSpeed("vermilion", "native", "", 0.12, 0.2, speeds),
        EngineSpeed("onnxruntime-genai", "onnxruntime-genai", "", 0.9, 1.1, speeds),
        EngineSpeed("llama.cpp", failed="`--gguf` names no file"),
    )
    ratios = (SpeedRatio("onnxruntime-genai", 128, 0.31, 0.52, 0.33, 0.5),)
    limits = (Limit(21.5, 81e6), Limit(21.5, 92e6))
    return llm_speed._bench_view(Comparison(engines, ratios, limits))


def perplexity() -> RenderableType:
    score = Scored("smollm2", "native", "", 12.345)
    return llm_speed._perplexity_view(Perplexity(5000, 256, score, score, 0.0012, 0.987))


def answered() -> RenderableType:
    made = Generated("Paris.", "native", "our generated code", 12, 128, "length", 0.1, 45.0, 911.2,
                     480.1, 512.0, weights=("Q4_1: as it is", "F32: rounded to bf16"))  # fmt: skip
    return llm_run._generated_view(made)


def choices() -> RenderableType:
    ms = Span(16.82, 11.84, 85.66)
    found = (
        Choice("cpu", "fp32", 1, "", Span(56.0, 54.1, 60.2), Span(17.9, 16.6, 18.5), "measured", 0),
        Choice("strix", "xint8", 1, "", ms, ms.as_rate(1), "modelled", 0.999),
        Choice("strix", "xint8", 1, f"strix up to {LONG}, then the CPU, 0.2 MB between them", ms,
               ms.as_rate(1), "modelled", 0.5),
        Choice("phoenix", "", None, "", None, None, "modelled", 0, "it takes a8w8 and xint8"),
    )  # fmt: skip
    both = "cannot be said: the intervals of cpu (fp32) and strix (xint8) overlap"
    return plan._view(DevicePlan("m.onnx", found, both, both))


def vendor_benchmark() -> RenderableType:
    times = Times((0.01, 0.011, 0.012), 128)
    found = Measured(128, 64, times, times, times, times, 512.0)
    return Verbatim("\n".join(_lines(Benchmark("native", "", 0.12, (found,)))))


RESULTS: Mapping[str, Callable[[], RenderableType]] = {
    "devices": machine,
    "doctor": findings,
    "bench": bench,
    "bench-suite": suite,
    "bench-profile": profile,
    "batch": many_inputs,
    "export": exported,
    "plan": choices,
    "llm-bench": language_speed,
    "llm-perplexity": perplexity,
    "llm-generate": answered,
    "model_benchmark": vendor_benchmark,
}
