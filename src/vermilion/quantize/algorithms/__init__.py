"""Ways to change a float model so that it loses less when it is rounded."""
