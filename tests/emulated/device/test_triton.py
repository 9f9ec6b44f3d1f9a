# SPDX-License-Identifier: Apache-2.0
"""Triton kernels on npu tensors: interpreted, in place, counted; HAS_TRITON both ways."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cann.extension import extract_slice, get_element, insert_slice
from triton.runtime.driver import driver

from emulated_npu import counters
from emulated_npu.triton_interpreter.backend import EmulatedDriver
from tests.support.programs import HANG_SECONDS


@triton.jit
def add_with_mask(left, right, output, length, BLOCK: tl.constexpr):  # noqa: N803
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < length
    total = tl.load(left + index, mask=inside) + tl.load(right + index, mask=inside)
    tl.store(output + index, total, mask=inside)


@triton.jit
def move_slices(source, output, COUNT: tl.constexpr):  # noqa: N803
    block = tl.load(source + tl.arange(0, COUNT))
    tail = extract_slice(block, (2,), (3,), (1,))
    block = insert_slice(block, tail, (0,), (3,), (1,))
    tl.store(output + tl.arange(0, COUNT), block)
    tl.store(output + COUNT, get_element(block, (4,)))


@triton.jit
def mix(left, right, mixed, narrowed, is_less, COUNT: tl.constexpr):  # noqa: N803
    index = tl.arange(0, COUNT)
    one, two = tl.load(left + index), tl.load(right + index)
    tl.store(mixed + index, tl.where(one < two, one * two + one, one * 0.7 - two))
    tl.store(narrowed + index, tl.exp(one.to(tl.float32)))
    tl.store(is_less + index, (one < two).to(tl.int32))


@triton.autotune(
    configs=[triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 64})], key=["length"]
)
@triton.jit
def add_tuned(left, right, output, length, BLOCK: tl.constexpr):  # noqa: N803
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(left + index, mask=index < length) + tl.load(right + index, mask=index < length)
    tl.store(output + index, total, mask=index < length)


@pytest.mark.parametrize("length", [99, 100])
def test_autotuning_times_nothing_and_takes_the_first(length: int) -> None:
    """All configurations are as fast here: the kernel is launched once, with the first.

    Without a driver, too: vllm-ascend runs such a kernel of MiniMax-M2 with and without Triton.
    """
    if length == 100:
        driver.set_active(EmulatedDriver())
    left, right = torch.randn(length).npu(), torch.randn(length).npu()
    output = torch.zeros(length).npu()
    before = counters.snapshot()
    try:
        grid = lambda given: (triton.cdiv(length, given["BLOCK"]),)  # noqa: E731
        add_tuned[grid](left, right, output, length)
    finally:
        driver.reset_active()
    launches = (counters.snapshot() - before).launches
    assert torch.equal(output.cpu(), left.cpu() + right.cpu())
    assert add_tuned.best_config.kwargs == {"BLOCK": 128}
    assert sum(count for name, count in launches.items() if "add_tuned" in name) == 1


def test_bfloat16_is_computed_and_rounded_as_torch_does() -> None:
    left, right = torch.randn(256).bfloat16(), torch.randn(256).bfloat16()
    mixed, narrowed = torch.empty(256).bfloat16().npu(), torch.empty(256).bfloat16().npu()
    is_less = torch.empty(256, dtype=torch.int32).npu()
    mix[(1,)](left.npu(), right.npu(), mixed, narrowed, is_less, COUNT=256)
    # A number of the kernel's text is of the type that it is multiplied with.
    factor = torch.tensor(0.7).bfloat16()
    wanted = torch.where(left < right, left * right + left, left * factor - right)
    torch.testing.assert_close(mixed.cpu(), wanted, rtol=0, atol=0)
    torch.testing.assert_close(narrowed.cpu(), left.float().exp().bfloat16(), rtol=0, atol=0)
    assert torch.equal(is_less.cpu().bool(), left < right)


@triton.jit
def choose(values, factors, output, COUNT: tl.constexpr):  # noqa: N803
    index = tl.arange(0, COUNT)
    factor = tl.load(factors)
    chosen = (index < COUNT - 1) & (factor != 0.0)
    tl.store(output + index, tl.where(chosen, tl.load(values + index) * factor, -1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_a_scalar_is_compared_beside_a_block(dtype: torch.dtype) -> None:
    values, output = torch.arange(4).to(dtype).npu(), torch.zeros(4).npu()
    for factor, wanted in ((2, [0, 2, 4, -1]), (0, [-1] * 4)):
        choose[(1,)](values, torch.tensor([factor]).to(dtype).npu(), output, COUNT=4)
        assert output.cpu().tolist() == wanted


@triton.jit
def add_up(source, of_rows, of_all, ROWS: tl.constexpr, COUNT: tl.constexpr):  # noqa: N803
    places = tl.arange(0, ROWS)[:, None] * COUNT + tl.arange(0, COUNT)[None, :]
    values = tl.load(source + places)
    tl.store(of_rows + tl.arange(0, ROWS), tl.sum(values, axis=-1))
    tl.store(of_all, tl.sum(tl.sum(values, axis=-1), axis=0))


def test_bfloat16_is_summed_as_numbers() -> None:
    """The values have exact sums in float32, so their order decides nothing."""
    values = (torch.randint(-64, 64, (4, 512)) / 16).bfloat16()
    of_rows, of_all = torch.empty(4).bfloat16().npu(), torch.empty(1).bfloat16().npu()
    add_up[(1,)](values.npu(), of_rows, of_all, ROWS=4, COUNT=512)
    wanted = values.float().sum(-1).bfloat16()
    assert torch.equal(of_rows.cpu(), wanted)
    assert torch.equal(of_all.cpu(), wanted.float().sum(0, keepdim=True).bfloat16())


def test_a_kernel_equals_torch_and_writes_into_a_view() -> None:
    left, right = torch.randn(100), torch.randn(100)
    storage = torch.full((120,), 7.0).npu()
    output = storage[10:110]
    add_with_mask[(triton.cdiv(100, 32),)](left.npu(), right.npu(), output, 100, BLOCK=32)
    torch.testing.assert_close(output.cpu(), left + right, rtol=0, atol=0)
    assert (storage[:10].cpu() == 7).all()
    assert (storage[110:].cpu() == 7).all()


def test_a_launch_is_counted_by_name_and_copies_nothing() -> None:
    tensors = [torch.zeros(8).npu() for _ in range(3)]
    before = counters.snapshot()
    add_with_mask[(4,)](*tensors, 8, BLOCK=2)
    made = counters.snapshot() - before
    assert made.launches["triton.add_with_mask"] == 1
    assert made.bytes_to_host == made.bytes_to_device == 0


def test_a_launch_gives_the_compiled_kernel_which_has_its_constants() -> None:
    """vllm-ascend 0.30.0rc2 launches a kernel at start-up and only what that gave afterwards."""
    left, right = torch.randn(100).npu(), torch.randn(100).npu()
    first, second = torch.zeros(100).npu(), torch.zeros(100).npu()
    compiled = add_with_mask[(1,)](left, right, first, 100, BLOCK=64)
    before = counters.snapshot()
    compiled[(2,)](left, right, second, 100)
    assert (counters.snapshot() - before).launches["triton.add_with_mask"] == 1
    assert first[64:].count_nonzero() == 0
    torch.testing.assert_close(second, left + right)
    assert not add_with_mask.pre_run_hooks


def test_a_kernel_in_a_graph() -> None:
    left, right, output = (torch.zeros(8).npu() for _ in range(3))
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        add_with_mask[(4,)](left, right, output, 8, BLOCK=2)
    left.fill_(2)
    right.fill_(3)
    assert not output.any()
    graph.replay()
    assert (output == 5).all()


def test_slices_and_sizes_that_are_no_power_of_two() -> None:
    source = torch.arange(6.0)
    output = torch.zeros(7).npu()
    move_slices[(1,)](source.npu(), output, COUNT=6)
    assert output.cpu().tolist() == [2, 3, 4, 3, 4, 5, 4]


@pytest.mark.host("0.23")
@pytest.mark.parametrize("has_triton", ["0", "1"])
def test_vllm_finds_triton_as_the_setting_says_and_kernels_run_either_way(has_triton: str) -> None:
    script = (
        "from vllm.triton_utils import HAS_TRITON, triton, tl\n"
        "print('found', int(HAS_TRITON), triton.__name__, tl.__name__)\n"
        "from vllm_ascend.ops.triton import triton_utils\n"
        "triton_utils.init_device_properties_triton()\n"
        "print('cores', triton_utils._NUM_AICORE, triton_utils._NUM_VECTORCORE)\n"
        "import torch, vllm_ascend.ops\n"
        "print('fused', torch.ops.vllm.triton_split_qkv_rmsnorm_mrope.default)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "EMULATED_NPU_TRITON": has_triton},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert f"found {has_triton} triton triton.language" in finished.stdout, finished.stderr
    # Without Triton too: vllm-ascend's fusion passes put kernels into graphs that ask for them.
    assert "cores 20 40" in finished.stdout
    # As does the attention of some models, whatever vLLM finds.
    assert "fused vllm.triton_split_qkv_rmsnorm_mrope.default" in finished.stdout, finished.stderr


SLOT_CONSTANTS = {
    "TOTAL_CP_WORLD_SIZE": 1, "TOTAL_CP_RANK": 0, "CP_KV_CACHE_INTERLEAVE_SIZE": 1, "PAD_ID": -1,
    "BLOCK_SIZE": 1024, "TILE_BLOCK_SIZE": 1024, "KV_CACHE_BLOCK_SIZE": 16,
    "BLOCKS_PER_KV_BLOCK": 1, "BLOCK_TABLE_WINDOW_SIZE": 128,
}  # fmt: skip
"""Constants of the kernel in each version of vllm-ascend."""


def test_vllm_ascends_slot_mapping_kernel() -> None:
    """The kernel that vllm-ascend runs with and without Triton: slot = block * size + offset."""
    from vllm_ascend.worker.block_table import _compute_slot_mapping_kernel

    parameters = inspect.signature(_compute_slot_mapping_kernel.fn).parameters
    block_size, lengths, blocks = 16, (20, 5), ((3, 7), (5, 0))
    starts = torch.tensor([0, 20, 25], dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in lengths])
    slots = torch.full((32,), 99).npu()
    block_table = torch.tensor(blocks, dtype=torch.int32).npu()
    _compute_slot_mapping_kernel[(len(lengths) + 1,)](
        25, 32, starts.npu(), positions.npu(), block_table, 2, block_size, slots,
        **{name: SLOT_CONSTANTS[name] for name in parameters if name in SLOT_CONSTANTS},
    )  # fmt: skip
    expected = [
        blocks[request][position // block_size] * block_size + position % block_size
        for request, length in enumerate(lengths)
        for position in range(length)
    ]
    assert slots.cpu().tolist() == expected + [-1] * 7


@pytest.mark.parametrize("key_heads", [0, 1])
def test_vllm_ascends_rotation_in_traced_code(key_heads: int) -> None:
    """In place, except for what has gaps: a copy. Gemma 4's own head rotates queries alone."""
    from vllm_ascend.ops.triton.rope import rope_forward_triton

    heads, size, half = 2, 64, 32
    angles = torch.randn(16, half)
    table, positions = torch.cat([angles.cos(), angles.sin()], dim=-1), torch.tensor([3, 0, 9])
    packed = torch.randn(3, (heads + key_heads) * size)

    def rotate(packed: torch.Tensor, table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        q, k = packed.split([heads * size, key_heads * size], dim=-1)
        rotated = rope_forward_triton(
            q.view(3, heads, size),
            k.view(3, key_heads, size),
            cos_sin_cache=table,
            positions=positions,
            rope_dim=size,
        )
        return torch.cat([part + 1 for part in rotated], dim=1)

    given = [value.npu() for value in (packed, table, positions)]
    before = counters.snapshot()
    result = torch.compile(rotate, backend="aot_eager", fullgraph=True)(*given)
    assert (counters.snapshot() - before).launches["triton._triton_rope"] == 1
    cosines, sines = (part[:, None] for part in table[positions].chunk(2, dim=-1))
    first, second = packed.view(3, -1, size).chunk(2, dim=-1)
    turned = torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)
    torch.testing.assert_close(result.cpu(), turned + 1)
    torch.testing.assert_close(given[0].cpu(), packed if key_heads else turned.flatten(1))


def test_vllm_ascends_penalties_count_the_drafts_before_a_token() -> None:
    """In plain loops. Its own test has drafts in front of the first row, so it shows nothing.

    Two requests verify three drafts each, and one samples without any. Every number is a multiple
    of 1/32, and the penalties for repetition are powers of two: nothing is rounded.
    """
    from vllm_ascend.worker.v2.sample.penalties import apply_penalties

    vocabulary, of_row = 64, [1, 1, 1, 1, 0, 2, 2, 2, 2]
    local = [0, 1, 2, 3, 0, 0, 1, 2, 3]
    tokens = torch.randint(0, 6, (len(of_row),), dtype=torch.int32)
    logits = torch.randint(-64, 64, (len(of_row), vocabulary)) / 32
    repetition, frequency, presence = [2.0, 4.0, 1.0], [0.25, 0.0, 0.5], [0.5, 0.25, 0.0]
    prompts, counts = torch.rand(3, vocabulary) < 0.2, torch.randint(0, 3, (3, vocabulary))
    bits = prompts.view(3, -1, 32).long() << torch.arange(32)
    packed = bits.sum(-1).to(torch.int64)
    packed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    expected = logits.clone()
    for row, request in enumerate(of_row):
        seen = counts[request].clone()
        for token in tokens[row - local[row] + 1 : row + 1].tolist():
            seen[token] += 1
        for token in range(vocabulary):
            value = float(logits[row, token])
            if prompts[request, token] or seen[token]:
                value = value / repetition[request] if value > 0 else value * repetition[request]
            value -= frequency[request] * int(seen[token])
            expected[row, token] = value - presence[request] * bool(seen[token])
    found = logits.npu()
    integers = {"dtype": torch.int32}
    apply_penalties(
        found,
        torch.tensor(of_row, **integers).npu(),
        tokens.npu(),
        torch.tensor(local, **integers).npu(),
        *(torch.tensor(each).npu() for each in (repetition, frequency, presence)),
        packed.npu(),
        counts.to(torch.int32).npu(),
    )
    assert torch.equal(found.cpu(), expected)


@pytest.mark.skipif(
    find_spec("vllm_ascend") is None or find_spec("vllm_ascend._310p.ops.causal_conv1d") is None,
    reason="vllm-ascend 0.30.0rc2 dropped the convolution in plain torch that this compares with",
)
def test_kernels_in_the_place_of_mambas_wrappers_give_what_those_give() -> None:
    """Interpreted, where the interpreter can; the scan works in chunks, so in another order."""
    finished = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("mamba_wrappers_probe.py"))],
        env={**os.environ, "EMULATED_NPU_TRITON": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    differences = json.loads(finished.stdout.strip().splitlines()[-1])
    assert len(differences) == 5
    assert max(differences.values()) < 2e-5, differences
