"""Faults of the NPU: its driver, its rights, and what surrounds it."""

from __future__ import annotations

from collections.abc import Iterator

from vermilion.hardware.checks import Finding
from vermilion.hardware.devices import Machine
from vermilion.hardware.environment import Environment
from vermilion.hardware.targets.npu import not_on_system, npu_facts
from vermilion.version import is_older, version_fields

# Release of the VitisAI provider → the oldest NPU driver that it accepts (Windows' numbers).
# Source: Ryzen AI documentation 1.8, app_development.rst, "VitisAI EP / NPU Driver Compatibility".
# 1.8 is not in that table; inst.rst offers .280 with it.
OLDEST_DRIVERS = {
    "1.2": "32.0.201.204",
    "1.3": "32.0.203.237",
    "1.3.1": "32.0.203.242",
    "1.4": "32.0.203.257",
    "1.4.1": "32.0.203.259",
    "1.5": "32.0.203.280",
    "1.6": "32.0.203.280",
    "1.7": "32.0.203.280",
    "1.8": "32.0.203.280",
}

# Source: Ryzen AI documentation 1.8, linux.rst; Windows: inst.rst.
OLDEST_KERNEL = "6.10"
OLDEST_WINDOWS = "10.0.22621"

# Source: Ryzen AI documentation 1.8, linux.rst (64 GB recommended) and the requirements of its BF16
# compiler, which ends without a word where memory runs out.
COMPILE_MEMORY_BYTES = 32 * 10**9

DRIVER_PAGE = "https://ryzenai.docs.amd.com/en/latest/inst.html"
LINUX_PAGE = "https://ryzenai.docs.amd.com/en/latest/linux.html"


def check_presence(machine: Machine, _: Environment) -> Iterator[Finding]:
    """Say what NPU there is, or that there is none and where that was looked for."""
    for problem in machine.problems:
        yield Finding("npu.not-searched", "warning", problem, "run `vermilion doctor` on the host")
    if not machine.npus and machine.looked_at:
        places = " and ".join(machine.looked_at)
        yield Finding("npu.none", "note", f"no NPU found: looked at {places}")
    for npu in machine.npus:
        if npu.recognition == "known":
            yield Finding("npu.found", "ok", f"{npu.title}: compile with `--target {npu.target}`")
            continue
        yield Finding(
            "npu.unknown",
            "warning",
            f"{npu.title} ({npu.ids}) has no target here yet, so nothing is compiled for it",
            f"update Vermilion; if that does not help, report `{npu.ids}` revision"
            f" `{npu.revision:02x}`",
        )


def check_windows_driver(machine: Machine, environment: Environment) -> Iterator[Finding]:
    """Compare the NPU driver with what the installed Ryzen AI release needs."""
    if environment.system != "Windows":
        return
    release = ryzen_ai_release(environment)
    oldest = oldest_driver(release)
    named = f"Ryzen AI {release}" if release else "the current Ryzen AI release"
    for npu in machine.npus:
        if not npu.driver_version:
            what = f"{npu.title} has no driver"
        elif is_older(npu.driver_version, oldest):
            what = f"NPU driver {npu.driver_version} is older than {oldest}, which {named} needs"
        else:
            continue
        yield Finding(
            "npu.driver-old" if npu.driver_version else "npu.driver-missing",
            "error",
            what,
            f"install driver {oldest} or newer from {DRIVER_PAGE}, then restart",
        )


def check_windows_version(machine: Machine, environment: Environment) -> Iterator[Finding]:
    """Check that Windows is new enough for the NPU driver."""
    if environment.system != "Windows" or not machine.npus:
        return
    if is_older(environment.system_version, OLDEST_WINDOWS):
        yield Finding(
            "npu.windows-old",
            "error",
            f"Windows {environment.system_version} is older than {OLDEST_WINDOWS}, which the NPU"
            " driver needs",
            "update Windows 11: Settings, Windows Update",
        )


def check_kernel(machine: Machine, environment: Environment) -> Iterator[Finding]:
    """Check that the kernel is new enough for `amdxdna`."""
    if environment.system != "Linux" or not machine.npus:
        return
    if is_older(environment.system_version, OLDEST_KERNEL):
        yield Finding(
            "npu.kernel-old",
            "error",
            f"kernel {environment.system_version} is older than {OLDEST_KERNEL}, which the NPU"
            " driver `amdxdna` needs",
            "sudo apt install linux-generic-hwe-24.04 && sudo reboot",
        )


def check_module(machine: Machine, environment: Environment) -> Iterator[Finding]:
    """Find an NPU on the bus that no driver has taken."""
    if environment.system != "Linux":
        return
    for npu in machine.npus:
        if npu.driver:
            continue
        if "amdxdna" in environment.modules:
            yield Finding(
                "npu.driver-refused",
                "error",
                f"`amdxdna` is loaded and did not take {npu.title}: its firmware may be missing",
                "sudo dmesg | grep amdxdna; then sudo apt install --reinstall linux-firmware",
            )
        else:
            yield Finding(
                "npu.module-missing",
                "error",
                f"{npu.title} is on the PCI bus and the kernel module `amdxdna` is not loaded",
                f"sudo modprobe amdxdna (where there is none: {LINUX_PAGE})",
            )


def check_access(machine: Machine, environment: Environment) -> Iterator[Finding]:
    """Check that this user may open the NPU's device node."""
    if not machine.npus:
        return
    for node, may_open in environment.devices.items():
        if "/accel/" in node and not may_open:
            yield Finding(
                "npu.no-access",
                "error",
                f"this user may not open `{node}`",
                f"sudo usermod -aG render {environment.user or '$USER'}, then log out and in again",
            )


def check_memlock(machine: Machine, environment: Environment) -> Iterator[Finding]:
    """Check the limit on locked memory, which the driver charges every buffer to."""
    if environment.system != "Linux" or not machine.npus or environment.memlock_bytes is None:
        return
    mebibytes = environment.memlock_bytes // 2**20
    user = environment.user or "$USER"
    yield Finding(
        "npu.memlock",
        "error",
        f"the limit on locked memory is {mebibytes} MiB: creating an NPU context fails with -11",
        f'echo "{user} - memlock unlimited" | sudo tee /etc/security/limits.d/99-amdxdna.conf,'
        " then log out and in again",
    )


def check_xrt(machine: Machine, environment: Environment) -> Iterator[Finding]:
    """Check that the run-time library of the NPU is where the loader looks."""
    if environment.system != "Linux" or not machine.npus:
        return
    if "libxrt_coreutil.so.2" not in environment.missing_libraries:
        return
    yield Finding(
        "npu.xrt-missing",
        "error",
        "XRT's libraries are not where the loader looks (`XRT is not installed`, `unsupported data"
        " type 1`)",
        f"source /opt/xilinx/xrt/setup.sh (where there is none: {LINUX_PAGE})",
    )


def check_installation_path(machine: Machine, environment: Environment) -> Iterator[Finding]:
    """Check the variable by which the VitisAI provider finds its own files."""
    name = "RYZEN_AI_INSTALLATION_PATH"
    path = environment.variables.get(name, "")
    fix = (
        f'setx {name} "C:\\Program Files\\RyzenAI\\1.8.0"'
        if environment.system == "Windows"
        else f"source TARGET_PATH/venv/bin/activate (sets {name})"
    )
    if path and not environment.paths.get(name, False):
        what = f"`{name}` names `{path}`: no such folder"
        yield Finding("npu.installation-path-wrong", "error", what, fix)
    elif not path and machine.npus:
        what = f"`{name}` is not set: the VitisAI provider does not find its files"
        yield Finding("npu.installation-path-unset", "warning", what, fix)


def check_limits(machine: Machine, environment: Environment) -> Iterator[Finding]:
    """Say what a chip cannot do, before a long load fails at it."""
    for name in dict.fromkeys(npu.target for npu in machine.npus):
        npu = npu_facts(name or "")
        if npu is None:
            continue
        if "bf16" not in npu.operators:
            yield Finding(
                f"npu.{name}-int8-only",
                "note",
                f"{npu.chips} run convolutional networks in INT8 and nothing else: no BF16, no"
                " LLM (those fail late, with `invalid unordered_map<K, T> key`)",
                "vermilion quantize MODEL --scheme xint8 --calib DIR -o OUT.onnx; run LLMs with"
                " `--target cpu`",
            )
        if environment.system in npu.not_on:
            yield Finding(
                f"npu.{name}-{environment.system.lower()}",
                "warning",
                not_on_system(npu, environment.system),
                "use Windows for this NPU, or `--target cpu` here",
            )


def check_memory(machine: Machine, _: Environment) -> Iterator[Finding]:
    """Check that the vendor's compiler has memory enough."""
    memory_bytes = machine.cpu.memory_bytes
    if machine.npus and 0 < memory_bytes < COMPILE_MEMORY_BYTES * 0.9:  # firmware keeps some
        yield Finding(
            "npu.compile-memory",
            "note",
            f"{memory_bytes / 10**9:.0f} GB of memory: compiling BF16 models for the NPU wants"
            f" {COMPILE_MEMORY_BYTES // 10**9} GB or more",
            "compile on a larger machine and copy the folder or the `.rai` file",
        )


def ryzen_ai_release(environment: Environment) -> str:
    """Return the installed Ryzen AI release, empty where nothing tells.

    The distribution `voe` counts with the releases; the installer's folder carries the number too.
    """
    folder = environment.variables.get("RYZEN_AI_INSTALLATION_PATH", "")
    last = folder.replace("\\", "/").rstrip("/").rpartition("/")[2]
    for text in (environment.distributions.get("voe", ""), last):
        fields = version_fields(text)
        if len(fields) >= 2 and fields[0] == 1:
            return ".".join(str(number) for number in fields[:3])
    return ""


def oldest_driver(release: str) -> str:
    """Return the oldest driver for a release: its own row, or the last row before it."""
    oldest = OLDEST_DRIVERS["1.8"] if not release else OLDEST_DRIVERS["1.2"]
    for row, driver in OLDEST_DRIVERS.items():
        if release and not is_older(release, row):
            oldest = driver
    return oldest


CHECKS = (
    check_presence,
    check_windows_driver,
    check_windows_version,
    check_kernel,
    check_module,
    check_access,
    check_memlock,
    check_xrt,
    check_installation_path,
    check_limits,
    check_memory,
)
