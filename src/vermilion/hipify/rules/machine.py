"""Rules about what the hardware and HIP's device code have and have not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vermilion.hipify.finding import Edit
from vermilion.hipify.rules.source import Hit, Source
from vermilion.hipify.rules.warp_plan import Warps

# LDS that a block can have on gfx90a, gfx942, gfx11xx and gfx12xx (HIP documentation, hardware
# features: "LDS size"); gfx950 has 160 KiB.
SHARED_LIMIT_BYTES = 64 * 1024

LANE_IN_GROUP = "(__lane_id() & 31)"
_PTX_STATEMENTS = {
    "membar.gl": "__threadfence()",
    "membar.cta": "__threadfence_block()",
    "membar.sys": "__threadfence_system()",
    "fence.acq_rel.gpu": "__threadfence()",
    "bar.sync 0": "__syncthreads()",
    "barrier.sync 0": "__syncthreads()",
    "trap": "__builtin_trap()",
}
_PTX_REGISTERS = {
    "laneid": LANE_IN_GROUP,
    "lanemask_eq": f"(1u << {LANE_IN_GROUP})",
    "lanemask_lt": f"((1u << {LANE_IN_GROUP}) - 1)",
    "lanemask_le": f"(0xffffffffu >> (31 - {LANE_IN_GROUP}))",
    "lanemask_gt": f"~(0xffffffffu >> (31 - {LANE_IN_GROUP}))",
    "lanemask_ge": f"~((1u << {LANE_IN_GROUP}) - 1)",
    "clock64": "clock64()",
    "clock": "clock()",
    "globaltimer": "wall_clock64()",
    "smid": "__smid()",
}
_PTX_HINTS = (
    ("mma.sync", "matrix instructions: use rocWMMA, or AMD's __builtin_amdgcn_mfma and wmma"),
    ("wmma.", "matrix instructions: use rocWMMA"),
    ("ldmatrix", "AMD has no ldmatrix: load fragments with rocWMMA's load_matrix_sync"),
    ("cp.async", "there is no asynchronous copy to shared memory: copy with plain loads"),
    ("prefetch", "remove it, or use __builtin_prefetch"),
    ("ld.global", "use a plain load, or __builtin_nontemporal_load"),
    ("st.global", "use a plain store, or __builtin_nontemporal_store"),
    ("red.", "use atomicAdd and its like"),
    ("atom.", "use the atomic function of the same name"),
    ("shfl.", "use __shfl_sync and its like"),
    ("bar.sync", "AMD GPUs have one barrier of a block: __syncthreads()"),
    ("barrier.", "AMD GPUs have one barrier of a block: __syncthreads()"),
    ("cvta", "AMD's pointers to shared memory are generic: use the pointer"),
    ("ex2.approx", "use exp2f"),
    ("vote.", "use __ballot_sync and its like"),
    ("bfe.", "use __builtin_amdgcn_ubfe or shifts"),
    ("lop3", "write it with &, | and ^"),
    ("prmt", "use __builtin_amdgcn_perm or __byte_perm"),
)
# Name → what to do; a text with parentheses at its end is a mechanical fix of the name.
_MISSING = {
    "__nanosleep": "use __builtin_amdgcn_s_sleep(n), which counts 64 clocks",
    "__dp4a": "use __builtin_amdgcn_sdot4 (CDNA) or __builtin_amdgcn_sudot4 (RDNA 3)",
    "__dp2a": "use __builtin_amdgcn_sdot2",
    "__pipeline_memcpy_async": "copy with plain loads and __syncthreads()",
    "__pipeline_commit": "remove it, with the asynchronous copy",
    "__pipeline_wait_prior": "write __syncthreads() instead",
    "__cvta_generic_to_shared": "AMD's pointers to shared memory are generic: use the pointer",
    "__vadd4": "add the four bytes one by one",
    "__vsub4": "subtract the four bytes one by one",
    "__vcmpeq4": "compare the four bytes one by one",
    "__fns": "write the search for the n-th set bit yourself",
    "__brkpt": "use __builtin_trap()",
    "__isShared": "use __builtin_amdgcn_is_shared",
    "__isGlobal": "HIP cannot ask: keep the kind of memory in the type",
    "__prof_trigger": "remove it; rocTX marks ranges on the host",
    **{
        f"__reduce_{name}_sync": "HIP 7 has it with a mask of 64 bits: give it the group's, "
        "`0xffffffffull << (__lane_id() & 32)`"
        for name in ("add", "max", "min", "and", "or", "xor")
    },
    "__grid_constant__": "remove it: kernel parameters are constant already",
    "__cluster_dims__": "AMD GPUs have no thread block clusters",
    **{
        f"atomic{name}_block": f"use atomic{name}, which holds for the whole device"
        for name in (
            "Add", "Sub", "Exch", "Min", "Max", "Inc", "Dec", "CAS", "And", "Or", "Xor",
        )
    },
}  # fmt: skip
# Loads and stores with a hint for a cache; without it they do the same.
_CACHED_LOADS = "__ld(?:cs|lu|cg|ca|cv)"
_CACHED_STORES = "__st(?:cs|cg|wb|wt)"
_FAST = r"__(?:expf|exp10f|logf|log2f|log10f|sinf|cosf|tanf|sincosf|powf|fdividef)"
_TEXTURES = (
    r"tex(?:1Dfetch|1D|2D|3D|Cubemap|2DLayered|2Dgather|1DLod|2DLod)|surf[12]D(?:read|write)"
)
_GROUP_ALGORITHMS = {
    "reduce", "inclusive_scan", "exclusive_scan", "memcpy_async", "wait", "wait_prior",
    "labeled_partition", "invoke_one",
}  # fmt: skip
_SIZES = {
    "char": 1, "int8_t": 1, "uint8_t": 1, "half": 2, "__half": 2, "short": 2, "__hip_bfloat16": 2,
    "int": 4, "unsigned": 4, "float": 4, "uint32_t": 4, "int32_t": 4, "half2": 4, "__half2": 4,
    "double": 8, "float2": 8, "int2": 8, "int64_t": 8, "uint64_t": 8, "float4": 16, "int4": 16,
    "double2": 16, "uint4": 16,
}  # fmt: skip


def inline_ptx(source: Source) -> Iterator[Hit]:
    """Find assembly in PTX, with a fix where HIP has a function for it."""
    for place, _ in source.find("asm|__asm__|__asm"):
        opening = place + 1
        while source.word(opening) in {"volatile", "__volatile__", "inline"}:
            opening += 1
        if source.word(opening) != "(":
            continue
        end = source.closing(opening)
        strings = [source.word(i) for i in range(opening + 1, end) if source.kind(i) == "string"]
        code = _statement(strings[0]) if strings else ""
        if strings and not code:
            continue  # it only keeps the compiler from moving loads and stores
        hint = next((text for part, text in _PTX_HINTS if _has_instruction(code, part)), "")
        shown = code if len(code) < 60 else code[:57] + "..."
        edits = _ptx_edits(source, place, opening, end, code)
        yield Hit("inline-ptx", place, f"PTX `{shown}`", hint, edits)


def _has_instruction(code: str, part: str) -> bool:
    """Say whether PTX has an instruction that begins so: `cvta.to.shared.u64` has no `red.`."""
    return re.search(rf"(?<![\w.]){re.escape(part)}", code) is not None


def _statement(string: str) -> str:
    """Return a string's PTX in one line, without the semicolon at its end."""
    text = re.sub(r"\\[nt]|\s+", " ", string.strip('"')).strip()
    return text.rstrip("; ").strip()


def _ptx_edits(source: Source, place: int, opening: int, end: int, code: str) -> tuple[Edit, ...]:
    if code in _PTX_STATEMENTS:
        return (source.edit(place, end, _PTX_STATEMENTS[code]),)
    register = re.fullmatch(r"mov\.[ub](?:32|64) %0, ?%%?([a-z]\w*)", code)
    outputs = [i for i in range(opening, end) if source.word(i) == "("][1:]
    if register and register[1] in _PTX_REGISTERS and len(outputs) == 1:
        variable = source.arguments(outputs[0])
        if len(variable) == 1:
            value = _PTX_REGISTERS[register[1]]
            if LANE_IN_GROUP in value and Warps(source).plan(place) == "wave":
                if value != LANE_IN_GROUP:
                    return ()
                value = "__lane_id()"
            text = f"{source.text(variable[0])} = {value}"
            return (source.edit(place, end, text),)
    return ()


def missing_intrinsic(source: Source) -> Iterator[Hit]:
    """Find intrinsics that no HIP header declares."""
    for place, name in source.find("|".join(map(re.escape, _MISSING))):
        edits = (source.edit(place, place, ""),) if name == "__grid_constant__" else ()
        yield Hit("missing-intrinsic", place, f"HIP has no `{name}`", _MISSING[name], edits)
    for place, name, arguments in source.calls(f"{_CACHED_LOADS}|{_CACHED_STORES}"):
        # Behind a type it is a declaration: the source has one of its own.
        is_own = source.kind(place - 1) == "word" and source.word(place - 1) != "return"
        if is_own or len(arguments) != (1 if re.fullmatch(_CACHED_LOADS, name) else 2):
            continue
        text = " = ".join(
            f"*({source.text(arguments[0])})" if i == 0 else f"({source.text(a)})"
            for i, a in enumerate(arguments)
        )
        edit = source.edit(place, source.closing(place + 1), text)
        what = f"HIP has no `{name}`"
        yield Hit("missing-intrinsic", place, what, f"write `{text}`", (edit,))


def read_only_load(source: Source) -> Iterator[Hit]:
    """Find loads through the read-only cache."""
    for place, name, _ in source.calls("__ldg"):
        yield Hit("read-only-load", place, f"`{name}` is a plain load on AMD GPUs")


def texture(source: Source) -> Iterator[Hit]:
    """Find texture references and fetches."""
    for place in source.places.get("texture", ()):
        if source.word(place + 1) == "<":
            hint = "HIP has texture objects only: make one with hipCreateTextureObject"
            yield Hit("texture", place, "a texture reference", hint)
    for place, name in source.find(_TEXTURES):
        if source.word(place + 1) in {"(", "<"}:
            yield Hit("texture", place, f"`{name}` needs a texture unit")


def cooperative_groups(source: Source) -> Iterator[Hit]:
    """Find what HIP's cooperative groups do not have, and tiles of 32."""
    spaces = {"cooperative_groups", *_aliases(source, "cooperative_groups")}
    for space in spaces:
        for place in source.places.get(space, ()):
            name = source.word(place + 2)
            if source.word(place + 1) == "::" and name in _GROUP_ALGORITHMS:
                what = f"HIP has no `cooperative_groups::{name}`"
                yield Hit("cooperative-groups", place, what)
    for place in source.places.get("tiled_partition", ()):
        if source.words[place + 1 : place + 3] == ["<", "32"]:
            yield Hit("tile-of-32", place, "`tiled_partition<32>` is half a wave on CDNA")


def _aliases(source: Source, space: str) -> set[str]:
    return {
        source.word(place - 2)
        for place in source.places.get(space, ())
        if source.word(place - 1) == "=" and source.word(place - 3) == "namespace"
    }


def shared_memory_size(source: Source) -> Iterator[Hit]:
    """Find more shared memory than a compute unit gives a block."""
    for place, size in (*_static_shared(source), *_dynamic_shared(source)):
        if size > SHARED_LIMIT_BYTES:
            what = f"{size} bytes of shared memory, and a block can have {SHARED_LIMIT_BYTES}"
            yield Hit("shared-memory-size", place, what)


def _static_shared(source: Source) -> Iterator[tuple[int, int]]:
    for place in source.places.get("__shared__", ()):
        types = [word for word in source.words[place + 1 : place + 4] if word in _SIZES]
        elements, at = 1, place + 1
        while source.word(at) not in {"[", ";", "(", ""}:
            at += 1
        is_array = source.word(at) == "["
        while source.word(at) == "[":
            end = source.closing(at)
            indices = source.tokens.meaningful
            value = source.value((indices[at + 1], indices[end - 1])) if end > at + 1 else None
            elements *= value if value is not None else 0
            at = end + 1
        if types and is_array:
            yield place, elements * _SIZES[types[0]]


def _dynamic_shared(source: Source) -> Iterator[tuple[int, int]]:
    for place in source.places.get("<<<", ()):
        arguments = _launch_arguments(source, place)
        if len(arguments) > 2:
            size = source.value(arguments[2])
            if size is not None:
                yield place, size
    attribute = "hipFuncAttributeMaxDynamicSharedMemorySize"
    for place, _, arguments in source.calls("hipFuncSetAttribute"):
        if len(arguments) == 3 and source.text(arguments[1]).strip() == attribute:
            size = source.value(arguments[2])
            if size is not None:
                yield place, size


def _launch_arguments(source: Source, place: int) -> list[tuple[int, int]]:
    """Return the arguments between `<<<` and `>>>`."""
    spans, depth, first = [], 0, place + 1
    indices = source.tokens.meaningful
    for at in range(place + 1, len(source.words)):
        word = source.word(at)
        depth += (word in {"(", "[", "{"}) - (word in {")", "]", "}"})
        if depth == 0 and word in {",", ">>>"}:
            if at > first:
                spans.append((indices[first], indices[at - 1]))
            first = at + 1
        if word in {">>>", ";"}:
            break
    return spans


def launches(source: Source) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield each launch with the arguments of its configuration."""
    for place in source.places.get("<<<", ()):
        yield place, _launch_arguments(source, place)


def tensor_core(source: Source) -> Iterator[Hit]:
    """Find the first use of tensor cores through wmma."""
    for place in source.places.get("rocwmma", ())[:1]:
        yield Hit("tensor-core", place, "rocWMMA stands where nvcuda::wmma was")


def fast_math(source: Source) -> Iterator[Hit]:
    """Find approximate functions."""
    for place, name, _ in source.calls(_FAST):
        yield Hit("fast-math", place, f"`{name}` has another error than CUDA's")
