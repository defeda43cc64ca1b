/* The library, compiled as one file. */
#define _GNU_SOURCE
#ifndef VERMILION_VERSION
#define VERMILION_VERSION "unknown"
#endif
#include "internal.h"

#include "printable.c"
#include "status.c"
#include "json.c"
#include "sha256.c"
#include "system.c"
#include "object.c"
#include "files.c"
#include "ed25519.c"
#include "trust.c"
#include "manifest.c"
#include "program.c"
#include "sized.c"
#include "threads.c"
#include "session.c"
#include "model.c"
#include "decoder.c"
#include "decoder_open.c"
