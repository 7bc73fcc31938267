"""How to talk to llama-server: client, renderer, answers, probe."""
