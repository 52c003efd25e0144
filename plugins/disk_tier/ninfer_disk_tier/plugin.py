"""What this distribution registers. Imports no torch."""

from ninfer_core.api import StateTierSpec, hookimpl

NINFER_API = (1, 0)


@hookimpl
def ninfer_state_tiers() -> list[StateTierSpec]:
    return [StateTierSpec("disk", "ninfer_disk_tier.tier:DiskTier")]
