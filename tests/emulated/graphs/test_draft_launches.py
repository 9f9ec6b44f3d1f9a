# SPDX-License-Identifier: Apache-2.0
"""A draft's captured launches: how they are noted and updated. No engine.

Also what a capture costs, and which buffer is made before the KV cache is sized.
"""

import inspect
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm.config import CUDAGraphMode
from vllm.forward_context import get_forward_context
from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl
from vllm_ascend.attention.mla_v1 import AscendMLAImpl
from vllm_ascend.compilation import acl_graph

from tests.support import hosts
from tests.support.draft_facts import facts, loaded

pytestmark = pytest.mark.core

capture = hosts.module("drafting.capture")
draft = hosts.module("drafting.draft")
updates = hosts.module("drafting.launches")
CapturedGraphParams = updates.CapturedGraphParams
UpdatedLayer = updates.UpdatedLayer
CaptureMeter = capture.CaptureMeter

_dense, _mla = hosts.module("backends.dense"), hosts.module("backends.mla")
DENSE, MLA = _dense.Dense(None, None), _mla.MLA(None, None)

HOST = hosts.module("drafting.host").HOST


def note(number, tokens, needed):
    """What implementations of vllm-ascend do in a capture, with a workspace of ``needed`` bytes."""
    params = acl_graph.get_draft_graph_params()
    params.events[tokens].append(f"event {number}")
    workspace = params.workspaces.get(tokens)
    if workspace is None:
        workspace = torch.empty(needed, dtype=torch.uint8)
        acl_graph.update_draft_graph_params_workspaces(tokens, workspace)
    params.attn_params[tokens].append(f"operands {number}")
    params.handles[tokens].append(f"task {number}")
    return workspace.nbytes


def layers_and_metadata(tokens_of_passes):
    """Two layers, dense and MLA, and metadata of passes of so many tokens."""
    layers = {
        "dense": UpdatedLayer(object.__new__(AscendAttentionBackendImpl), DENSE),
        "latent": UpdatedLayer(object.__new__(AscendMLAImpl), MLA),
    }
    metadata = [
        {
            "dense": SimpleNamespace(actual_seq_lengths_q=[1, tokens]),
            "latent": SimpleNamespace(decode=SimpleNamespace(actual_seq_lengths_q=[1, tokens])),
        }
        for tokens in tokens_of_passes
    ]
    return layers, metadata


def test_launches_of_one_pass_share_the_largest_workspace_and_each_was_captured_with_enough():
    table, before = CapturedGraphParams(), acl_graph.get_draft_graph_params()
    needs = [(8, 10), (8, 30), (2, 20), (2, 5)]
    with table.recorded_here():
        given = [note(number, *need) for number, need in enumerate(needs)]
    assert acl_graph.get_draft_graph_params() is before
    assert given == [needed for _, needed in needs]
    layers, metadata = layers_and_metadata([8, 2])
    passes = table.launches(layers, metadata)
    assert [[launch.tokens for launch in launches] for launches in passes] == [[8, 8], [2, 2]]
    largest = [[launch.workspace.nbytes for launch in launches] for launches in passes]
    assert largest == [[30, 30], [20, 20]]
    noted = [launch for launches in passes for launch in launches]
    assert [launch.layer.backend for launch in noted] == [DENSE, MLA] * 2
    assert [(launch.event, launch.operands, launch.handle) for launch in noted] == [
        (f"event {number}", f"operands {number}", f"task {number}") for number in range(4)
    ]


@pytest.mark.parametrize("number", [1, 3])
def test_a_capture_with_another_number_of_launches_is_refused(number):
    table = CapturedGraphParams()
    with table.recorded_here():
        for one in range(number):
            note(one, 8, 1)
    layers, metadata = layers_and_metadata([8])
    refused = f"{number} launches of attention were captured, not 2"
    with pytest.raises(RuntimeError, match=refused):
        table.launches(layers, metadata)


def captured(impls, tokens_of_passes):
    """Launches of layers named ``layer 0`` and so on, as one capture notes them."""
    names = [f"layer {number}" for number in range(len(impls))]
    table = CapturedGraphParams()
    with table.recorded_here():
        for number in range(len(names) * len(tokens_of_passes)):
            note(number, tokens_of_passes[number // len(names)], number)
    metadata = []
    for tokens in tokens_of_passes:
        shared = SimpleNamespace(
            actual_seq_lengths_q=[tokens],
            decode=SimpleNamespace(actual_seq_lengths_q=[tokens]),
        )
        metadata.append(dict.fromkeys(names, shared))
    layers = {
        name: UpdatedLayer(impl, MLA if isinstance(impl, AscendMLAImpl) else DENSE)
        for name, impl in zip(names, impls, strict=True)
    }
    return table.launches(layers, metadata)


def lengths_in(metadata, kind):
    return (metadata.decode if kind is AscendMLAImpl else metadata).seq_lens_list


class Called:
    """Calls of ``update_graph_params``, whichever class's, in place of vllm-ascend's."""

    def __init__(self, monkeypatch):
        self.calls = []
        for kind in (AscendAttentionBackendImpl, AscendMLAImpl):
            monkeypatch.setattr(kind, "update_graph_params", staticmethod(self.noting(kind)))
        self.context = SimpleNamespace(sinks=None)
        monkeypatch.setattr(updates, "_EXTRA_CTX", self.context)

    def noting(self, kind):
        taken = inspect.signature(kind.update_graph_params)

        def update(*args, **kwargs):
            given = taken.bind(*args, **kwargs).arguments
            assert given["update_stream"] == "stream"
            assert given["forward_context"] == "context"
            assert given["speculative_config"] == "speculative"
            tokens, metadata = given["num_tokens"], given["draft_attn_metadatas"]
            params = acl_graph.get_draft_graph_params()
            lengths = [
                {name: lengths_in(given, kind) for name, given in pass_metadata.items()}
                for pass_metadata in metadata
            ]
            events = params.events[tokens]
            assert params.handles == {tokens: [event.replace("event", "task") for event in events]}
            assert list(params.workspaces) == list(params.attn_params) == [tokens]
            self.calls.append((kind, self.context.sinks, events, lengths))

        return update

    def run(self, impls, tokens_of_passes):
        lengths = [[10 + number] for number in range(len(tokens_of_passes))]
        made = updates.Updates(captured(impls, tokens_of_passes))
        made.run("stream", "context", SimpleNamespace(speculative_config="speculative"), lengths)
        return self.calls


def dense(sinks=None):
    made = object.__new__(AscendAttentionBackendImpl)
    made.sinks = sinks
    return made


def events(*numbers):
    return [f"event {number}" for number in numbers]


@pytest.mark.parametrize("kind", [AscendAttentionBackendImpl, AscendMLAImpl])
def test_one_call_updates_the_first_pass_and_one_all_later_ones(monkeypatch, kind):
    called = Called(monkeypatch)
    impls = [dense() if kind is AscendAttentionBackendImpl else object.__new__(kind)] * 2
    assert called.run(impls, [8, 2, 2]) == [
        (kind, False, events(0, 1), [{"layer 0": [10], "layer 1": [10]}]),
        (
            kind,
            False,
            events(2, 3, 4, 5),
            [{"layer 0": [11], "layer 1": [11]}, {"layer 0": [12], "layer 1": [12]}],
        ),
    ]


def test_passes_of_one_size_are_one_call(monkeypatch):
    calls = Called(monkeypatch).run([dense()], [2, 2])
    assert [call[2] for call in calls] == [events(0, 1)]


def test_layers_of_several_kinds_are_updated_in_the_order_of_execution(monkeypatch):
    latent = object.__new__(AscendMLAImpl)
    calls = Called(monkeypatch).run([dense(), dense(), latent, dense()], [8, 2, 2])
    # The last layer of a pass and the first of the next are of one kind, but of two passes.
    expected = []
    for number in range(3):
        at, length = 4 * number, [10 + number]
        expected += [
            (
                AscendAttentionBackendImpl,
                False,
                events(at, at + 1),
                [{"layer 0": length, "layer 1": length}],
            ),
            (AscendMLAImpl, False, events(at + 2), [{"layer 2": length}]),
            (AscendAttentionBackendImpl, False, events(at + 3), [{"layer 3": length}]),
        ]
    assert calls == expected


def test_the_operator_with_sinks_is_updated_by_itself(monkeypatch):
    calls = Called(monkeypatch).run([dense(), dense(torch.zeros(1))], [2, 2])
    assert [call[1:3] for call in calls] == [
        (False, events(0)),
        (True, events(1)),
        (False, events(2)),
        (True, events(3)),
    ]


def test_lengths_of_another_number_of_passes_are_refused():
    made = updates.Updates(captured([dense()], [8, 2]))
    with pytest.raises(ValueError, match="lengths of 1 passes for a graph of 2"):
        made.run("stream", "context", None, [[10]])


def test_lengths_go_into_a_copy_of_the_metadata():
    _, (metadata,) = layers_and_metadata([8])
    dense = DENSE.with_lengths(metadata["dense"], [4, 5])
    latent = MLA.with_lengths(metadata["latent"], [4, 5])
    assert dense.seq_lens_list == latent.decode.seq_lens_list == [4, 5]
    assert not hasattr(metadata["dense"], "seq_lens_list")
    assert not hasattr(metadata["latent"].decode, "seq_lens_list")


def test_mla_takes_rows_up_to_its_threshold_for_decodes():
    builder = SimpleNamespace(decode_threshold=16)
    dense = _dense.Dense(builder, None, of_layers=AscendAttentionBackendImpl)
    mla = _mla.MLA(builder, None, of_layers=AscendMLAImpl)
    assert dense.why_not_captured(17) is None
    assert mla.why_not_captured(16) is None
    assert "17 tokens are a prefill to MLA, whose decodes have 16" in mla.why_not_captured(17)
    group = SimpleNamespace(backend=object, causal=False)
    other = _dense.Dense(builder, None, group, of_layers=object)
    assert other.why_not_captured(1) == "launches of object are not captured yet"


def test_a_capture_costs_what_it_keeps():
    meter, kept = CaptureMeter(), []
    for keep in (True, False, True):
        with meter.one_graph():
            bytes_of_device = torch.empty(16 << 20, dtype=torch.uint8, device="npu")
            if keep:
                kept.append(bytes_of_device)
            del bytes_of_device
    assert meter.total.graphs == 3
    assert meter.total.seconds > 0.0
    assert meter.total.kept_bytes == sum(each.nbytes for each in kept)
    assert str(replace(meter.total, seconds=0.26)) == "3 in 0.3 s, 32.00 MiB"


def head(method, mode, largest, eagerly):
    """A head of K = 3 for up to 8 requests; its draft joins states of 24 numbers."""
    config = SimpleNamespace(cudagraph_mode=CUDAGraphMode[mode], max_cudagraph_capture_size=largest)
    return facts(
        vllm_config=SimpleNamespace(compilation_config=config),
        method=method,
        max_requests=8,
        takes_states=True,
        enforce_eager=eagerly,
    )


@pytest.mark.parametrize(
    ("method", "mode", "largest", "eagerly", "shape"),
    [
        ("eagle3", "FULL_AND_PIECEWISE", 512, False, (32, 24)),
        ("eagle3", "FULL_DECODE_ONLY", 16, False, (16, 24)),
        ("eagle3", "FULL_DECODE_ONLY", 16, True, None),
        ("eagle3", "PIECEWISE", 16, False, None),
        ("eagle", "FULL_DECODE_ONLY", 16, False, None),
    ],
)
def test_states_to_join_have_their_buffer_when_the_draft_is_loaded(
    method, mode, largest, eagerly, shape
):
    """Memory taken then is left out of the KV cache."""
    model = SimpleNamespace(model=SimpleNamespace(fc=SimpleNamespace(input_size=24)))
    inputs = SimpleNamespace(hidden_states=torch.ones(1, 8, dtype=torch.float16))
    head_of_draft = head(method, mode, largest, eagerly)
    buffer = draft.buffer_of_joined_states(head_of_draft, model, inputs)
    assert (None if buffer is None else tuple(buffer.shape)) == shape
    assert buffer is None or buffer.dtype == torch.float16


def test_graphs_of_a_draft_are_updated_on_one_stream_in_their_own_context(monkeypatch):
    """And the device waits for draft tokens that the runner still copies."""
    calls, streams = [], []
    monkeypatch.setattr(
        torch.npu, "current_stream", lambda: SimpleNamespace(wait_event=calls.append)
    )
    passes = SimpleNamespace(copied_drafts=lambda: "copied drafts")
    of_draft = SimpleNamespace(loaded=loaded(vllm_config="config"), passes=passes)
    capturer = capture.AscendCapturer(of_draft, {}, HOST)
    capturer.wait_for_copied_drafts()
    assert calls == ["copied drafts"]

    def run(stream, context, config, lengths):
        assert get_forward_context() is context
        assert (config, lengths) == ("config", [[3], [4]])
        streams.append(stream)

    class Made:
        """Updates of ``calls`` calls."""

        def __init__(self, calls):
            self.calls, self.run = calls, run

        def __bool__(self):
            return bool(self.calls)

    for calls_of_graph in (("a call",), ()):
        made = Made(calls_of_graph)
        context = SimpleNamespace()
        graph = capture.AscendGraph(None, made, context, capturer, reads_lengths=False)
        assert graph.updates_lengths is bool(calls_of_graph)
        graph.update([[3], [4]])
    assert streams[0] is streams[1]
