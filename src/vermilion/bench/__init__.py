"""Latency, memory and accuracy of a model beside its peers, each engine in a process of its own."""
