"""pi-prefix-cache: a transparent proxy that makes llama-server prefill each prompt token once."""

__version__ = "0.1.0"
