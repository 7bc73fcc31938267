"""`SLOT=N`: what of a plan is left where all preparation is confined to one slot, as a pure function.

The server goes on choosing among all of its slots, so a request may still end up in any of them. Nothing but that one
slot is changed by us; a copy leaves a slot as it is, and counts as a use of it. Counterpart: `planner` makes the plan.
"""

from collections.abc import Sequence
from dataclasses import replace

from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Need
from proxy.slots.ledger import SlotBelief
from proxy.slots.plan import Anchor, Clear, Copy, Keep, Plan, Requeue, Restore, Source, nothing
from proxy.slots.prediction import choose


def confined(wanted: Plan, need: Need, idle: Sequence[SlotBelief], able: Capabilities, only_slot: int | None) -> Plan:
    """The plan, unless it would change another slot than the one that is ours to prepare; a copy changes nothing."""
    if only_slot is None:
        return wanted
    changed = {step.slot for step in wanted.steps if isinstance(step, Clear | Restore)}
    if wanted.source is Source.WARM_UP:
        if not changed:
            return _led_to(only_slot, wanted, need, idle, able)
        # What was restored leads there; what is only emptied is no more likely to be chosen than others.
        is_led = able.total_slots == 1 or any(isinstance(step, Restore) for step in wanted.steps)
        return wanted if is_led and changed == {only_slot} else nothing("other_slot")
    if any(isinstance(step, Keep | Anchor | Requeue) for step in wanted.steps):
        changed.add(-1 if wanted.slot is None else wanted.slot)  # a prompt of ours goes where the request would
    return wanted if changed <= {only_slot} and wanted.slot in (None, only_slot) else nothing("other_slot")


def _led_to(only_slot: int, wanted: Plan, need: Need, idle: Sequence[SlotBelief], able: Capabilities) -> Plan:
    """The warm-up, with copies after which this slot is the least recently used one: a copy counts as a use.

    What the least recently used slot holds is copied by the server itself.
    """
    choice = choose(need, idle)
    only = next((b for b in idle if b.slot == only_slot), None)
    if choice is None or only is None or (choice.by_similarity and choice.slot != only_slot):
        return nothing("other_slot")
    if choice.by_similarity:
        return wanted
    order = (only.last_used, -only.slot)
    leading = tuple(Copy(b.slot) for b in idle if (b.last_used, -b.slot) < order)
    if leading and not able.keeps_copies:
        return nothing("other_slot")
    return replace(wanted, steps=(*leading, *(step for step in wanted.steps if not isinstance(step, Copy))))
