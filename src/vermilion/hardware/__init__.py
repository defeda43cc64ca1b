"""Targets (what a chip can do), devices (what is in this machine), doctor (what is wrong)."""
