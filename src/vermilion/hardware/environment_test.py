import os
import sys

import pytest

from vermilion.hardware.environment import collect_environment, missing_libraries


def test_this_machine(tmp_path):
    environment = collect_environment(tmp_path / "not" / "yet" / "there", variables={})
    assert environment.python_prefix == sys.prefix
    assert environment.distributions["onnxruntime"]
    assert environment.cache_free_bytes > 0


def test_only_named_variables_are_kept(tmp_path):
    environment = collect_environment(
        tmp_path,
        variables={
            "HF_TOKEN": "secret",
            "XLNX_ENABLE_CACHE": "1",
            "ORT_MIGRAPHX_FP16_ENABLE": "1",
            "RYZEN_AI_INSTALLATION_PATH": str(tmp_path / "gone"),
            "XILINX_XRT": str(tmp_path),
        },
    )
    assert "HF_TOKEN" not in environment.variables
    assert environment.variables["XLNX_ENABLE_CACHE"] == "1"
    assert environment.paths == {"RYZEN_AI_INSTALLATION_PATH": False, "XILINX_XRT": True}


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no device nodes")
def test_device_nodes(tmp_path):
    (tmp_path / "accel").mkdir()
    for name in ("kfd", "accel/accel0"):
        (tmp_path / name).write_text("")
    (tmp_path / "kfd").chmod(0)
    environment = collect_environment(tmp_path, variables={}, device_root=tmp_path)
    kfd, accel = f"{tmp_path}/kfd", f"{tmp_path}/accel/accel0"
    assert environment.devices == {kfd: os.geteuid() == 0, accel: True}


def test_modules(tmp_path):
    (tmp_path / "module" / "amdxdna").mkdir(parents=True)
    (tmp_path / "module" / "ext4").mkdir()
    environment = collect_environment(tmp_path, variables={}, sysfs_root=tmp_path)
    assert environment.modules == {"amdxdna"}


def test_missing_libraries(tmp_path):
    folder, cache = tmp_path / "lib", tmp_path / "ld.so.cache"
    folder.mkdir()
    (folder / "liba.so.1").write_text("")
    cache.write_bytes(b"\0libb.so.1\0/usr/lib/libb.so.1\0libc.so.10\0")
    names = ("liba.so.1", "libb.so.1", "libc.so.1")

    def missing(variables, folders=()):
        return missing_libraries(names, variables, folders=folders, loader_cache=cache)

    assert missing({}) == {"liba.so.1", "libc.so.1"}
    assert missing({"LD_LIBRARY_PATH": f":{folder}"}) == {"libc.so.1"}
    assert missing({}, [str(folder)]) == {"libc.so.1"}
