"""`onnx_utils vaiml`: a model's missing operators → a plugin, or the list of them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vermilion.codegen.isa import Isa, isa_of
from vermilion.codegen.kernel import Step
from vermilion.codegen.program import compile_steps
from vermilion.codegen.tensor import View
from vermilion.errors import OptionError, UnsupportedError, VermilionError
from vermilion.hardware.targets.find import find_target
from vermilion.llm.plugins.archive import Plugin, read_plugin, write_plugin
from vermilion.llm.plugins.decode_operator import decode_steps
from vermilion.llm.plugins.find import plugin_root
from vermilion.llm.plugins.identity import Identity, key_of
from vermilion.llm.plugins.programs import CompiledPrograms, compile_programs
from vermilion.llm.plugins.prompt_operator import number_of, product_program, size_of
from vermilion.llm.plugins.wanted import Needs
from vermilion.progress import Progress, no_progress
from vermilion.runtime.names import check_key


def compile_operator(identity: Identity) -> bytes:
    """Compile one operator.

    Raises: UnsupportedError for an operator that is no matrix product.
    """
    isa = isa_of(find_target(identity.target))
    if identity.is_decode:
        steps, inputs, out = decode_steps(identity)
        return _object(steps, inputs, (out,), isa)
    if set(identity.shape) != {"K", "N"}:
        raise UnsupportedError(f"`{identity.operator}` is no matrix product")
    program = product_program(size_of(identity), number_of(identity), isa)
    return _object(program.steps, program.inputs, program.outputs, isa)


def _object(
    steps: Sequence[Step], inputs: Sequence[View], outputs: Sequence[View], isa: Isa
) -> bytes:
    given, made = ([view.buffer for view in views] for views in (inputs, outputs))
    compiled = compile_steps(steps, given, made, isa, inputs_have_room=True)
    _, *kernels = compiled.objects  # the driver is that of the model's program
    assert len(kernels) == 1, "so few kernels make one object"
    return kernels[0].data


FOLDER = "transaction-plugin"
"""Where the vendor's tool writes plugins, and this one too."""


@dataclass(frozen=True)
class CompiledPlugin:
    """What was written: how many operators were compiled, and how many were there already.

    `programs` is "compiled" or "there", or why the engine does not take the model.
    """

    plugin: Plugin | None
    compiled: int
    reused: int
    programs: str
    seconds: float


def compile_plugin(
    needs: Needs, name: str, folder: Path, progress: Progress = no_progress
) -> CompiledPlugin:
    """Compile what no plugin nearby has, and write `folder/NAME.zip`.

    A model that needs nothing gets no file. What plugins in the same folder and in the one that
    is searched have, and this machine compiled, is taken over.

    Raises: OptionError.
    """
    check_plugin_name(name)
    begin = time.perf_counter()
    identities = needs.identities
    if not identities:
        return CompiledPlugin(None, 0, 0, "", time.perf_counter() - begin)
    nearby = _plugins_nearby([folder, plugin_root()])
    have = {e.key: plugin.object_of(e) for plugin in nearby for e in plugin.entries}
    objects: list[tuple[Identity, bytes]] = []
    compiled = 0
    for number, identity in enumerate(identities):
        progress("compiling", number, len(identities))
        data = have.get(key_of(identity))
        if data is None:
            data = compile_operator(identity)
            compiled += 1
        objects.append((identity, data))
    made = _engine_programs(needs, nearby)
    plugin = write_plugin(
        folder / f"{name}.zip", objects, () if made.programs is None else (made.programs,)
    )
    words = made.reason or ("compiled" if made.compiled else "there")
    seconds = time.perf_counter() - begin
    return CompiledPlugin(plugin, compiled, len(objects) - compiled, words, seconds)


def _engine_programs(needs: Needs, nearby: Sequence[Plugin]) -> CompiledPrograms:
    """Return the engine's own programs for the model, where it runs on this machine."""
    source = needs.model.source
    if find_target("cpu").name not in {identity.target for identity in needs.identities}:
        return CompiledPrograms(None, False, "compiled for other machines than this one")
    if not (source / "genai_config.json").is_file():
        return CompiledPrograms(None, False, "there is no model yet, only its configuration")
    have = {one.architecture: one for plugin in nearby for one in plugin.programs}
    return compile_programs(source, needs.model, needs.number, have)


def write_operator_list(needs: Needs, name: str, groups: Sequence[str], folder: Path) -> Path:
    """Write `NAME/NAME_OPS.json`: what would be compiled, and why the rest would not.

    Raises: OptionError.
    """
    check_plugin_name(name)
    path = folder / name / f"{name}_{'_'.join(groups) or 'all'}.json"
    rows = [
        {
            "op_type": one.row.operator.op_type,
            "roles": one.row.operator.roles,
            "shape": dict(one.row.operator.shape),
            "count": one.row.operator.count,
            "known": one.row.verdict.is_known,
            "compile": [identity.as_json() for identity in one.identities],
            "reason": one.reason,
        }
        for one in needs.asked
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"name": name, "operators": rows}, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise OptionError(
            f"the list cannot be written: {error.strerror or error}", where=str(path)
        ) from error
    return path


def check_plugin_name(name: str) -> None:
    """Raise OptionError for a name that no file can have."""
    try:
        check_key(name)
    except OptionError as error:
        raise OptionError(
            f"`--plugin_name {name[:80]}` cannot be the name of a file",
            hint="use letters, digits, `-`, `_` and `.`",
        ) from error


def _plugins_nearby(folders: Sequence[Path]) -> list[Plugin]:
    """Return the plugins that this machine compiled before; damaged files hold nothing."""
    found: list[Plugin] = []
    for folder in folders:
        for path in sorted(folder.glob("*.zip")) if folder.is_dir() else ():
            try:
                plugin = read_plugin(path)
            except VermilionError:
                continue  # told when it is looked up; here it is only not reused
            if plugin.is_signed_here:
                found.append(plugin)
    return found
