"""AMDGPU code objects: read, assembled again, executed instruction by instruction on the CPU."""
