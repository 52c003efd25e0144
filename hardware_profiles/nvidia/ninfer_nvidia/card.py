"""A profile of one NVIDIA card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from attrs import field, frozen

from ninfer_core.api import Detection, KernelWork, MachineFigures, UnsupportedError
from ninfer_nvidia.cards import cards

DETECTION_SCORE = 80
"""Above that of a CPU, which every machine has."""

PAGE_TOKENS, TAIL_TOKENS = 64, 16
"""Of a page; of the end of a prompt that still goes the way of decode rows."""

NEAR_TOKENS, FEW_PARTS, MANY_PARTS = 16_384, 32, 64
"""Parts that attention cuts a context up to so many tokens into, and a longer one."""

SEGMENT_BYTES = 128 << 20
"""Most that keys and values in bf16 take, of what prompts attend to at once."""

SUMS_BYTES = 64 << 20
"""Most that sums of prompts' attention take where several programs share a tile."""

SCORE_BYTES = 256 << 20
"""Most that scores of blocks take: those of some tokens at a time."""

_MEMINFO = Path("/proc/meminfo")

FRAGMENTS = {
    name: "fragments_m16_v1" for name in (
        "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "fp8_e4m3fn_row_bf16",
        "fp8_e4m3fn_g128_fp32", "nvfp4",
    )
}
"""What products on tensor cores read: the order of the matrix instruction's first operand."""


@frozen
class NvidiaCard:
    """A `HardwareProfile` of a card by its exact names.

    :ivar models: as the driver writes them.
    :ivar card: its figures; ``memory_bytes`` is what a plan may use.
    :ivar reserve_bytes: that a start leaves free: for the context's own growth, captured graphs and
        what the allocator cuts off; on shared memory, for the system.
    :ivar shares_memory: whether the CPU has the same memory.
    """

    name: str
    models: tuple[str, ...]
    capability: int
    default_kv_dtype: str
    card: MachineFigures
    reserve_bytes: int
    shares_memory: bool = False
    device: str = "cuda"
    compute_dtype: str = "bfloat16"
    layouts: Mapping[str, str] = field(factory=FRAGMENTS.copy)

    def figures(self) -> MachineFigures:
        return self.card

    def prepare(self, num_threads: int | None) -> None:
        """Check the card, and let products of bf16 be summed in fp32 alone."""
        import torch

        self._require_card()
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def memory_budget(self) -> int:
        """What is free now, less the reserve; on shared memory the system's own figure, because
        the driver does not count what the page cache would give back."""
        import torch

        self._require_card()
        free = _available_bytes() if self.shares_memory else torch.cuda.mem_get_info()[0]
        return max(0, int(free) - self.reserve_bytes)

    def scratch_bytes(self, work: KernelWork) -> int:
        """For prompts, a matrix or keys and values in bf16, both halves of a gated product, what
        experts give, sums of attention, and scores of blocks; for the rest, sums of attention over
        parts of the context."""
        (rows, columns), pages = work.matrix, -(-work.max_context // PAGE_TOKENS)
        scores = pages * PAGE_TOKENS // work.index_block if work.index_block else 0
        parts = MANY_PARTS if pages * PAGE_TOKENS > NEAR_TOKENS else FEW_PARTS
        tokens = max(work.decode_tokens, TAIL_TOKENS)
        scored = min(work.max_tokens, max(1, SCORE_BYTES // (4 * scores))) if scores else 0
        width = work.attention_width
        sums = width + width // 8  # two more for each head, of at least 16
        return (max(2 * rows * columns, SEGMENT_BYTES if width else 0)
                + 2 * work.max_tokens * rows
                + max(4 * work.max_tokens * sums, SUMS_BYTES if width else 0)
                + 4 * work.max_tokens * work.pair_width + 4 * scored * scores
                + 4 * tokens * parts * width)

    def _require_card(self) -> None:
        """Raise `UnsupportedError` unless torch's first card is the profile's."""
        import torch

        fix = f"run on {' or '.join(self.models)}; `ninfer plan MODEL --profile {self.name}` works "
        fix += "anywhere, and --profile cpu runs anywhere"
        if not torch.cuda.is_available():
            why = "torch finds no card" if torch.version.cuda else "this torch is a CPU build"
            raise UnsupportedError(f"profile {self.name} cannot run here", why=why, fix=fix)
        major, minor = torch.cuda.get_device_capability()
        if 10 * major + minor != self.capability:
            why = f"{torch.cuda.get_device_name()} has compute capability {major}.{minor}"
            raise UnsupportedError(f"profile {self.name} cannot run here", why=why, fix=fix)


def detect_card(models: Sequence[str]) -> Detection:
    """Whether the first card is one of ``models`` (exact names), and torch could use it."""
    found = cards()
    if not found:
        return Detection(None, "no NVIDIA driver lists a card")
    if found[0] not in models:
        return Detection(None, f"the card here is {', '.join(dict.fromkeys(found))}")
    if _torch_version().endswith("+cpu"):
        return Detection(None, f"{found[0]} is here, but torch {_torch_version()} is a CPU build")
    return Detection(DETECTION_SCORE, f"{found[0]} is here")


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "+cpu"


def _available_bytes() -> int:
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) << 10  # in KiB
