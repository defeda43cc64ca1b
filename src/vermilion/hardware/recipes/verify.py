"""The script that says whether a build computes on the GPU; it needs nothing of this package."""

from __future__ import annotations

import base64
import textwrap


def small_model() -> bytes:
    """Return a model of one product and one sum, which every provider takes: y = x·w + 1."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(3, 4) / 10, "w")
    one = numpy_helper.from_array(np.ones(4, np.float32), "one")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Add", ["product", "one"], ["y"]),
        ],
        "verify",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [weight, one],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def verification_script(project: str, provider: str) -> str:
    """Return a Python script that verifies a build, one line a check; exit 1 where one fails."""
    lines = textwrap.wrap(base64.b64encode(small_model()).decode(), 80)
    model = "\n".join(f'    "{line}"' for line in lines)
    return _SCRIPT.format(provider=provider, model=model, genai=project == "genai")


_SCRIPT = '''\
#!/usr/bin/env python3
"""Say whether ONNX Runtime computes on the GPU: verify_build.py [--provider NAME] [MODEL_FOLDER]"""

import argparse
import base64
import ctypes
import json
import os
import pathlib
import subprocess
import sys

MODEL = base64.b64decode(
{model}
)
LIBRARIES = {{"MIGraphXExecutionProvider": ["libamdhip64.so", "libmigraphx_c.so"],
             "ROCMExecutionProvider": ["libamdhip64.so", "libMIOpen.so", "libhipblas.so"]}}
failed = 0


def check(what, ok, hint=""):
    global failed
    failed += not ok
    print(("ok      " if ok else "FAILED  ") + what)
    if hint and not ok:
        print(f"        {{hint}}")
    return ok


def loads(name):
    for ending in ["", ".7", ".6", ".5", ".3", ".2", ".1"]:
        try:
            ctypes.CDLL(name + ending)
            return True
        except OSError:
            continue
    return False


def check_machine(provider):
    check("/dev/kfd can be opened", os.access("/dev/kfd", os.R_OK | os.W_OK),
          "sudo usermod -aG render,video $USER, then log in again; modprobe amdgpu")
    try:
        text = subprocess.run(["rocminfo"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        text = ""
    gpus = sorted({{word for word in text.split() if word.startswith("gfx")}})
    check("rocminfo names a GPU: " + (", ".join(gpus) or "none"), bool(gpus),
          "PATH with /opt/rocm/bin; rocm-smi shows whether the driver sees it")
    for name in LIBRARIES[provider]:
        check(f"{{name}} loads", loads(name), "LD_LIBRARY_PATH=/opt/rocm/lib, or install it")


def check_session(provider):
    import numpy as np
    import onnxruntime as ort

    print(f"        onnxruntime {{ort.__version__}}: {{', '.join(ort.get_available_providers())}}")
    if not check(f"{{provider}} is built in", provider in ort.get_available_providers(),
                 "this wheel is another: pip uninstall every onnxruntime, install the built one"):
        return
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = x @ (np.arange(12, dtype=np.float32).reshape(3, 4) / 10) + 1
    options = ort.SessionOptions()
    options.enable_profiling = True
    session = ort.InferenceSession(MODEL, options, providers=[provider])
    # A provider that cannot load leaves a CPU session, and says so on stderr only.
    first = session.get_providers()[0]
    check(f"the session runs on {{first}}", first == provider,
          "the provider's libraries do not load: see above")
    (y,) = session.run(None, {{"x": x}})
    check("its numbers are right", bool(np.allclose(y, expected, rtol=1e-2, atol=1e-2)))
    profile = pathlib.Path(session.end_profiling())
    events = json.loads(profile.read_text(encoding="utf-8"))
    profile.unlink()
    nodes = [e["args"]["provider"] for e in events if e.get("args", {{}}).get("provider")]
    seen = ", ".join(sorted(set(nodes))) or "nothing"
    check(f"nodes ran on {{seen}}", set(nodes) == {{provider}}, "what is not on it ran on the CPU")


def check_genai(folder):
    try:
        import onnxruntime_genai as og
    except ImportError as error:
        check("onnxruntime_genai imports", False, str(error))
        return
    check(f"onnxruntime_genai {{getattr(og, '__version__', '')}} imports", True)
    if folder is None:
        print("        give a folder with genai_config.json to load a model too")
        return
    try:
        config = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))
        check("genai_config.json is JSON", "model" in config, "it has no `model`")
    except (OSError, ValueError) as error:
        check("genai_config.json is JSON", False, str(error))
        return
    try:
        model = og.Model(str(folder))
        tokenizer = og.Tokenizer(model)
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=16)
        generator = og.Generator(model, params)
        generator.append_tokens(tokenizer.encode("Hello"))
        while not generator.is_done():
            generator.generate_next_token()
        check(f"it generates on {{getattr(model, 'device_type', '?')}}",
              len(generator.get_sequence(0)) > 1)
    except Exception as error:  # whatever the library raises is the finding
        check("it generates", False, str(error))


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--provider", default="{provider}")
parser.add_argument("folder", nargs="?", type=pathlib.Path)
given = parser.parse_args()
if given.provider in LIBRARIES:
    check_machine(given.provider)
check_session(given.provider)
if {genai} or given.folder is not None:
    check_genai(given.folder)
print("verified" if not failed else f"{{failed}} checks failed")
sys.exit(bool(failed))
'''
