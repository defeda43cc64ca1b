"""Weights of products rounded to 4 bits so that their errors cancel, operation after operation."""
