import json
from dataclasses import replace
from pathlib import Path

import pytest

from vermilion.hardware.checks.npu import OLDEST_DRIVERS, oldest_driver
from vermilion.hardware.devices import CpuInfo, GpuInfo, Machine, NpuInfo, ProviderInfo
from vermilion.hardware.devices import detect_machine as detect
from vermilion.hardware.doctor import Environment, collect_environment, diagnose
from vermilion.hardware.targets.x86 import ZEN2, ZEN5

CPU = CpuInfo("AMD Ryzen AI 9 HX 370", "AuthenticAMD", 26, 36, "zen5", ZEN5, 12, 24, 64 * 10**9, 0)
STRIX = NpuInfo(
    "Strix Point NPU", "known", "strix", "1022:17f0", 0x10, "0000:c5:00.1", "amdxdna", "0.1"
)
PHOENIX = replace(STRIX, title="Phoenix NPU", target="phoenix", ids="1022:1502", revision=0)
UNKNOWN = replace(STRIX, title="unknown AMD accelerator", recognition="unknown", target=None)
GPU = GpuInfo("Radeon 890M", "gfx1150", "1002:150e", "0000:c4:00.0", "kfd", 16)
VITIS = ProviderInfo("VitisAIExecutionProvider", "built in", "onnxruntime-vitisai", "1.23.0")
MIGRAPHX = ProviderInfo("MIGraphXExecutionProvider", "built in", "onnxruntime-migraphx", "1.27.1")
PLUGIN = ProviderInfo("MIGraphXExecutionProvider", "plugin", "onnxruntime_ep_migraphx", "1.29.0")

HEALTHY_LINUX = Machine(
    system="Linux",
    system_version="6.14.0",
    python_version="3.12.3",
    cpu=CPU,
    npus=(STRIX,),
    gpus=(GPU,),
    providers=(VITIS, MIGRAPHX),
    looked_at=("`/sys/bus/pci/devices`",),
)
AROUND_LINUX = Environment(
    system="Linux",
    system_version="6.14.0-24-generic",
    user="ada",
    python_prefix="/home/ada/ryzen-ai-1.7.0/venv",
    variables={
        "RYZEN_AI_INSTALLATION_PATH": "/home/ada/ryzen-ai-1.7.0",
        "XLNX_ENABLE_SKIP_FATAL": "0",
    },
    paths={"RYZEN_AI_INSTALLATION_PATH": True},
    distributions={"onnxruntime-vitisai": "1.23.0", "voe": "1.7.0"},
    devices={"/dev/kfd": True, "/dev/accel/accel0": True, "/dev/dri/renderD128": True},
    modules=frozenset({"amdxdna", "amdgpu"}),
    cache_folder="/home/ada/.cache/vermilion",
    cache_free_bytes=100 * 10**9,
)
HEALTHY_WINDOWS = replace(
    HEALTHY_LINUX,
    system="Windows",
    system_version="10.0.26100",
    npus=(replace(STRIX, driver="oem46.inf", driver_version="32.0.22032.6002"),),
)
AROUND_WINDOWS = replace(
    AROUND_LINUX,
    system="Windows",
    system_version="10.0.26100",
    variables={
        "RYZEN_AI_INSTALLATION_PATH": "C:\\Program Files\\RyzenAI\\1.7.0",
        "XLNX_ENABLE_SKIP_FATAL": "0",
        "CONDA_PREFIX": "C:\\Miniforge\\envs\\ryzen-ai-1.7.0",
    },
    python_prefix="c:\\miniforge\\envs\\ryzen-ai-1.7.0\\",
    devices={},
    modules=frozenset(),
)


def linux(machine=None, **around):
    return replace(HEALTHY_LINUX, **(machine or {})), replace(AROUND_LINUX, **around)


def windows(machine=None, **around):
    return replace(HEALTHY_WINDOWS, **(machine or {})), replace(AROUND_WINDOWS, **around)


def with_variable(around, **variables):
    return {"variables": {**around.variables, **variables}}


def without_variable(around, name):
    return {"variables": {key: value for key, value in around.variables.items() if key != name}}


def driver(version):
    return {"npus": (replace(HEALTHY_WINDOWS.npus[0], driver_version=version),)}


def failing(provider, reason):
    return {"npus": (), "providers": (replace(provider, loads=False, reason=reason),)}


API_REASON = (
    "The requested API version [27] is not available, only API versions [1, 24] are supported in"
    " this build. Current ORT Version is: 1.24.4"
)

# id, level, what the fix must hold, the machine and what is around it
FAULTS = [
    ("npu.driver-old", "error", "32.0.203.280", windows(driver("32.0.203.257"))),
    ("npu.driver-missing", "error", "32.0.203.280", windows(driver(""))),
    ("npu.windows-old", "error", "Windows Update", windows(system_version="10.0.19045")),
    ("npu.kernel-old", "error", "sudo apt install", linux(system_version="6.8.0-45-generic")),
    (
        "npu.module-missing",
        "error",
        "sudo modprobe amdxdna",
        linux({"npus": (replace(STRIX, driver=""),)}, modules=frozenset()),
    ),
    ("npu.driver-refused", "error", "dmesg", linux({"npus": (replace(STRIX, driver=""),)})),
    (
        "npu.no-access",
        "error",
        "sudo usermod -aG render ada",
        linux(devices={"/dev/accel/accel0": False}),
    ),
    ("npu.memlock", "error", "ada - memlock unlimited", linux(memlock_bytes=8 * 2**20)),
    (
        "npu.xrt-missing",
        "error",
        "source /opt/xilinx/xrt/setup.sh",
        linux(missing_libraries=frozenset({"libxrt_coreutil.so.2"})),
    ),
    (
        "npu.installation-path-unset",
        "warning",
        "activate",
        linux(**without_variable(AROUND_LINUX, "RYZEN_AI_INSTALLATION_PATH")),
    ),
    (
        "npu.installation-path-wrong",
        "error",
        "setx RYZEN_AI_INSTALLATION_PATH",
        windows(paths={"RYZEN_AI_INSTALLATION_PATH": False}),
    ),
    ("npu.phoenix-int8-only", "note", "--scheme xint8", windows({"npus": (PHOENIX,)})),
    ("npu.phoenix-linux", "warning", "Windows", linux({"npus": (PHOENIX,)})),
    ("npu.unknown", "warning", "1022:17f0", linux({"npus": (UNKNOWN,)})),
    (
        "npu.compile-memory",
        "note",
        "larger machine",
        linux({"cpu": replace(CPU, memory_bytes=16 * 10**9)}),
    ),
    (
        "npu.not-searched",
        "warning",
        "on the host",
        linux({"problems": ("there is no PCI bus",), "looked_at": (), "npus": ()}),
    ),
    (
        "gpu.kfd-missing",
        "error",
        "sudo modprobe amdgpu",
        linux({"gpus": (replace(GPU, found_by="bus"),)}, devices={}),
    ),
    ("gpu.no-access", "error", "render,video ada", linux(devices={"/dev/kfd": False})),
    (
        "gpu.hsa-override",
        "warning",
        "unset HSA_OVERRIDE_GFX_VERSION",
        linux(**with_variable(AROUND_LINUX, HSA_OVERRIDE_GFX_VERSION="11.0.0")),
    ),
    (
        "gpu.migraphx-libraries",
        "error",
        "sudo apt install migraphx",
        linux(
            distributions={"onnxruntime-migraphx": "1.27.1"},
            missing_libraries=frozenset({"libmigraphx_c.so.3", "libamdhip64.so.7"}),
        ),
    ),
    ("packages.no-onnxruntime", "error", "pip install onnxruntime", linux(distributions={})),
    (
        "packages.two-onnxruntimes",
        "error",
        "pip uninstall -y onnxruntime onnxruntime-migraphx && pip install onnxruntime-migraphx",
        linux(distributions={"onnxruntime": "1.32.0", "onnxruntime-migraphx": "1.27.1"}),
    ),
    (
        "packages.placeholder",
        "error",
        "pip uninstall -y onnxruntime-ep-migraphx",
        linux(distributions={"onnxruntime": "1.32.0", "onnxruntime-ep-migraphx": "0.0.0"}),
    ),
    (
        "packages.rocm-provider-gone",
        "warning",
        "MIGraphXExecutionProvider",
        linux(distributions={"onnxruntime-rocm": "1.22.2"}),
    ),
    ("packages.no-npu-provider", "error", "activate", linux({"providers": (MIGRAPHX,)})),
    (
        "packages.no-npu-provider",
        "error",
        "conda activate ryzen-ai",
        windows({"providers": (replace(VITIS, loads=False), MIGRAPHX)}),
    ),
    (
        "packages.no-gpu-provider",
        "warning",
        "pip install onnxruntime-migraphx",
        linux({"providers": (VITIS,)}),
    ),
    ("packages.plugin-api", "error", "onnxruntime>=1.27", linux(failing(PLUGIN, API_REASON))),
    (
        "packages.plugin-needs-newer-onnxruntime",
        "error",
        "onnxruntime>=1.24",
        linux({"providers": (VITIS, PLUGIN)}, distributions={"onnxruntime": "1.23.2"}),
    ),
    (
        "packages.provider-fails",
        "error",
        "pip uninstall -y onnxruntime-migraphx",
        linux(failing(MIGRAPHX, "libmigraphx_c.so.3: cannot open shared object file")),
    ),
    (
        "packages.public-genai",
        "note",
        "pypi.amd.com",
        linux(distributions={"onnxruntime-vitisai": "1.23.0", "onnxruntime-genai": "0.18.0"}),
    ),
    (
        "packages.conda-mismatch",
        "warning",
        "conda run -p",
        windows(**with_variable(AROUND_WINDOWS, CONDA_PREFIX="C:\\Miniforge")),
    ),
    (
        "environment.retired-variable",
        "warning",
        "unset XLNX_VART_FIRMWARE",
        linux(**with_variable(AROUND_LINUX, XLNX_VART_FIRMWARE="4x4.xclbin")),
    ),
    (
        "environment.skip-fatal",
        "warning",
        "export XLNX_ENABLE_SKIP_FATAL=0",
        linux(**with_variable(AROUND_LINUX, XLNX_ENABLE_SKIP_FATAL="1")),
    ),
    (
        "environment.skip-fatal",
        "note",
        "set XLNX_ENABLE_SKIP_FATAL=0",
        windows(**without_variable(AROUND_WINDOWS, "XLNX_ENABLE_SKIP_FATAL")),
    ),
    ("system.disk-low", "warning", "cache prune", linux(cache_free_bytes=3 * 10**9)),
    ("system.disk-low", "error", "cache prune", linux(cache_free_bytes=5 * 10**8)),
    (
        "cpu.no-avx2",
        "warning",
        "-cpu host",
        linux({"cpu": replace(CPU, features=ZEN2 - {"avx2"})}),
    ),
]


@pytest.mark.parametrize(
    ("fault", "level", "fix", "case"), FAULTS, ids=[f"{row[0]}-{row[1]}" for row in FAULTS]
)
def test_each_fault_is_found_with_its_fix(fault, level, fix, case):
    found = [finding for finding in diagnose(*case) if finding.id == fault]
    assert [finding.level for finding in found] == [level]
    assert fix in found[0].fix
    assert found[0].what


@pytest.mark.parametrize("case", [linux(), windows()], ids=["linux", "windows"])
def test_a_healthy_machine_has_nothing_but_ok(case):
    assert {(f.id, f.level) for f in diagnose(*case)} == {
        ("cpu.found", "ok"),
        ("npu.found", "ok"),
        ("gpu.found", "ok"),
    }


def test_each_fault_is_alone_or_explained():
    # Some faults bring another along; none may bring a crowd.
    for fault, _, _, case in FAULTS:
        ill = [f.id for f in diagnose(*case) if f.level in ("error", "warning")]
        assert len(ill) <= 3, (fault, ill)


def test_a_machine_with_no_accelerator_is_told_where_was_looked():
    machine, around = linux({"npus": (), "gpus": (), "providers": ()})
    findings = {finding.id: finding for finding in diagnose(machine, around)}
    assert findings["npu.none"].level == "note"
    assert "no NPU found: looked at `/sys/bus/pci/devices`" in findings["npu.none"].what
    assert "looked at" in findings["gpu.none"].what
    assert "error" not in {finding.level for finding in findings.values()}


def test_the_worst_comes_first():
    machine, around = linux(
        memlock_bytes=8 * 2**20, **with_variable(AROUND_LINUX, HSA_OVERRIDE_GFX_VERSION="11.0.0")
    )
    levels = [finding.level for finding in diagnose(machine, around)]
    assert levels == ["error", "warning", "ok", "ok", "ok"]


def test_npu_faults_need_an_npu():
    machine, around = linux(
        {"npus": (), "gpus": ()},
        system_version="5.15.0",
        memlock_bytes=65536,
        missing_libraries=frozenset({"libxrt_coreutil.so.2"}),
        variables={},
    )
    assert not [f for f in diagnose(machine, around) if f.level in ("error", "warning")]


@pytest.mark.parametrize(
    ("release", "driver"),
    [
        ("1.2", "32.0.201.204"),
        ("1.3.1", "32.0.203.242"),
        ("1.4.0", "32.0.203.257"),
        ("1.4.1", "32.0.203.259"),
        ("1.7.1", "32.0.203.280"),
        ("1.9", "32.0.203.280"),
        ("", "32.0.203.280"),
        ("1.1", "32.0.201.204"),
    ],
)
def test_oldest_driver(release, driver):
    assert oldest_driver(release) == driver


def test_the_release_decides_how_old_a_driver_may_be():
    old = driver("32.0.203.257")
    folder = {"RYZEN_AI_INSTALLATION_PATH": "C:\\Program Files\\RyzenAI\\1.4.0"}
    machine, around = windows(
        old,
        distributions={"onnxruntime-vitisai": "1.20.0"},
        **with_variable(AROUND_WINDOWS, **folder),
    )
    assert "npu.driver-old" not in {finding.id for finding in diagnose(machine, around)}
    assert OLDEST_DRIVERS["1.4"] == "32.0.203.257"


def test_this_machine_and_json(tmp_path: Path):
    findings = diagnose(detect(probe_providers=False), collect_environment(tmp_path))
    rows = json.loads(json.dumps([finding.as_json() for finding in findings]))
    assert rows
    assert all(set(row) == {"id", "level", "what", "fix"} for row in rows)
    assert all(row["fix"] for row in rows if row["level"] in ("warning", "error"))
