"""Running a model literally: each node as the standard says, nothing fused, nothing folded."""
