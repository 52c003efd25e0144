"""Compiling what bound ops launch for a card that is not there. For a process of its own: it takes
Triton's driver away."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import triton
from attrs import frozen
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from ninfer_triton_kernels.bindings import (
    expert_groups,
    experts,
    groups,
    hopper_tiled,
    prompt_attention,
    slots,
    stored,
)

PROCESSORS = {90: 132, 120: 170, 121: 48}
"""Multiprocessors of the H200, the RTX 5090 and the DGX Spark."""

SHARED_BYTES = {90: 227 << 10, 120: 99 << 10, 121: 99 << 10}
"""Shared memory that a program can have."""

REGISTERS, MOST_THREADS = 1 << 16, {90: 2048, 120: 1536, 121: 1536}
"""Of a multiprocessor."""


@frozen
class Compiled:
    """Code of a kernel.

    :ivar spills: bytes of local memory a thread. :ivar shared: bytes of shared memory.
    :ivar barriers: places in its PTX where the warps of a program meet.
    :ivar instructions: matrix instructions in its PTX.
    """

    kernel: str
    registers: int
    spills: int
    shared: int
    warps: int
    barriers: int
    instructions: tuple[str, ...]

    def programs(self, capability: int) -> int:
        """That a multiprocessor holds at once."""
        threads = 32 * self.warps
        by_registers = REGISTERS // (threads * -(-self.registers // 8) * 8)
        by_memory = SHARED_BYTES[capability] // (self.shared + 1024)  # 1 KiB is the system's
        return min(by_registers, by_memory, MOST_THREADS[capability] // threads)


@contextmanager
def compiling_for(capability: int) -> Iterator[dict[str, Any]]:
    """Launches compile and run nothing meanwhile; the compiled kernels by their hashes."""
    driver = mock.Mock()
    driver.get_current_target.return_value = GPUTarget("cuda", capability, 32)
    driver.get_current_device.return_value = driver.get_current_stream.return_value = 0
    triton.runtime.driver.set_active(driver)
    compiled: dict[str, Any] = {}
    original = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = original(self, *args, grid=grid, warmup=True, **options)
        compiled[kernel.hash] = kernel
        return kernel

    with (
        mock.patch.object(JITFunction, "run", compile_only),
        mock.patch.object(experts, "num_processors", lambda device: PROCESSORS[capability]),
        mock.patch.object(groups, "num_processors", lambda device: PROCESSORS[capability]),
        mock.patch.object(hopper_tiled, "capability", lambda device: capability),
        mock.patch.object(hopper_tiled, "num_processors", lambda device: PROCESSORS[capability]),
        mock.patch.object(stored, "num_processors", lambda device: PROCESSORS[capability]),
        mock.patch.object(stored, "capability", lambda device: capability),
        mock.patch.object(expert_groups, "capability", lambda device: capability),
        mock.patch.object(
            expert_groups, "num_processors", lambda device: PROCESSORS[capability]),
        mock.patch.object(prompt_attention, "capability", lambda device: capability),
        mock.patch.object(slots, "capability", lambda device: capability),
        mock.patch.object(slots, "num_processors", lambda device: PROCESSORS[capability]),
        mock.patch.object(
            prompt_attention, "num_processors", lambda device: PROCESSORS[capability]),
    ):
        yield compiled


def writes_under_copies(ptx: str) -> bool:
    """Whether shared memory is written between bulk copies out of it and the wait for them: what
    Triton gives away behind the last use in the text may be what they read."""
    copying = False
    for line in ptx.splitlines():
        if "cp.async.bulk.wait_group" in line:
            copying = False
        elif "cp.async.bulk" in line and "global.shared" in line:
            copying = True
        elif copying and ("st.shared" in line or "stmatrix" in line):
            return True
    return False


def leaves_barriers(ttgir: str) -> bool:
    """Whether the memory of a barrier may be given away while the barrier lives: it is neither
    ended (`mbarrier.invalidate`) nor handed to groups of warps, which use it to the end. Where a
    program is set aside for another process, the card keeps the state of a barrier, and spoils
    what lies there by then."""
    owners = dict(re.findall(r"(%\w+) = ttg\.memdesc_index (%\w+)", ttgir))

    def found(pattern: str) -> set[str]:
        names = re.findall(r"%\w+", " ".join(re.findall(pattern, ttgir)))
        return {owners.get(name, name) for name in names}

    begun, ended = found(r"ttng\.init_barrier (%\w+)"), found(r"ttng\.inval_barrier (%\w+)")
    return bool(begun - ended - found(r"ttg\.warp_specialize\(([^)]*)\)"))


def facts_of(kernel: Any) -> Compiled:
    """What the assembler says of a compiled kernel.

    :raises AssertionError: if it begins before the one ahead of it has ended, and never waits; if
        shared memory is written while copies to global memory may still read it; or if memory of a
        barrier is given away while it lives.
    """
    ptx = kernel.asm["ptx"]
    assert not leaves_barriers(kernel.asm["ttgir"]), f"{kernel.name} does not end its barriers"
    waits = "griddepcontrol.wait" in ptx
    assert waits or not kernel.metadata.launch_pdl, f"{kernel.name} begins early and never waits"
    assert not writes_under_copies(ptx), f"{kernel.name} writes what copies may still read"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        text = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True,
                              text=True, check=True).stdout
    found = {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED):(\d+)", text)}
    kinds = re.findall(r"(?:mma\.sync|wgmma\.mma_async)[.\w:]*", kernel.asm["ptx"])
    return Compiled(
        kernel.name, found["REG"], found["STACK"], kernel.metadata.shared + found["SHARED"],
        kernel.metadata.num_warps, kernel.asm["ptx"].count("bar.sync"), tuple(sorted({*kinds})),
    )
