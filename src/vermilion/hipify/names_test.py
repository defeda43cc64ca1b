"""Names by rule, by their letters and by table; PyTorch's table, where torch is installed."""

from __future__ import annotations

import sys

import pytest

from vermilion.errors import UnsupportedError
from vermilion.hipify.names import Names, Rename, Unknown, torch_names


@pytest.mark.needs("torch")
def test_its_names_come_without_importing_torch() -> None:
    before = "torch" in sys.modules
    names = torch_names()
    assert len(names) > 1000
    assert names["cudaMalloc"] == "hipMalloc"
    assert ("torch" in sys.modules) == before
    assert not [name for name in sys.modules if name.startswith("_vermilion_torch")]


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="needs torch"):
        torch_names()


@pytest.mark.parametrize(
    ("name", "hip"),
    [
        ("CUmemLocation", "hipMemLocation"),
        ("CUstreamCaptureStatus", "hipStreamCaptureStatus"),
        ("CUmemAccess_flags", "hipMemAccessFlags"),
        ("CUmem_advise", "hipMemoryAdvise"),  # `hipMemAdvise` is the function
        ("CUuserObject", "hipUserObject_t"),
        ("CUlinkState", "hipLinkState_t"),
        ("cuLinkAddData_v2", "hipLinkAddData"),
        ("CUFFT_INVERSE", "HIPFFT_BACKWARD"),
        ("curandStateSobol64", "hiprandStateSobol64_t"),
        ("__nv_cvt_halfraw2_to_fp8x2", "__hip_cvt_halfraw2_to_fp8x2"),
        ("nv_half2", "__half2"),
    ],
)
def test_names_that_are_hips_by_another_word(name: str, hip: str) -> None:
    assert Names().look_up(name) == Rename(hip)


@pytest.mark.parametrize(
    "name",
    [
        "cuGLMapBufferObject", "cuEGLStreamConsumerConnect", "CU_EGL_FRAME_TYPE_PITCH",
        "PFN_cuInit_v2000", "NVTX_EVENT_ATTRIB_STRUCT_SIZE", "NVML_SUCCESS",
        "__nv_fp4x2_storage_t", "__NV_E2M1", "CUgreenCtx",
    ],
)  # fmt: skip
def test_names_without_a_counterpart_are_known_to_be_cudas(name: str) -> None:
    assert isinstance(Names().look_up(name), Unknown)


@pytest.mark.parametrize("name", ["curve", "cuBoid", "CURLcode", "nvtx_on", "CUBE", "cuisine"])
def test_names_that_only_begin_so_are_the_users(name: str) -> None:
    found = Names().look_up(name)
    assert not isinstance(found, Rename)
