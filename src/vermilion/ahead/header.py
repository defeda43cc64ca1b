"""`NAME.h`: what a program includes that calls a compiled model."""

from __future__ import annotations

from vermilion.ahead.interface import Field, Interface

_TEXT = """\
/* {name}: a model compiled by Vermilion {version} for {targets}.

   {name}_open makes one, {name}_run runs it, {name}_close frees it. A function that returns an
   int returns 0, or a number of `enum vermilion_code`: 1 damaged, 2 wrong use, 3 not supported,
   4 wrong processor, 5 sizes that the code is not for, 7 no memory, 8 a wrong number in an input.
   {name}_error then says what is wrong, where, and what to do about it.

   Threads may share one {name}: their runs take turns. Runs at the same time want one each; code
   and weights are shared. Memory that is handed over stays the caller's. A forked process may go
   on with it. */
#ifndef {upper}_H
#define {upper}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

typedef struct {name} {name};

{sizes}/* Tensors are dense, in C order, aligned as their elements are. */
typedef struct {name}_inputs {{
{inputs}}} {name}_inputs;

/* An output whose pointer is NULL is not handed out. What is aligned to 16 bytes is written in
   place. `_room` is how many elements there is room for; `_shape` is set by the run. */
typedef struct {name}_outputs {{
{outputs}}} {name}_outputs;

/* Threads of the caller's: `parallel_for` calls task(work, 0) to task(work, count - 1), side by
   side or not, and returns 0 when all have returned. */
typedef struct {name}_pool {{
  size_t workers;
  void *context;
  int (*parallel_for)(void *context, void (*task)(void *work, size_t index), size_t count,
                      void *work);
}} {name}_pool;

/* `workers` threads run it, the caller's among them; 0: as many as are of use here. */
int {name}_open({name} **model, int workers);

int {name}_run({name} *model, const {name}_inputs *inputs, {name}_outputs *outputs);

/* The same on threads of the caller's. */
int {name}_run_on({name} *model, const {name}_inputs *inputs, {name}_outputs *outputs,
                  const {name}_pool *pool);

/* Set the outputs' `_shape` for inputs of these shapes, without computing anything. */
int {name}_shapes({name} *model, const {name}_inputs *inputs, {name}_outputs *outputs);

void {name}_close({name} *model);

/* What the last call that failed in this thread had to say. */
const char *{name}_error(void);

/* The target whose code was chosen for this processor. */
const char *{name}_target(const {name} *model);

#ifdef __cplusplus
}}
#endif
#endif
"""


def header_text(interface: Interface, targets: str, version: str) -> str:
    """Return the text of the header."""
    name = interface.name
    fixed = [field for field in (*interface.inputs, *interface.outputs) if not field.is_open]
    sizes = "".join(
        f"#define {name.upper()}_{field.name.upper()}_SIZE {field.elements}"
        f" /* elements of `{_plain(field.tensor)}` */\n"
        for field in fixed
    )
    return _TEXT.format(
        name=name,
        upper=name.upper(),
        version=version,
        targets=targets,
        sizes=sizes + ("\n" if sizes else ""),
        inputs="".join(_lines(field, is_output=False) for field in interface.inputs)
        or "  char nothing;\n",
        outputs="".join(_lines(field, is_output=True) for field in interface.outputs)
        or "  char nothing;\n",
    )


def _lines(field: Field, *, is_output: bool) -> str:
    constant = "" if is_output else "const "
    about = f"`{_plain(field.tensor)}`, {_plain(field.shape_text)}"
    lines = [f"  {constant}{field.type} *{field.name}; /* {about} */\n"]
    if field.is_open:
        lines.append(f"  int64_t {field.name}_shape[{len(field.shape)}];\n")
        if is_output:
            lines.append(f"  size_t {field.name}_room;\n")
    return "".join(lines)


def _plain(text: str) -> str:
    """Return a name of the model's that cannot end the comment that it stands in."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("*/", "* /")[:200]
