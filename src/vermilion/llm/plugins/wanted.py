"""The operators that a model needs compiled, by what `llm ops` found in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vermilion.errors import OptionError, UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import Target
from vermilion.llm.list_operators import OperatorList, Row, Wanted, list_operators
from vermilion.llm.operators import Operator
from vermilion.llm.plugins.decode_operator import why_not
from vermilion.llm.plugins.identity import (
    DECODE,
    DEFAULT_CONTEXT,
    Identity,
    Number,
    rows_for,
)

PRODUCTS = ("MatMulNBits", "MatMul")

# Names of the vendor's `--ops`, and the operators here that they mean. Source: amd/Quark,
# contrib/onnx_utils/docs.
GROUPS = {
    "gemm": PRODUCTS,
    "matmulnbits": ("MatMulNBits",),
    "bmm1": ("GroupQueryAttention",),
    "bmm2": ("GroupQueryAttention",),
    "silu": ("SiLUMul",),
    "mul": ("SiLUMul", "GELUMul"),
    "rope": ("RotaryEmbedding",),
    "rmsnorm": ("RMSNorm",),
}


@dataclass(frozen=True)
class OperatorRequest:
    """For what a model's operators are compiled.

    Units: `context` and `exact_length` in tokens; `exact_length` 0: every bucket of the context.
    """

    number: Number = "bfp16"
    targets: tuple[str, ...] = ("cpu",)
    context: int = DEFAULT_CONTEXT
    exact_length: int = 0
    groups: tuple[str, ...] = ()
    with_known: bool = False


@dataclass(frozen=True)
class Asked:
    """One operator of a model, and what is compiled for it: nothing, with the reason."""

    row: Row
    identities: tuple[Identity, ...]
    reason: str = ""


@dataclass(frozen=True)
class Needs:
    """All operators of a model, in its graph's order."""

    model: OperatorList
    number: Number
    asked: tuple[Asked, ...]

    @property
    def identities(self) -> tuple[Identity, ...]:
        """Return each operator that is to be compiled once."""
        found: dict[tuple[object, ...], Identity] = {}
        for one in self.asked:
            for identity in one.identities:
                found.setdefault(_place(identity), identity)
        return tuple(found.values())


def needs_of(folder: Path, request: OperatorRequest) -> Needs:
    """Return what a model's prompt must have compiled.

    Raises: OptionError, ModelError, UnsupportedError: for a chip, a name or a folder.
    """
    targets = [cpu_target(name) for name in request.targets]
    unknown = [group for group in request.groups if group not in GROUPS]
    if unknown:
        raise OptionError(f"`--ops {unknown[0]}`", hint=f"one of {', '.join(GROUPS)}")
    if not folder.is_dir():
        raise OptionError("no such folder", where=str(folder), hint="check the path")
    model = list_operators(folder, Wanted(prompt=1))
    rows = rows_for(min(request.context, max(1, model.context)), request.exact_length)
    if request.exact_length > model.context:
        raise OptionError(
            f"{request.exact_length:,} tokens are over the model's context of {model.context:,}",
            where=str(folder),
            hint="ask for a shorter `--exact_length`",
        )
    vocabularies = {row.operator.shape.get("vocabulary", 0) for row in model.rows}
    asked = tuple(_asked(row, request, rows, targets, vocabularies) for row in model.rows)
    return Needs(model, request.number, asked)


def cpu_target(name: str) -> Target:
    """Return the chip that operators are compiled for.

    Raises: OptionError for a name that is none; UnsupportedError for an NPU or a GPU.
    """
    target = find_target(name)
    if target.kind == "cpu":
        return target
    if target.npu is not None and not target.npu.language_models:
        raise UnsupportedError(
            f"{target.npu.chips} run no language models on their NPU: the vendor supports them"
            " from Strix on",
            where=f"--target {name}",
            hint="`--target cpu` compiles the operators for the CPU",
        )
    raise UnsupportedError(
        f"operators for {target.title} are compiled by the vendor's tools",
        where=f"--target {name}",
        hint="`--with vendor` hands over to them; `--target cpu` compiles for the CPU",
    )


def _asked(
    row: Row,
    request: OperatorRequest,
    rows: Sequence[int],
    targets: Sequence[Target],
    vocabularies: set[int],
) -> Asked:
    operator = row.operator
    kinds = {kind for group in request.groups for kind in GROUPS[group]}
    if kinds and operator.op_type not in kinds:
        return Asked(row, (), "not asked for with `--ops`")
    if row.verdict.is_known and not request.with_known:
        return Asked(row, (), row.verdict.reason or "known: the vendor's runtime has it")
    if operator.op_type not in PRODUCTS:
        return Asked(row, (), "no matrix product: the engine has it for every shape")
    is_head = operator.roles == ("lm_head",) or operator.shape["N"] in vocabularies
    shape = {name: operator.shape[name] for name in ("K", "N")}
    prompt = [
        Identity("MatMulNBits", shape, count, request.number, target.name)
        for target in targets
        for count in (() if is_head else rows)
    ]
    token = [_for_a_token(operator, target) for target in targets]
    identities = (*prompt, *(one for one in token if isinstance(one, Identity)))
    refused = [one for one in token if isinstance(one, str)]
    return Asked(row, identities, refused[0] if refused and not identities else "")


def _for_a_token(operator: Operator, target: Target) -> Identity | str:
    """Return the operator that decodes, or why there is none."""
    weights = operator.weights
    if weights is None:
        return "its weights are plain floats: the engine has it for every shape"
    shape = {
        "K": operator.shape["K"],
        "N": operator.shape["N"],
        "bits": weights.bits,
        "block": weights.block,
        **({} if weights.is_symmetric else {"zero_points": 1}),
    }
    reason = why_not(shape)
    return reason or Identity("MatMulNBits", shape, 1, DECODE, target.name)


def _place(identity: Identity) -> tuple[object, ...]:
    return (
        identity.operator, tuple(sorted(identity.shape.items())), identity.rows,
        identity.number, identity.target,
    )  # fmt: skip
