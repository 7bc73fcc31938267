"""The running proxy: forwarding, the engine that owns the ledger, the executor of plans, the application."""
