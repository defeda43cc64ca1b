"""Rewrites that leave the outputs as they are: one file a pass, `pipeline.py` is their order."""
