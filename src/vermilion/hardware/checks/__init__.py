"""What `doctor` looks for: one function a fault, grouped by what is ill."""
