/* A model that is linked into a program: `vermilion compile -o NAME.so` writes one of these. What
   calls it is compiled apart from the library; VERMILION_LINKED says that this is wanted of it. */
#ifndef VERMILION_LINKED_H
#define VERMILION_LINKED_H

#include "vermilion.h"

typedef struct vermilion_linked_function {
  const char *name;
  const void *address;
} vermilion_linked_function;

/* A part: the text of its `kernels.json`, its packed weights, the functions of its objects. */
typedef struct vermilion_linked_part {
  const char *name;
  const char *table;
  size_t table_bytes;
  const unsigned char *weights;
  size_t weights_bytes;
  const vermilion_linked_function *functions;
  size_t function_count;
} vermilion_linked_part;

/* The model for one target. `manifest` is the text of `manifest.json`. */
typedef struct vermilion_linked {
  const char *name;
  const char *manifest;
  size_t manifest_bytes;
  const vermilion_linked_part *parts;
  size_t part_count;
} vermilion_linked;

/* Open the first of several that this processor has all features for. */
VERMILION_API vermilion_status *vermilion_open_linked(const vermilion_linked *targets, size_t count,
                                                      vermilion_model **model);

/* The same of a language model: of its parts the first is `decoder`, with the table and the arrays, the
   others are `decoder/few` and so on, with the functions of its programs. */
VERMILION_API vermilion_status *vermilion_decoder_open_linked(const vermilion_linked *targets, size_t count,
                                                              int32_t workers, vermilion_decoder **decoder);

#endif
