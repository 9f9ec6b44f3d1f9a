# SPDX-License-Identifier: Apache-2.0
"""Launches that Python makes, in graphs: operators of torch_npu, and updates of them."""

import pytest
import torch
import torch_npu

from emulated_npu import counters
from emulated_npu.custom_operators import schemas
from emulated_npu.operators.registry import OperatorArgumentError
from tests.emulated.device.graph_helpers import captured, capturing

HEADS, SIZE, BLOCK = 2, 64, 128


def half(*shape):
    return torch.randn(*shape, dtype=torch.float16).npu()


def test_results_of_an_operator():
    source, weight = half(3, 64), torch.ones(64).half().npu()
    graph, (result, scale) = captured(lambda: torch_npu.npu_rms_norm(source, weight))
    assert result.isnan().all()
    for _ in range(2):
        source.copy_(half(3, 64))
        graph.replay()
        expected = torch_npu.npu_rms_norm(source, weight)
        assert torch.equal(result.cpu(), expected[0].cpu())
        assert torch.equal(scale.cpu(), expected[1].cpu())


def test_an_operator_that_writes_to_a_cache():
    key, slots = half(2, HEADS, SIZE), torch.tensor([3, 130], dtype=torch.int32).npu()
    caches = [torch.zeros(2, BLOCK, HEADS, SIZE).half().npu() for _ in range(2)]
    graph, _ = captured(lambda: torch_npu._npu_reshape_and_cache(key, key, *caches, slots))
    assert not caches[0].any()
    slots.copy_(torch.tensor([4, -1], dtype=torch.int32))
    before = counters.snapshot()
    graph.replay()
    assert (counters.snapshot() - before).graph_launches == {"_npu_reshape_and_cache": 1}
    assert caches[0].flatten(0, 1).any(-1).any(-1).nonzero().tolist() == [[4]]
    assert torch.equal(caches[1][0, 4].cpu(), key[0].cpu())


@pytest.mark.skipif(schemas.find_schemas() is None, reason="vllm-ascend is not installed")
def test_groups_of_tokens_are_found_and_stored_anew_at_each_replay():
    keys = torch.ones(3, 2, dtype=torch.int8).npu()
    slots = torch.tensor([0, 1, 2], dtype=torch.int32).npu()
    groups = [torch.zeros(3, dtype=torch.int32).npu() for _ in range(3)]
    cache = torch.zeros(2, 4, 1, 2, dtype=torch.int8).npu()

    def launches():
        torch.ops._C_ascend.store_kv_block_metadata(slots, *groups, 4)
        torch.ops._C_ascend.store_kv_block(keys, cache, *groups, 4)

    graph, _ = captured(launches)
    assert not cache.any()
    slots.copy_(torch.tensor([6, -1, 3], dtype=torch.int32))
    keys.copy_(torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.int8))
    graph.replay()
    assert groups[0].cpu().tolist() == [1, 1, 0]
    stored = cache.view(8, 2).cpu().tolist()
    assert (stored.pop(6), stored.pop(3)) == ([1, 2], [5, 6])
    assert stored == [[0, 0]] * 6


class Attention:
    """Attention of one token over one block, with the number of keys on the host."""

    def __init__(self):
        self.query, self.keys = half(1, HEADS, SIZE), half(1, BLOCK, HEADS * SIZE)
        self.values = half(1, BLOCK, HEADS * SIZE)
        self.table = torch.zeros(1, 1, dtype=torch.int32).npu()
        self.out = [torch.zeros(1, HEADS, SIZE).half().npu(), torch.zeros(1).npu()]

    def launch(self, lengths, out):
        torch_npu.npu_fused_infer_attention_score.out(
            query=self.query,
            key=self.keys,
            value=self.values,
            block_table=self.table,
            input_layout="TND",
            block_size=BLOCK,
            actual_seq_lengths=[1],
            actual_seq_lengths_kv=lengths,
            num_key_value_heads=HEADS,
            num_heads=HEADS,
            scale=1.0,
            workspace=None,
            out=out,
        )

    def expected(self, length):
        out = [torch.zeros_like(part) for part in self.out]
        self.launch([length], out)
        return out[0].cpu()


def captured_task(attention, lengths):
    """A graph of one launch, and the task group of it."""

    def launches():
        here = torch.npu.current_stream()
        torch.npu.graph_task_group_begin(here)
        attention.launch(lengths, attention.out)
        return torch.npu.graph_task_group_end(here)

    return captured(launches)


def test_numbers_on_the_host_are_frozen_until_they_are_updated():
    attention, lengths, stream = Attention(), [5], torch.npu.Stream()
    graph, group = captured_task(attention, lengths)
    lengths[0] = 9
    graph.replay()
    assert torch.equal(attention.out[0].cpu(), attention.expected(5))
    with torch.npu.stream(stream):
        torch.npu.graph_task_update_begin(stream, group)
        lengths = [9]
        attention.launch(lengths, attention.out)
        torch.npu.graph_task_update_end(stream)
        lengths[0] = 7
    assert torch.equal(attention.out[0].cpu(), attention.expected(5)), "an update runs nothing"
    graph.replay()
    assert torch.equal(attention.out[0].cpu(), attention.expected(9))


def test_an_update_refuses_operands_on_the_host():
    """Its kernel does not run, but what a device would refuse of its arguments is refused."""
    attention, stream = Attention(), torch.npu.Stream()
    _, group = captured_task(attention, [5])
    attention.table = attention.table.cpu()
    with torch.npu.stream(stream):
        torch.npu.graph_task_update_begin(stream, group)
        with pytest.raises(OperatorArgumentError, match="block_table is a CPU tensor"):
            attention.launch([9], attention.out)
        with pytest.raises(RuntimeError, match="task update with"):
            torch.npu.graph_task_update_end(stream)


def test_a_host_argument_on_the_device_is_a_host_read():
    attention = Attention()
    with pytest.raises(RuntimeError, match="during graph capture"), capturing():
        attention.launch(torch.tensor([5]).npu(), attention.out)


def test_strict_checks_see_each_replay():
    """A slot outside the cache: fine at capture, wrong later."""
    key, slots = half(1, HEADS, SIZE), torch.zeros(1, dtype=torch.int32).npu()
    caches = [torch.zeros(1, BLOCK, HEADS, SIZE).half().npu() for _ in range(2)]
    graph, _ = captured(lambda: torch_npu._npu_reshape_and_cache(key, key, *caches, slots))
    slots.fill_(BLOCK)
    with pytest.raises(
        RuntimeError, match=r"_npu_reshape_and_cache \(captured at .*test_graph_operators.py:\d+\)"
    ) as caught:
        graph.replay()
    assert isinstance(caught.value.__cause__, (OperatorArgumentError, IndexError, ValueError))
