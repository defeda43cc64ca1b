/* What the files of the plugin share. They are compiled as one: `ep.c` includes them all. */
#ifndef VERMILION_EP_H
#define VERMILION_EP_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime_abi.h"
#include "vermilion.h"

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#endif

static const char EP_NAME[] = "VermilionExecutionProvider";
/* ONNX Runtime's own prefix for options of a provider: `ep.`, its name in lower case, a dot. */
static const char EP_THREADS[] = "ep.vermilionexecutionprovider.threads";
static const char EP_CONTEXT_PATH[] = "ep.context_file_path";
static const char EP_AGAIN[] = "write it again with `vermilion compile MODEL --ep-context`";

/* The part that is a language model: `llm/ahead/parts.py` says the same. */
static const char EP_DECODER[] = "decoder";

#define EP_MOST_PATH 4096
#define EP_MOST_THREADS 1024
#define EP_ALIGNMENT 64

/* Return a status where there is one. */
#define EP_TRY(status)                                                                             \
  do {                                                                                             \
    OrtStatus *tried_ = (status);                                                                  \
    if (tried_) return tried_;                                                                     \
  } while (0)

typedef struct ep_factory {
  OrtEpFactory base; /* first: ONNX Runtime knows this one */
  ort_functions ort;
} ep_factory;

typedef struct ep_provider {
  OrtEp base;
  const ort_functions *ort;
  size_t threads;
  char folder[EP_MOST_PATH]; /* of the model, where the session's options say it; else empty */
} ep_provider;

/* Sessions of a node that nobody runs at the moment. */
typedef struct ep_idle {
  vermilion_session *session;
  struct ep_idle *next;
} ep_idle;

typedef struct ep_node {
  OrtNodeComputeInfo base;
  const ort_functions *ort;
  size_t threads;
  void *bytes; /* the compiled model, where the node held it */
  vermilion_model *model; /* NULL: a language model's decoder */
  vermilion_decoder *decoder;
  /* Of each of the part's inputs and outputs, which of the fused node's it is; SIZE_MAX for an output
     that nobody reads. */
  size_t *inputs, *outputs, input_count, output_count;
  atomic_flag is_taken; /* while `idle` is changed: some nanoseconds */
  ep_idle *idle;
} ep_node;

#endif
