"""The C source of a compiled model: the C library, its tables, the functions of its header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.ahead.interface import Field, Interface


@dataclass(frozen=True)
class LinkedPart:
    """A part of a model for one target. Symbols of its texts and weights begin with `symbol`.

    `table_bytes` 0: it has functions alone, and no weights.
    """

    name: str
    symbol: str
    table_bytes: int
    weights: str  # the symbol of its weights, which other targets may share
    weights_bytes: int
    functions: tuple[str, ...]


@dataclass(frozen=True)
class LinkedTarget:
    """A model for one target."""

    symbol: str
    manifest_bytes: int
    parts: tuple[LinkedPart, ...]


# What the source below calls of the library.
_CALLED = (
    "vermilion_open_linked", "vermilion_model_free", "vermilion_model_target", "vermilion_run",
    "vermilion_session_free", "vermilion_session_new", "vermilion_shapes",
    "vermilion_status_code", "vermilion_status_free", "vermilion_status_text",
)  # fmt: skip

_HEAD = """\
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The library's functions have the model's name in front: two models can be in one program. */
{renamed}#define VERMILION_API
#include "linked.h"

#include "{name}.h"

#define LINKED_EXPORT __attribute__((visibility("default")))
#define LINKED_INSIDE __attribute__((visibility("hidden")))

"""

_SAID = """\
static _Thread_local char linked_said[4096];

static int linked_say(vermilion_status *status) {{
  int code = (int)vermilion_status_code(status);
  if (status) snprintf(linked_said, sizeof linked_said, "%s", vermilion_status_text(status));
  vermilion_status_free(status);
  return code;
}}

static int linked_no(int code, const char *said) {{
  snprintf(linked_said, sizeof linked_said, "%s", said);
  return code;
}}

LINKED_EXPORT const char *{name}_error(void) {{ return linked_said; }}

"""

_FUNCTIONS = """\
struct {name} {{
  vermilion_model *model;
  vermilion_session *session;
}};

LINKED_EXPORT int {name}_open({name} **model, int workers) {{
  vermilion_session_options options = {{sizeof options, workers}};
  if (!model) return linked_no(VERMILION_ERROR_OPTION, "a pointer is NULL\\nhint: give all");
  *model = NULL;
  {name} *made = calloc(1, sizeof *made);
  if (!made) return linked_no(VERMILION_ERROR_MEMORY, "the system has no more memory");
  vermilion_status *status = vermilion_open_linked(linked_targets, {target_count}, &made->model);
  if (!status) status = vermilion_session_new(made->model, &options, &made->session);
  if (status) {{
    {name}_close(made);
    return linked_say(status);
  }}
  *model = made;
  return 0;
}}

LINKED_EXPORT void {name}_close({name} *model) {{
  if (!model) return;
  vermilion_session_free(model->session);
  vermilion_model_free(model->model);
  free(model);
}}

LINKED_EXPORT const char *{name}_target(const {name} *model) {{
  return model ? vermilion_model_target(model->model) : "";
}}

static void linked_fill(const {name}_inputs *inputs, const {name}_outputs *outputs,
                    vermilion_tensor *in, vermilion_tensor *out) {{
  (void)inputs, (void)outputs, (void)in, (void)out;
{fill}}}

static void linked_tell(const vermilion_tensor *out, {name}_outputs *outputs) {{
  (void)out, (void)outputs;
{tell}}}

static int linked_call({name} *model, const {name}_inputs *inputs, {name}_outputs *outputs,
                   const {name}_pool *pool, bool is_run) {{
  vermilion_tensor in[{input_count} + 1], out[{output_count} + 1];
  vermilion_pool given = {{sizeof given, 0, NULL, NULL}};
  if (!model || !inputs || !outputs)
    return linked_no(VERMILION_ERROR_OPTION, "a pointer is NULL\\nhint: give all three");
  if (pool) {{
    given.workers = pool->workers;
    given.context = pool->context;
    given.parallel_for = pool->parallel_for;
  }}
  memset(in, 0, sizeof in);
  memset(out, 0, sizeof out);
  linked_fill(inputs, outputs, in, out);
  vermilion_session *session = model->session;
  vermilion_status *status =
      is_run ? vermilion_run(session, in, {input_count}, out, {output_count}, pool ? &given : NULL)
             : vermilion_shapes(session, in, {input_count}, out, {output_count});
  if (!status) linked_tell(out, outputs);
  return linked_say(status);
}}

LINKED_EXPORT int {name}_run({name} *model, const {name}_inputs *inputs, {name}_outputs *outputs) {{
  return linked_call(model, inputs, outputs, NULL, true);
}}

LINKED_EXPORT int {name}_run_on({name} *model, const {name}_inputs *inputs, {name}_outputs *outputs,
                            const {name}_pool *pool) {{
  return linked_call(model, inputs, outputs, pool, true);
}}

LINKED_EXPORT int {name}_shapes({name} *model, const {name}_inputs *inputs,
                                {name}_outputs *outputs) {{
  return linked_call(model, inputs, outputs, NULL, false);
}}
"""


def source_text(interface: Interface, targets: Sequence[LinkedTarget]) -> str:
    """Return the source. The first target that a processor has the features of is chosen."""
    body = _FUNCTIONS.format(
        name=interface.name,
        target_count=len(targets),
        input_count=len(interface.inputs),
        output_count=len(interface.outputs),
        fill="".join(
            _fill(field, number, is_output=is_output)
            for is_output, fields in ((False, interface.inputs), (True, interface.outputs))
            for number, field in enumerate(fields)
        ),
        tell="".join(
            f"  memcpy(outputs->{field.name}_shape, out[{number}].shape,"
            f" sizeof outputs->{field.name}_shape);\n"
            for number, field in enumerate(interface.outputs)
            if field.is_open
        ),
    )
    return source_head(interface.name, _CALLED, targets) + body


def source_head(name: str, called: Sequence[str], targets: Sequence[LinkedTarget]) -> str:
    """Return what a source begins with: names of the library that it calls, and its tables."""
    renamed = "".join(f"#define {one} {name}_{one}\n" for one in called)
    rows = "".join(
        f'    {{"{name}", {target.symbol}_manifest, {target.manifest_bytes},'
        f" {target.symbol}_parts, {len(target.parts)}}},\n"
        for target in targets
    )
    return (
        _HEAD.format(name=name, renamed=renamed)
        + "".join(map(_target, targets))
        + f"static const vermilion_linked linked_targets[] = {{\n{rows}}};\n\n"
        + _SAID.format(name=name)
    )


def _target(target: LinkedTarget) -> str:
    lines = [_text(f"{target.symbol}_manifest")]
    for part in target.parts:
        if part.table_bytes:
            lines += [_text(f"{part.symbol}_table"), _text(part.weights)]
        lines += [
            f"extern void {part.symbol}_{name}(void) LINKED_INSIDE;\n" for name in part.functions
        ]
        rows = ", ".join(f'{{"{name}", {part.symbol}_{name}}}' for name in part.functions)
        if rows:
            lines.append(
                f"static const vermilion_linked_function {part.symbol}_functions[] = {{{rows}}};\n"
            )
    rows = ", ".join(map(_part, target.parts))
    lines.append(f"static const vermilion_linked_part {target.symbol}_parts[] = {{{rows}}};\n\n")
    return "".join(lines)


def _part(part: LinkedPart) -> str:
    texts = f"{part.symbol}_table, {part.table_bytes}, (const unsigned char *){part.weights}"
    if not part.table_bytes:
        texts = "NULL, 0, NULL"
    functions = f"{part.symbol}_functions" if part.functions else "NULL"
    return f'{{"{part.name}", {texts}, {part.weights_bytes}, {functions}, {len(part.functions)}}}'


def _text(symbol: str) -> str:
    return f"extern const char {symbol}[] LINKED_INSIDE;\n"


def _fill(field: Field, number: int, *, is_output: bool) -> str:
    side, tensor = ("outputs", f"out[{number}]") if is_output else ("inputs", f"in[{number}]")
    lines = [
        f"  {tensor}.data = (void *){side}->{field.name};\n",
        f"  {tensor}.type = {field.number};\n",
        f"  {tensor}.rank = {len(field.shape)};\n",
    ]
    if is_output and field.is_open:
        lines.append(f"  {tensor}.bytes = outputs->{field.name}_room * sizeof({field.type});\n")
        return "".join(lines)
    if field.is_open:
        lines.append(f"  memcpy({tensor}.shape, inputs->{field.name}_shape,"
                     f" sizeof inputs->{field.name}_shape);\n")  # fmt: skip
        lines.append(f"  {tensor}.bytes = SIZE_MAX / 2;\n")  # the shape says how many
        return "".join(lines)
    lines += [
        f"  {tensor}.shape[{axis}] = {size};\n"
        for axis, size in enumerate(field.shape)
        if not is_output
    ]
    lines.append(f"  {tensor}.bytes = (size_t){field.elements} * sizeof({field.type});\n")
    return "".join(lines)
