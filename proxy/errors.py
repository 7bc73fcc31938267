"""The errors of this project: one base, and a leaf for each answer to "whose fault, and what now".

Those that can befall a request in flight name the status with which the client is answered; the libraries'
own exceptions are turned into these where the libraries are called, and nowhere else.  Names say what
happened, so that they read well in a log line.
"""

from typing import ClassVar


class PrefixCacheError(Exception):
    """Anything that goes wrong here for a reason that a person can act on."""

    status: ClassVar[int] = 500


class BadBaseUrl(PrefixCacheError):  # noqa: N818
    """The upstream's address in the settings is not one that can be used."""


class RequestRefused(PrefixCacheError):  # noqa: N818
    """The client's request is malformed: no two servers would read it alike."""

    status = 400


class NotForwardable(PrefixCacheError):  # noqa: N818
    """The client asks for something that a reverse proxy does not do, such as a tunnel."""

    status = 501


class UpstreamUnreachable(PrefixCacheError):  # noqa: N818
    """No connection to the upstream could be made: nothing was sent."""

    status = 502


class UpstreamBroken(PrefixCacheError):  # noqa: N818
    """The upstream took the connection and then closed it, or answered with something that is not HTTP."""

    status = 502


class UpstreamTimeout(PrefixCacheError):  # noqa: N818
    """The upstream did not accept a connection in time."""

    status = 504


class UpstreamIsSelf(PrefixCacheError):  # noqa: N818
    """The upstream is this proxy: forwarding would never end."""

    status = 508
