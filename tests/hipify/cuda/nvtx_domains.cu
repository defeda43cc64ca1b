#include <nvtx3/nvToolsExt.h>

// Domains and attributes have no counterpart: each use is reported.
void marked() {
  nvtxEventAttributes_t attributes = {};
  nvtxRangePushEx(&attributes);
  nvtxRangeId_t range = nvtxRangeStartA("phase");
  nvtxRangeEnd(range);
  nvtxRangePop();
}
