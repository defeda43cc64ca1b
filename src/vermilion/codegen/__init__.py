"""Our code generator: lowered kernels → LLVM IR → machine code for x86 processors."""
