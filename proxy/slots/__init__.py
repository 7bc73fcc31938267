"""What the server holds and what to do about it: ledger, prediction, planner, verdict. Pure."""
