"""What breaks, or means something else, on AMD hardware: one function a rule."""
