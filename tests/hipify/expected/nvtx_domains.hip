#include <roctracer/roctx.h>

// Domains and attributes have no counterpart: each use is reported.
void marked() {
  nvtxEventAttributes_t attributes = {};
  nvtxRangePushEx(&attributes);
  roctx_range_id_t range = roctxRangeStart("phase");
  roctxRangeStop(range);
  roctxRangePop();
}
