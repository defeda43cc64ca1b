"""Everything that is kept between runs: entries by namespace, signed, locked while written."""
