"""A sample of the kernels, compiled for cards that are not here; what the published models launch
is in a table, see `test_triton_facts`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ninfer_triton_kernels.compiling import leaves_barriers, writes_under_copies

pytest.importorskip("triton")

CASES = {
    "hybrids": ("slots-512", "moe-nvfp4-1", "moe-q4_g64_fp16-512", "group-nvfp4"),
    "streams": ("gated-streams-512",),
    "sparse": ("sparse-fp8", "latent-bf16"),
    "sampling": ("sampling",),
    "prompts": ("attention-fp8-512",),
    "drafts": ("q5_g64_fp16-32",),
}
SAMPLE = (("hybrids", 90, 17), ("hybrids", 120, 18), ("streams", 90, 9), ("sparse", 120, 11),
          ("sampling", 90, 8), ("prompts", 90, 4), ("drafts", 90, 2))
"""Cases, for a capability, and of how many kernels they are."""

SHARED_LIMITS = {90: 227 << 10, 120: 99 << 10}
"""Bytes of shared memory that a program can have. 121 gets the code of 120, by another name."""

BARRIERS = {"linear_group": 7, "gate_up_of_pairs": 2, "down_of_pairs": 4}
"""Most of kernels whose weights go from memory straight into the registers that multiply: with
another order of loads than `kernels.fragments` asks for, each step would meet several times, and
with sums other than `products.sum_batch`, each program at its end."""

WARP_GROUPS = ("gate_up_of_group", "down_of_group", "multiply_groups", "attend_segment",
               "prepare_block", "advance_blocks", "hopper_linear")
"""Whose products on capability 90 are those of groups of four warps."""

SPILLS = 160
"""Bytes a thread: of `delta_blocks`, which holds a state in registers."""


@pytest.mark.parametrize("group, capability, count", SAMPLE)
def test_kernels_fit_the_card(group, capability, count):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = str(Path(__file__).with_name("compile_only.py"))
    run = subprocess.run(
        [sys.executable, script, str(capability), *CASES[group]], env=environment, check=False,
        capture_output=True, text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    kernels = [json.loads(line) for line in run.stdout.splitlines()]
    assert len({each["kernel"] for each in kernels}) == count
    for each in kernels:
        assert each["registers"] <= 255 and each["spills"] <= SPILLS, each
        assert each["shared"] <= SHARED_LIMITS[capability], each
        assert each["barriers"] <= BARRIERS.get(each["kernel"], 100), each
        if each["kernel"] in WARP_GROUPS:
            assert any("wgmma" in name for name in each["instructions"]) == (capability == 90), each


COPY = "@%p1 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r3];"
WAIT = "cp.async.bulk.wait_group.read 0;"
STORE = "st.shared.b32 [%r1], %r2;"
FETCH = "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd2];"


@pytest.mark.parametrize("between, is_seen", [
    ("st.shared.v4.b32 [%r1], {%r2};", True), ("stmatrix.sync.aligned.m8n8 [%r1], {%r2};", True),
    ("@%p2 st.shared::cta.b32 [%r1], %r2;", True),
    ("atom.relaxed.shared.add.u32 %r1, [%r2];", True),
    ("mbarrier.init.shared::cta.b64 [%r1], 1;", True), (FETCH, True),
    ("cp.async.cg.shared.global [%r1], [%rd2], 16;", True),
    ("ld.shared.b32 %r1, [%r2];", False), ("st.global.b32 [%rd1], %r2;", False), (COPY, False),
    ("mbarrier.arrive.shared::cta.b64 _, [%r1];", False),
    (f"{WAIT}\n{STORE}", False), (f"cp.async.bulk.wait_group 0;\n{FETCH}", False),
    (f"cp.async.bulk.wait_group.read 1;\n{STORE}", True),
    (f"cp.async.wait_group 0;\n{STORE}", True),
])
def test_writes_to_what_copies_read_are_seen(between, is_seen):
    for copy in (COPY, COPY.replace("cp.async", "cp.reduce.async")):
        assert writes_under_copies(f"{STORE}\n{FETCH}\n{copy}\n{between}") == is_seen


@pytest.mark.parametrize("code, is_seen", [
    (f"$L1:\n{STORE}\n{COPY}\n@%p2 bra $L1;\n{WAIT}", True),
    (f"$L1:\n{STORE}\n{COPY}\n{WAIT}\n@%p2 bra $L1;", False),
    (f"$L1:\n{STORE}\nbra.uni $L3;\n$L2:\n{COPY}\nbra.uni $L1;\n$L3:\nret;", True),
    (f"{COPY}\n@%p2 bra $L1;\n{WAIT}\n$L1:\n{STORE}", True),
    (f"@%p2 bra $L1;\n{COPY}\n$L1:\n{STORE}", True),
    (f"@%p2 bra $L1;\n{COPY}\nbra.uni $L2;\n$L1:\n{STORE}\n$L2:\n{WAIT}", False),
    (f"@%p2 bra $L1;\n{COPY}\n{WAIT}\nret;\n$L1:\n{STORE}", False),
    (f"$L0: .branchtargets\n$L1,\n$L2;\n{COPY}\nbrx.idx %r1, $L0;\n"
     f"$L1:\n{WAIT}\nret;\n$L2:\n{STORE}", True),
    (f"waitLoop:\n@!%p bra.uni waitLoop;\n{STORE}\n{COPY}\nwaitLoop:\n@!%p bra.uni waitLoop;",
     False),
])
def test_such_writes_are_seen_on_every_way_and_on_no_other(code, is_seen):
    assert writes_under_copies(code) == is_seen


HANDED = "ttg.warp_specialize(%q, %ready) attributes {}\n  ttg.warp_return"


@pytest.mark.parametrize("then, is_seen", [
    ("ttng.wait_barrier %ready, %c0", True), ("ttng.inval_barrier %ready : !ttg.memdesc", False),
    (HANDED, False), (HANDED.replace("%ready", "%other"), True),
    (f"{HANDED}\n%3 = ttg.local_alloc : () -> !ttg.memdesc", True),
    (f"{HANDED}\n%3 = ttg.convert_layout %4", True), (f"{HANDED}\ntt.return", False),
    ("%2 = ttg.memdesc_index %ready[%c0_i32_7]\nttng.inval_barrier %2 : !ttg.memdesc", False),
    ("%2 = ttg.memdesc_index %ready[%c1_i32]\nttng.inval_barrier %2 : !ttg.memdesc", True),
    ("%2 = ttg.memdesc_index %ready[%i]\nttng.inval_barrier %2 : !ttg.memdesc", False),
    ("%2 = ttg.memdesc_reinterpret %ready\n%3 = ttg.memdesc_index %2[%c0_i32]\n"
     "ttng.inval_barrier %3 : !ttg.memdesc", False),
])
def test_barriers_that_live_where_other_things_may_lie_are_seen(then, is_seen):
    begun = "%1 = ttg.memdesc_index %ready[%c0_i32] : !ttg\nttng.init_barrier %1, 1 : !ttg.memdesc"
    assert leaves_barriers(f"{begun}\n{then}") == is_seen
