"""Where `pi-prefix-cache` and `python -m proxy` begin: find the command, run it."""

import sys
from collections.abc import Callable, Sequence

from proxy import __version__
from proxy.errors import PrefixCacheError

USAGE = """usage: pi-prefix-cache [COMMAND] [flags]

  serve   run the proxy (the default)
  demo    start a tiny model and compare sessions with and without the proxy

  pi-prefix-cache COMMAND --help tells a command's flags; --version the version.
"""


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
    command = _command(name)
    if command is None:
        sys.stderr.write(f"pi-prefix-cache: no command {name!r}\n\n{USAGE}")
        return 2
    try:
        return command(args)
    except PrefixCacheError as error:
        sys.stderr.write(f"pi-prefix-cache: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def _command(name: str) -> Callable[[Sequence[str]], int] | None:
    # Imported when asked for: `demo` needs packages that a running proxy does not.
    if name == "serve":
        from proxy.commands.serve import serve  # noqa: PLC0415

        return serve
    if name == "demo":
        from proxy.commands.demo import demo  # noqa: PLC0415

        return demo
    return None


if __name__ == "__main__":
    sys.exit(main())
