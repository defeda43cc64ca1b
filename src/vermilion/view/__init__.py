"""One page that shows a model: its map, where nodes run, time, error, memory, and what differs."""
