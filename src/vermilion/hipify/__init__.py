"""CUDA C++ source → HIP C++ source, with a lint for AMD hardware and a compile check."""
