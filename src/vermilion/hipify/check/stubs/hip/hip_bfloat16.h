// Stub for the compile check: the older header of bfloat16, whose type is that of the newer.
#pragma once
#include <hip/hip_bf16.h>
