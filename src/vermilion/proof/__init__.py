"""The judge of compiled models: bounds by number format, noise runs, float64 as arbiter.

It knows nothing of backends: native parts, providers in child processes and programs for GPUs are
judged by the same rules (docs/proof.md).
"""
