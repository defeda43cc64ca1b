"""Claims, refusals, limits: which node runs where, in which order, and why."""
