# SPDX-License-Identifier: Apache-2.0
"""Capture and replay: what lasts, what is frozen, and whose memory it is."""

import gc
import itertools
import random
import resource
import weakref

import pytest
import torch

from emulated_npu import counters
from emulated_npu.device import native
from tests.emulated.device.graph_helpers import captured, capturing, on_npu


def test_a_capture_runs_nothing_that_lasts():
    buffer, indices = on_npu(1, 2, 3), torch.tensor([2, 0]).npu()

    def launches():
        buffer.add_(1)
        buffer[indices] = 7.0
        buffer[:1].copy_(buffer[1:2])
        return buffer * 2

    graph, result = captured(launches)
    assert buffer.tolist() == [1, 2, 3]
    assert result.isnan().all(), "nobody may rely on values of a capture"
    graph.replay()
    assert buffer.tolist() == [3, 3, 7]
    assert result.tolist() == [6, 6, 14]


def test_a_replay_reads_what_its_inputs_hold_now():
    source, weight = on_npu(0, 0), torch.eye(2).npu()
    graph, result = captured(lambda: (source @ weight).relu() + 1)
    for values in ([1.0, -2.0], [5.0, 6.0]):
        source.copy_(torch.tensor(values))
        graph.replay()
        assert result.tolist() == [max(value, 0) + 1 for value in values]


def test_a_python_number_is_frozen():
    source, number = on_npu(1, 2), 3
    graph, result = captured(lambda: source * number)
    number = 4
    graph.replay()
    assert result.tolist() == [3, 6]


def test_a_buffer_that_was_replaced_is_not_seen():
    buffer = on_npu(1, 2)
    graph, result = captured(lambda: buffer + 1)
    kept, buffer = buffer, on_npu(10, 20)
    graph.replay()
    assert result.tolist() == [2, 3]
    assert kept.tolist() == [1, 2]


def test_an_out_operand_that_its_kernel_resizes_is_written_by_replays():
    """Composite operators give their results an empty tensor to fill: frozen before, it is lost."""
    source = on_npu(-1, 2)

    def launches():
        empty = torch.empty(0, device="npu")
        torch.abs(source, out=empty)
        return empty

    graph, result = captured(launches)
    source.copy_(torch.tensor([-5.0, 6.0]))
    graph.replay()
    assert result.tolist() == [5, 6]


def test_results_that_share_memory_and_lists_of_results():
    source = torch.arange(6.0).npu().view(2, 3)
    graph, parts = captured(lambda: [*(source + 1).split(2, dim=1), *torch.topk(source, 2)])
    source.mul_(-1)
    graph.replay()
    expected = [*(source.cpu() + 1).split(2, dim=1), *torch.topk(source.cpu(), 2)]
    for part, wanted in zip(parts, expected, strict=True):
        assert torch.equal(part.cpu(), wanted)


def test_views_are_no_launches():
    source = torch.arange(6.0).npu()
    graph, view = captured(lambda: source.view(2, 3).t()[1:, :1].unsqueeze(0))
    before = counters.snapshot()
    graph.replay()
    counts = counters.snapshot() - before
    assert counts.launches == {"NPUGraph.replay": 1}
    assert counts.graph_launches == {}
    assert view.flatten().tolist() == [1, 2]


def test_a_replay_is_one_launch_of_the_host_and_a_capture_none():
    source = on_npu(1, 2)
    before = counters.snapshot()
    graph, _ = captured(lambda: (source + 1) * 2)
    assert (counters.snapshot() - before).launches == {}
    graph.replay()
    counts = counters.snapshot() - before
    assert counts.launches == {"NPUGraph.replay": 1}
    assert counts.graph_launches == {"aten::add": 1, "aten::mul": 1}


def test_random_numbers_advance_with_replays_only():
    torch.npu.manual_seed(3)
    expected = [torch.rand(4, device="npu").tolist() for _ in range(2)]
    torch.npu.manual_seed(3)
    graph, result = captured(lambda: torch.rand(4, device="npu"))
    for values in expected:
        graph.replay()
        assert result.tolist() == values


def test_pinned_memory_is_read_and_written_at_each_replay():
    source, target = torch.tensor([1.0, 2.0]).pin_memory(), torch.zeros(2).pin_memory()
    on_device = on_npu(0, 0)

    def launches():
        on_device.copy_(source, non_blocking=True)
        target.copy_(on_device + 1, non_blocking=True)

    graph, _ = captured(launches)
    assert target.tolist() == [0, 0]
    source.fill_(5)
    graph.replay()
    torch.npu.synchronize()
    assert target.tolist() == [6, 6]


def test_a_host_number_of_no_dimension_is_frozen():
    source, number = on_npu(1, 2), torch.tensor(3.0)
    graph, result = captured(lambda: source * number)
    number.fill_(100)
    graph.replay()
    assert result.tolist() == [3, 6]


def test_graphs_of_one_pool_use_the_same_memory():
    source, pool = torch.ones(1000, device="npu"), torch.npu.graph_pool_handle()

    first, weak = captured(lambda: torch_weak(source + 1), pool)
    in_use = torch.npu.memory_allocated()
    second, other = captured(lambda: torch_weak(source * 18), pool)
    assert torch.npu.memory_allocated() == in_use
    assert weak.data_ptr() == other.data_ptr()
    first.replay()
    assert weak[0].item() == 2
    # Reading a result after another graph of the pool has run: overwritten, as on a device.
    second.replay()
    assert weak[0].item() == 18


def torch_weak(tensor):
    import torch_npu

    return torch_npu._C._weak_ref_tensor(tensor)


def test_a_graph_keeps_no_operand_of_an_operator_that_python_runs():
    """It keeps addresses: temporaries go back to the pool, for the next graph."""
    import torch_npu

    source, weight = torch.ones(512, 64, device="npu"), torch.ones(64, device="npu")
    kept = []

    def launches():
        hidden = source + 1
        kept.append(weakref.ref(hidden))
        return torch_weak(torch_npu.npu_rms_norm(hidden, weight)[0])

    graph, result = captured(launches)
    assert kept[0]() is None
    graph.replay()
    assert torch.allclose(result.cpu(), torch.ones(512, 64), atol=1e-3)


def test_graphs_for_fewer_tokens_lie_in_the_memory_of_the_largest(memory_in_use):
    """As in torch_npu's allocator: 64 graphs of one pool, captured from the largest on."""
    source, weight = torch.ones(512, 1024, device="npu"), torch.eye(1024).npu()
    before, pool, graphs = torch.npu.memory_allocated(), torch.npu.graph_pool_handle(), []
    used = []
    for tokens in range(512, 0, -8):

        def launches(tokens=tokens):
            hidden = source[:tokens] @ weight
            return torch_weak((hidden + 1).relu() @ weight)

        graphs.append(captured(launches, pool))
        used.append(torch.npu.memory_allocated() - before)
    # Two results of 2 MiB at once, in a segment of 20 MiB; results of at most 1 MiB in segments of
    # 2 MiB, two or three at once.
    assert used[0] == 20 << 20
    assert used[-1] <= 24 << 20
    for graph, result in graphs:
        graph.replay()
        assert (result == 2).all()
    del graphs, graph, result
    gc.collect()
    assert torch.npu.memory_allocated() == before


def test_ranges_of_a_pool_are_split_and_become_one_again():
    """Graphs with live results between free ranges; every result keeps its own memory."""
    source, pool, kept = torch.arange(1 << 16, device="npu"), torch.npu.graph_pool_handle(), []
    generator = random.Random(7)
    for step in range(60):
        size = generator.randrange(1, 1 << 16)
        graph, result = captured(lambda size=size, step=step: (source[:size] + step) * 2, pool)
        kept.append((graph, result, size, step))
        if len(kept) > 6:
            kept.pop(generator.randrange(6))
    ranges = sorted((r.data_ptr(), r.data_ptr() + r.numel() * 8) for _, r, _, _ in kept)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
    for graph, _, _, _ in kept:
        graph.replay()
    for _, result, size, step in kept:
        assert torch.equal(result.cpu(), (torch.arange(size) + step) * 2)


def test_a_result_that_is_kept_is_not_given_to_another_graph():
    source, pool = on_npu(1, 2), torch.npu.graph_pool_handle()
    first, kept = captured(lambda: source + 1, pool)
    second, other = captured(lambda: source + 2, pool)
    assert kept.data_ptr() != other.data_ptr()
    first.replay()
    second.replay()
    assert (kept.tolist(), other.tolist()) == ([2, 3], [3, 4])


def test_a_pool_goes_with_its_last_graph(memory_in_use):
    graph, result = captured(lambda: torch_weak(torch.ones(1000, device="npu") + 1))
    assert torch.npu.memory_allocated() >= memory_in_use + 8000
    del graph, result
    gc.collect()
    assert torch.npu.memory_allocated() == memory_in_use


def test_a_weak_reference_reads_poison_once_its_tensor_is_freed(memory_in_use):
    tensor, integers = on_npu(1, 2), torch.tensor([4, 5]).npu()
    weak, weak_integers = torch_weak(tensor), torch_weak(integers)
    assert weak.tolist() == [1, 2]
    assert weak.data_ptr() == tensor.data_ptr()
    del tensor, integers
    assert weak.isnan().all()
    assert weak_integers.tolist() == [-1, -1]
    assert torch.npu.memory_allocated() == memory_in_use
    others = [on_npu(8, 9) for _ in range(50)]
    assert weak.isnan().all(), "its address is not given away while somebody knows it"
    del others


def test_a_weak_reference_of_host_memory_is_refused():
    with pytest.raises(RuntimeError, match="needs an npu tensor"):
        torch_weak(torch.zeros(2))


def test_recording_a_write_costs_what_is_written():
    """A capture writes rows of a cache of 512 MiB; the rest is neither copied nor touched."""
    cache = torch.empty(2**17, 1024, device="npu")
    rows, values = torch.tensor([5, 77]).npu(), torch.ones(2, 1024, device="npu")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph, _ = captured(lambda: cache.index_put_((rows,), values))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 16 << 10, f"{grown} KiB"
    graph.replay()
    assert cache[77, 3].item() == 1


def test_a_capture_that_fails_leaves_no_trace():
    source, stream = on_npu(1, 2), torch.npu.current_stream()
    graph = torch.npu.NPUGraph()
    with pytest.raises(ZeroDivisionError), torch.npu.graph(graph):
        source.add_(1).add_(1 // 0)
    assert torch.npu.current_stream() == stream
    assert not torch.npu.is_current_stream_capturing()
    source.add_(1)
    assert source.tolist() == [2, 3]
    with pytest.raises(RuntimeError, match="holds no capture"):
        graph.replay()
    with torch.npu.graph(graph):
        result = source + 1
    graph.replay()
    assert result.tolist() == [3, 4]


def test_a_capture_that_cannot_begin_leaves_its_stream():
    graph, stream = torch.npu.NPUGraph(), torch.npu.current_stream()
    with torch.npu.graph(graph):
        pass
    with pytest.raises(RuntimeError, match="holds a capture already"), torch.npu.graph(graph):
        pass
    assert torch.npu.current_stream() == stream


def test_capturing_is_known_to_the_program():
    assert not torch.npu.is_current_stream_capturing()
    with capturing():
        assert torch.npu.is_current_stream_capturing()
        with torch.npu.stream(torch.npu.Stream()):
            assert not torch.npu.is_current_stream_capturing()


def test_a_stream_that_did_not_join_runs_its_launches():
    source = on_npu(1, 2)
    with capturing(), torch.npu.stream(torch.npu.Stream()):
        source.add_(1)
    assert source.tolist() == [2, 3]


def test_a_stream_that_joins_is_captured():
    source, side = on_npu(1, 2), torch.npu.Stream()

    def launches():
        here = torch.npu.current_stream()
        doubled = source * 2
        side.wait_stream(here)
        with torch.npu.stream(side):
            assert torch.npu.is_current_stream_capturing()
            doubled.add_(1)
        here.wait_stream(side)
        return doubled * 10

    graph, result = captured(launches)
    graph.replay()
    assert result.tolist() == [30, 50]
    with torch.npu.stream(side):
        source.add_(1)
    assert source.tolist() == [2, 3]


def test_a_refusal_by_name():
    with pytest.raises(NotImplementedError, match="auto_dispatch_capture"):
        torch.npu.graph(torch.npu.NPUGraph(), auto_dispatch_capture=True)
    with pytest.raises(NotImplementedError, match=r"NPUGraph\.update"):
        torch.npu.NPUGraph().update([])
    with pytest.raises(NotImplementedError, match="make_graphed_callables"):
        torch.npu.make_graphed_callables(None, ())


def test_functions_of_the_host_run_at_each_replay():
    source, seen = on_npu(1, 2), []
    host = torch.empty(2).pin_memory()
    stream = torch.npu.current_stream()
    with pytest.raises(RuntimeError, match="nobody serves"):
        torch.npu._launch_host_func(stream, seen.append, 0)
    torch.npu._subscribe_report(stream)
    torch.npu._launch_host_func(stream, seen.append, "at once")
    assert seen.pop() == "at once"
    torch.npu._unsubscribe_report(stream)

    def capture():
        stream = torch.npu.current_stream()
        torch.npu._subscribe_report(stream)
        host.copy_(source * 10, non_blocking=True)
        torch.npu._launch_host_func(stream, lambda memory: seen.append(memory.tolist()), host)
        torch.npu._unsubscribe_report(stream)

    graph, _ = captured(capture)
    assert not seen
    for values in ([3.0, 4.0], [5.0, 6.0]):
        source.copy_(torch.tensor(values))
        graph.replay()
    assert seen == [[30, 40], [50, 60]]


def test_a_super_kernel_changes_no_value():
    source = on_npu(1, 2)
    with pytest.raises(RuntimeError, match="without a capture"):
        torch.npu.NPUGraph().super_kernel_optimize()

    def capture():
        torch.npu.super_kernel_scope_begin("all")
        result = source + 1
        torch.npu.super_kernel_scope_end("all")
        return result

    graph, result = captured(capture)
    graph.super_kernel_optimize(optimize_options={})
    graph.replay()
    assert result.tolist() == [2, 3]


def test_a_convolution():
    source, weight, bias = (torch.randn(shape).npu() for shape in ((1, 2, 8), (3, 2, 3), (3,)))
    graph, result = captured(lambda: torch.nn.functional.conv1d(source, weight, bias, padding=1))
    source.copy_(torch.randn(1, 2, 8))
    graph.replay()
    expected = torch.nn.functional.conv1d(source.cpu(), weight.cpu(), bias.cpu(), padding=1)
    assert torch.equal(result.cpu(), expected)


def test_a_kernel_that_does_not_record_is_noticed():
    source = on_npu(1, 2)
    with pytest.raises(RuntimeError, match=r"test_graphs\.py:\d+ while the stream records"):
        captured(lambda: native.cpu_alias(source))
