"""Tiny models, servers to start and agent-shaped sessions, for the demo, the tests and the benches."""
