"""Sessions of native libraries in a child process, which may hang or die at any line."""
