"""Recalling the prefix of a checkpoint that nobody has asked for yet, with its tokens.

Without the tokens it could not be verified before the first request is let in. Where they are not in memory, and the
file that has them can't be seen, the checkpoint is left to the request that needs it.
"""

import asyncio
from array import array
from datetime import date

from proxy.checkpoints.inspection import read_head
from proxy.checkpoints.key import checkpoint_key, final_name
from proxy.checkpoints.record import Checkpoint
from proxy.checkpoints.state_file import Header
from proxy.serving.context import Context
from proxy.serving.model import ExactPrefix


async def latest_checkpoint(context: Context) -> ExactPrefix | None:
    """The most recently used prefix of this model that can be restored."""
    identity, store = context.model.identity, context.store
    record = store.latest(identity) if identity else None
    if record is None or not store.disk(record.key).has_checkpoint:
        return None
    known = context.model.by_key(record.key)
    return known if known is not None and known.tokens else await _from_its_file(context, record)


async def _from_its_file(context: Context, record: Checkpoint) -> ExactPrefix | None:
    """Read from the file itself, whose name must follow from the tokens in it."""
    directory = context.store.directory
    if directory is None:
        return None
    head = await asyncio.to_thread(read_head, directory / final_name(record.key))
    if not isinstance(head, Header):
        return None
    if checkpoint_key(record.model, record.lora, record.server_id, head.tokens) != record.key:
        return None
    prefix = ExactPrefix(record.key, array("i", head.tokens), len(head.tokens), date.today())
    context.model.remember(record.key, prefix)
    return prefix
