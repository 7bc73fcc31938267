"""What a request says: pure, no I/O (body, stable prefix, fingerprint, conversation, rendering inputs)."""
