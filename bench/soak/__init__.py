"""Random use for as long as you like: one proxy under mixed load and faults (`mix`), or rounds of tests (`rounds`)."""
