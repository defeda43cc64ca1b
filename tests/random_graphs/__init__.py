"""Random legal graphs: grown from a seed, run in generated code between guard pages, judged."""
