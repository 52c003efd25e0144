"""What this distribution registers. Imports no torch."""

from ninfer_core.api import HardwareProfileSpec, hookimpl

NINFER_API = (1, 0)


@hookimpl
def ninfer_hardware_profiles() -> list[HardwareProfileSpec]:
    return [
        HardwareProfileSpec(
            name="rtx5090",
            detect="ninfer_profile_rtx5090.profile:detect",
            profile="ninfer_profile_rtx5090.profile:profile",
        )
    ]
