"""What is on disk: checkpoint keys, records, state files, clean-up; only the index does I/O."""
