// Stub for the compile check.
#pragma once
#include <hip/amd_detail/amd_hip_gl_interop.h>
