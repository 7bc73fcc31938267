"""What a proxy adds to each request, side by side: this one, a bare forwarder, nginx, another prompt-cache proxy."""
