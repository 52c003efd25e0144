"""What this distribution registers for two machines. Imports no torch."""

from ninfer_core.api import HardwareProfileSpec, hookimpl

NINFER_API = (1, 0)


@hookimpl
def ninfer_hardware_profiles() -> list[HardwareProfileSpec]:
    return [
        HardwareProfileSpec(
            name="dual_spark",
            detect="ninfer_profile_dgx_spark.dual:detect",
            profile="ninfer_profile_dgx_spark.dual:profile",
        )
    ]
