"""Where `pi-prefix-cache` and `python -m proxy` begin: find the command, run it."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from proxy import __version__
from proxy.errors import PrefixCacheError

USAGE = """usage: pi-prefix-cache [COMMAND] [flags]

  serve    run the proxy (the default)
  doctor   check server, settings and files; each fault with what to change
  status   what the running proxy does, as its page shows it; --watch follows
  explain  why the last request found no prefix: what of it has changed
  warm     have the last prefix restored or built now
  ls       list checkpoints
  show     tell all about one checkpoint
  rm       delete checkpoints
  prune    delete what the limits say, now
  demo     start a tiny model and compare sessions with and without the proxy

  pi-prefix-cache COMMAND --help tells a command's flags; --version the version.
"""

# Imported when asked for: `demo` needs packages that a running proxy does not.
COMMANDS = {
    "serve": "proxy.commands.serve",
    "doctor": "proxy.commands.doctor",
    "status": "proxy.commands.status",
    "explain": "proxy.commands.explain",
    "warm": "proxy.commands.warm",
    "ls": "proxy.commands.checkpoints",
    "show": "proxy.commands.checkpoints",
    "rm": "proxy.commands.checkpoints",
    "prune": "proxy.commands.checkpoints",
    "demo": "proxy.commands.demo",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args[:1] in (["-h"], ["--help"], ["help"]):
        sys.stdout.write(USAGE)
        return 0
    if args[:1] == ["--version"]:
        sys.stdout.write(f"pi-prefix-cache {__version__}\n")
        return 0
    name = args.pop(0) if args and not args[0].startswith("-") else "serve"
    if name not in COMMANDS:
        sys.stderr.write(f"pi-prefix-cache: no command {name!r}\n\n{USAGE}")
        return 2
    command: Callable[[Sequence[str]], int] = getattr(import_module(COMMANDS[name]), name)
    try:
        return command(args)
    except PrefixCacheError as error:
        sys.stderr.write(f"pi-prefix-cache: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
