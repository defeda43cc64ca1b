import os
import struct

import pytest

from vermilion.hardware.cpu import (
    count_physical_cores,
    detect_cpu,
    features_on_windows,
    parse_proc,
    parse_processor_identifier,
)
from vermilion.hardware.targets.find import resolve_cpu
from vermilion.hardware.targets.x86 import X86_64_V3, ZEN2, ZEN4, ZEN5, amd_core

ZEN4_FLAGS = (
    "fpu sse sse2 pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes avx f16c abm sse4a"
    " bmi1 avx2 bmi2 avx512f avx512dq adx avx512ifma avx512cd sha_ni avx512bw avx512vl avx512_bf16"
    " avx512vbmi avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni avx512_bitalg avx512_vpopcntdq"
)


def cpuinfo_text(family, model, flags, cores=2, threads=2, vendor="AuthenticAMD"):
    blocks = [
        f"processor\t: {core * threads + thread}\nvendor_id\t: {vendor}\ncpu family\t: {family}\n"
        f"model\t\t: {model}\nmodel name\t: AMD Ryzen 7 7840HS\nphysical id\t: 0\n"
        f"core id\t\t: {core}\nflags\t\t: {flags}\n"
        for core in range(cores)
        for thread in range(threads)
    ]
    return "\n".join(blocks)


def test_parse_proc():
    cpu = parse_proc(
        cpuinfo_text(25, 116, ZEN4_FLAGS), "MemTotal:  32000 kB\nMemAvailable:  16000 kB\n"
    )
    assert (cpu.brand, cpu.family, cpu.model) == ("AMD Ryzen 7 7840HS", 25, 116)
    assert cpu.core == "zen4"
    assert resolve_cpu(cpu.features).name == "zen4"
    assert (cpu.physical_cores, cpu.logical_cores) == (2, 4)
    assert cpu.memory_bytes == 32000 * 1024
    assert cpu.available_memory_bytes == 16000 * 1024


def test_another_vendors_family_is_not_read_as_zen():
    cpu = parse_proc(cpuinfo_text(25, 116, ZEN4_FLAGS, vendor="GenuineIntel"), "")
    assert cpu.core == ""


def test_proc_of_a_machine_that_is_not_x86():
    text = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\nCPU part\t: 0xd40\n"
    cpu = parse_proc(text, "")
    assert (cpu.vendor, cpu.core, cpu.features) == ("", "", frozenset())
    assert cpu.logical_cores == cpu.physical_cores == 1


def test_empty_proc_is_no_crash():
    assert parse_proc("", "").logical_cores == 0


@pytest.mark.parametrize(
    ("family", "model", "core"),
    [
        (0x17, 0x01, "zen"),
        (0x17, 0x31, "zen2"),
        (0x17, 0x71, "zen2"),
        (0x19, 0x01, "zen3"),
        (0x19, 0x50, "zen3"),
        (0x19, 0x11, "zen4"),
        (0x19, 0x74, "zen4"),  # Phoenix
        (0x1A, 0x02, "zen5"),
        (0x1A, 0x24, "zen5"),  # Strix Point
        (0x1A, 0x60, "zen5"),  # Krackan
        (0x1A, 0x70, "zen5"),  # Strix Halo
        (0x1A, 0x90, "zen6"),
        (0x19, 0xF0, ""),
        (0x15, 0x02, ""),
    ],
)
def test_amd_core(family, model, core):
    assert amd_core(family, model) == core


def test_processor_identifier_of_windows():
    text = "AMD64 Family 25 Model 116 Stepping 1, AuthenticAMD"
    assert parse_processor_identifier(text) == ("AuthenticAMD", 25, 116)
    assert parse_processor_identifier("ARMv8 (64-bit)") == ("", 0, 0)


def test_features_on_windows():
    assert features_on_windows("zen4", has_avx2=True, has_avx512=True) == ZEN4
    # Hyper-V may hide AVX-512: what is left must not hold any of it.
    assert resolve_cpu(features_on_windows("zen4", has_avx2=True, has_avx512=False)).name == "zen3"
    assert features_on_windows("zen2", has_avx2=True, has_avx512=False) == ZEN2
    assert features_on_windows("", has_avx2=True, has_avx512=True) == X86_64_V3
    assert features_on_windows("zen6", has_avx2=True, has_avx512=True) == ZEN5
    assert features_on_windows("zen4", has_avx2=False, has_avx512=False) == frozenset()


def test_count_physical_cores():
    record = struct.pack("<II", 0, 48) + bytes(40)
    assert count_physical_cores(record * 8) == 8
    assert count_physical_cores(b"") == 0
    assert count_physical_cores(struct.pack("<II", 0, 0)) == 0  # a size of 0 must not loop


def test_this_machine():
    cpu = detect_cpu()
    assert cpu.brand
    assert cpu.logical_cores == os.cpu_count()
    assert 0 < cpu.physical_cores <= cpu.logical_cores
    assert cpu.memory_bytes > cpu.available_memory_bytes > 0
    assert cpu.as_json()["features"] == sorted(cpu.features)


def test_without_proc_something_plain_is_told(tmp_path):
    cpu = detect_cpu(proc_root=tmp_path)
    assert cpu.features == frozenset()
    assert cpu.logical_cores == os.cpu_count()
