"""What each chip can do: one sourced file a chip, `find.py` from a name to its target."""
