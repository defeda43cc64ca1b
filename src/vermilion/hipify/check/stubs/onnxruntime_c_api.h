#pragma once
#include <onnxruntime_cxx_api.h>
