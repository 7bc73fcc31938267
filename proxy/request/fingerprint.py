"""The fingerprint: one name for "the same install, model and settings", for people and logs.

It is a hash over what the *request* says, with sorted keys, so that it survives everything that doesn't matter (key
order, whitespace, the user's words, the folder, the date). It decides nothing: whether a checkpoint fits is decided
by token ids, under the key that `rendering.rendering_key` guards.
"""

import hashlib
import re
from dataclasses import astuple, dataclass

import orjson

from proxy.request.body import ChatRequest
from proxy.request.prefix import StablePrefix
from proxy.request.rendering import rendering_inputs

FORMAT = "pi-prefix-fingerprint-1"
SHOWN_DIGITS = 16
UNKNOWN_CLIENT = "unknown"

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}"  # noqa: S105 - HTTP's word for a word
_PRODUCT = re.compile(rf"\s*({_TOKEN}(?:/{_TOKEN})?)(?=[\s(]|$)")


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which model a state belongs to, as far as can be known from here."""

    model_id: str
    file: str
    """Size and modification time of the model file, "" where it can't be seen."""
    meta: str
    """Canonical JSON of the `meta` in `/v1/models`, without times of the day."""
    model_path: str
    lora: str
    server_id: str

    def settled(self) -> "ModelIdentity":
        """The identity that counts: the file where it can be seen, else what the server says of it."""
        if not self.file:
            return self
        return ModelIdentity(self.model_id, self.file, "", "", self.lora, self.server_id)


def fingerprint(request: ChatRequest, prefix: StablePrefix, identity: ModelIdentity, client: str) -> str:
    """SHA-256 of all that makes two first requests the same, as 64 hex digits."""
    told = {
        "format": FORMAT,
        "identity": [_clean(value) for value in astuple(identity.settled())],
        "client": _clean(client),
        "rendering": rendering_inputs(request),
        "prefix": prefix.text,
    }
    return hashlib.sha256(orjson.dumps(told, option=orjson.OPT_SORT_KEYS)).hexdigest()


def shown(full: str) -> str:
    """A fingerprint as people see it."""
    return full[:SHOWN_DIGITS]


def client_version(user_agent: str | None) -> str:
    """The first product of a `User-Agent` header, such as `pi/1.6.0`."""
    match = _PRODUCT.match(user_agent or "")
    return match[1] if match else UNKNOWN_CLIENT


def _clean(text: str) -> str:
    """Text that has a UTF-8 form: paths and headers may carry bytes that have none."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
