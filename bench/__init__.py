"""Measurements on real servers: how many tokens conversations cost (`prefill`), how fast a restart is (`restart`)."""
