"""Model files with something wrong in them, each put through the whole path in its own process."""
