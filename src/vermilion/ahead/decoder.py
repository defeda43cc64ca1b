"""A language model as a library: its header and its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.ahead.source import LinkedTarget, source_head


@dataclass(frozen=True)
class DecoderFacts:
    """What a caller has to know before the library is opened."""

    name: str
    vocabulary: int
    context: int
    ends: tuple[int, ...]


_HEADER = """\
/* {name}: a language model compiled by Vermilion {version} for {targets}.

   {name}_open makes one, {name}_prefill reads a prompt, {name}_decode one token more; both give the
   logits of what comes next. {name}_close frees it. A function that returns an int returns 0, or a
   number of `enum vermilion_code`: 1 damaged, 2 wrong use, 3 not supported, 4 wrong processor, 5 a
   sequence that must be read again, 7 no memory. {name}_error then says what is wrong, where, and
   what to do about it.

   Threads may share one {name}: they take turns. Memory that is handed over stays the caller's. A
   forked process may go on with it. The tokenizer is the caller's business. */
#ifndef {upper}_H
#define {upper}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define {upper}_VOCABULARY {vocabulary} /* logits of a position */
#define {upper}_CONTEXT {context} /* the longest sequence, in tokens */
#define {upper}_ENDS {{{ends}}} /* tokens that end a text */
#define {upper}_END_COUNT {end_count}

typedef struct {name} {name};

/* A sequence, in memory of the caller's: {name}_cache_bytes bytes for `capacity` tokens, aligned to
   64, which need not be cleared. `length` is how many tokens are in it: 0 to begin, less than it is
   to forget the last ones; reading adds to it. The rest is the library's. */
typedef struct {name}_cache {{
  void *memory;
  size_t bytes;
  int64_t capacity;
  int64_t length;
  int32_t is_long;
}} {name}_cache;

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

/* How many bytes a sequence of at most `capacity` tokens takes; 0 where there is no such length. */
size_t {name}_cache_bytes(const {name} *model, int64_t capacity);

/* Append tokens. `logits` are {upper}_VOCABULARY numbers, of what follows the last token; NULL
   where they are not wanted, as of all pieces of a prompt but its last. `pool` may be NULL. */
int {name}_prefill({name} *model, {name}_cache *cache, const int64_t *tokens, size_t count,
                   float *logits, const {name}_pool *pool);

/* Append one token. */
int {name}_decode({name} *model, {name}_cache *cache, int64_t token, float *logits,
                  const {name}_pool *pool);

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

# What the source below calls of the library.
_CALLED = (
    "vermilion_cache_bytes", "vermilion_decoder_free", "vermilion_decoder_open_linked",
    "vermilion_decoder_read", "vermilion_decoder_target", "vermilion_status_code",
    "vermilion_status_free", "vermilion_status_text",
)  # fmt: skip

_FUNCTIONS = """\
LINKED_EXPORT int {name}_open({name} **model, int workers) {{
  vermilion_decoder *made;
  if (!model) return linked_no(VERMILION_ERROR_OPTION, "a pointer is NULL\\nhint: give all");
  *model = NULL;
  int code = linked_say(
      vermilion_decoder_open_linked(linked_targets, {target_count}, workers, &made));
  if (!code) *model = ({name} *)made;
  return code;
}}

LINKED_EXPORT void {name}_close({name} *model) {{
  vermilion_decoder_free((vermilion_decoder *)model);
}}

LINKED_EXPORT const char *{name}_target(const {name} *model) {{
  return vermilion_decoder_target((const vermilion_decoder *)model);
}}

LINKED_EXPORT size_t {name}_cache_bytes(const {name} *model, int64_t capacity) {{
  return vermilion_cache_bytes((const vermilion_decoder *)model, capacity);
}}

LINKED_EXPORT int {name}_prefill({name} *model, {name}_cache *cache, const int64_t *tokens,
                                 size_t count, float *logits, const {name}_pool *pool) {{
  vermilion_pool given = {{sizeof given, 0, NULL, NULL}};
  if (!model || !cache)
    return linked_no(VERMILION_ERROR_OPTION, "a pointer is NULL\\nhint: give a model and a cache");
  vermilion_cache own = {{sizeof own, cache->memory, cache->bytes, cache->capacity, cache->length,
                         cache->is_long, NULL}};
  if (pool) {{
    given.workers = pool->workers;
    given.context = pool->context;
    given.parallel_for = pool->parallel_for;
  }}
  int code = linked_say(vermilion_decoder_read((vermilion_decoder *)model, &own, tokens, count,
                                               logits, pool ? &given : NULL));
  cache->length = own.length;
  cache->is_long = own.is_long;
  return code;
}}

LINKED_EXPORT int {name}_decode({name} *model, {name}_cache *cache, int64_t token, float *logits,
                                const {name}_pool *pool) {{
  return {name}_prefill(model, cache, &token, 1, logits, pool);
}}
"""


def decoder_header(facts: DecoderFacts, targets: str, version: str) -> str:
    """Return the text of the header."""
    return _HEADER.format(
        name=facts.name,
        upper=facts.name.upper(),
        version=version,
        targets=targets,
        vocabulary=facts.vocabulary,
        context=facts.context,
        ends=", ".join(map(str, facts.ends)),
        end_count=len(facts.ends),
    )


def decoder_source(name: str, targets: Sequence[LinkedTarget]) -> str:
    """Return the source. The first target that a processor has the features of is chosen."""
    return source_head(name, _CALLED, targets) + _FUNCTIONS.format(
        name=name, target_count=len(targets)
    )
