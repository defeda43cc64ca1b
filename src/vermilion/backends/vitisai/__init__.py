"""The VitisAI provider, driven from outside: in a child process, and never taken at its word."""
