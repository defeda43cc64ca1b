"""Many inputs through one model: a queue, a process for each device, a journal, one output."""
