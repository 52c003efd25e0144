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
    cache,
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
        mock.patch.object(cache, "num_processors", lambda device: PROCESSORS[capability]),
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


COPY = re.compile(r"cp\.(?:reduce\.)?async\.bulk\S*\.global\.shared")
WAIT = re.compile(r"cp\.async\.bulk\.wait_group\S*\s+0;")
WRITE = re.compile(
    r"\b(?:st|atom|red)\.(?:\w+\.)*shared|stmatrix|mbarrier\.init"
    r"|cp\.async\S*\.shared\S*\.global")
"""Instructions that read shared memory on their own, that wait for all of them, and that write it.
"""


def writes_under_copies(ptx: str) -> bool:
    """Whether shared memory is written between bulk copies out of it and the wait for all of them,
    on any way through the code: what Triton gives away behind the last use in the text may be what
    they read."""
    tables = dict(re.findall(r"(\$\w+): \.branchtargets([^;]*);", ptx))
    lines, reached = ptx.splitlines(), set[str]()  # labels that are reached with copies under way
    while True:
        copying, known = False, len(reached)
        for line in lines:
            labels = re.findall(r"\$\w+", line)
            if re.match(r"\s*\$\w+:", line):
                copying |= labels[0] in reached
            elif copying and WRITE.search(line):
                return True
            elif COPY.search(line):
                copying = True
            elif WAIT.search(line):
                copying = False
            elif copying and labels and re.search(r"\b(?:bra|brx)\b", line):
                reached.update(re.findall(r"\$\w+", tables.get(labels[0], line)))
            if re.match(r"\s*(?:bra|brx|ret|exit)\b", line):
                copying = False
        if len(reached) == known:
            return False


def leaves_barriers(ttgir: str) -> bool:
    """Whether the memory of a barrier may be given away while the barrier lives: it is neither
    ended (`mbarrier.invalidate`) nor handed to groups of warps, behind which nothing takes memory.
    Where a program is set aside for another process, the card keeps the state of a barrier, and
    spoils what lies there by then."""
    views = {name: (source, element) for name, source, element in re.findall(
        r"(%\w+) = ttg\.memdesc_\w+ (%\w+)(?:\[%c(\d+)\w*\])?", ttgir)}

    def found(pattern: str, text: str) -> set[tuple[str, str]]:
        """What barriers are allocated as, and which of several they are, if that is constant."""
        places = set()
        for name in re.findall(r"%\w+", " ".join(re.findall(pattern, text))):
            element = ""
            while name in views:
                name, own = views[name]
                element = own or element
            places.add((name, element))
        return places

    handed, _, behind = ttgir.rpartition("ttg.warp_return")
    held: set[str] = set()
    if not re.search(r"ttg\.(?:local_|convert)|tt\.(?:reduce|scan|gather|histogram|dot)", behind):
        held = {name for name, _ in found(r"ttg\.warp_specialize\(([^)]*)\)", handed)}
    begun = found(r"ttng\.init_barrier (%\w+)", ttgir)
    ended = found(r"ttng\.inval_barrier (%\w+)", ttgir)
    return any(
        name not in held and ended.isdisjoint({(name, element), (name, "")})
        for name, element in begun
    )


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
