# SPDX-License-Identifier: Apache-2.0
"""What is noted of a draft's captured launches, what a capture costs, and which buffer is made
before the KV cache is sized; without an engine."""

from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm.config import CUDAGraphMode
from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl
from vllm_ascend.attention.mla_v1 import AscendMLAImpl
from vllm_ascend.compilation import acl_graph

from mkv_ascend.drafting.capture_cost import CaptureCost, CaptureMeter
from mkv_ascend.drafting.launches import OneTable, launch_kind, use
from mkv_ascend.drafting.replaying import Replaying

DENSE, LATENT = launch_kind(AscendAttentionBackendImpl), launch_kind(AscendMLAImpl)


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
        "dense": SimpleNamespace(impl=object.__new__(AscendAttentionBackendImpl)),
        "latent": SimpleNamespace(impl=object.__new__(AscendMLAImpl)),
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
    table, before = OneTable(), acl_graph.get_draft_graph_params()
    needs = [(8, 10), (8, 30), (2, 20), (2, 5)]
    with table.in_use():
        given = [note(number, *need) for number, need in enumerate(needs)]
    assert acl_graph.get_draft_graph_params() is before
    assert given == [needed for _, needed in needs]
    layers, metadata = layers_and_metadata([8, 2])
    steps = table.launches(["dense", "latent"], metadata, layers)
    assert [[launch.tokens for launch in step] for step in steps] == [[8, 8], [2, 2]]
    largest = [[launch.task.workspaces[launch.tokens].nbytes for launch in s] for s in steps]
    assert largest == [[30, 30], [20, 20]]
    noted = [launch for step in steps for launch in step]
    assert [launch.kind for launch in noted] == [DENSE, LATENT] * 2
    for number, launch in enumerate(noted):
        with use(launch.task):
            params = acl_graph.get_draft_graph_params()
            assert params.events == {launch.tokens: [f"event {number}"]}
            assert params.handles == {launch.tokens: [f"task {number}"]}
            assert params.attn_params == {launch.tokens: [f"operands {number}"]}


def test_a_capture_with_another_number_of_launches_is_refused():
    table = OneTable()
    with table.in_use():
        note(0, 8, 1)
    layers, metadata = layers_and_metadata([8])
    with pytest.raises(RuntimeError, match="1 launches of attention were captured, not 2"):
        table.launches(["dense", "latent"], metadata, layers)


def test_lengths_go_into_a_copy_of_the_metadata():
    _, (metadata,) = layers_and_metadata([8])
    dense = DENSE.with_lengths(metadata["dense"], [4, 5])
    latent = LATENT.with_lengths(metadata["latent"], [4, 5])
    assert dense.seq_lens_list == latent.decode.seq_lens_list == [4, 5]
    assert not hasattr(metadata["dense"], "seq_lens_list")
    assert not hasattr(metadata["latent"].decode, "seq_lens_list")


def test_mla_takes_rows_up_to_its_threshold_for_decodes():
    builder = SimpleNamespace(decode_threshold=16)
    assert DENSE.why_not(17, builder) is None
    assert LATENT.why_not(16, builder) is None
    assert "17 tokens are a prefill to MLA, whose decodes have 16" in LATENT.why_not(17, builder)
    assert launch_kind(object) is None


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
    rest = meter.total.without(CaptureCost(1, meter.total.seconds, 16 << 20))
    assert str(rest) == "2 in 0.0 s, 16.00 MiB"


class Loading:
    """Stands for a proposer of vllm-ascend: its draft joins states of 24 numbers."""

    def load_model(self, model):
        self.model = SimpleNamespace(model=SimpleNamespace(fc=SimpleNamespace(input_size=24)))


class Head(Replaying, Loading):
    """A head of K = 3 for up to 8 requests."""

    def __init__(self, method, mode, largest, eagerly):
        config = SimpleNamespace(cudagraph_mode=mode, max_cudagraph_capture_size=largest)
        self.runner = SimpleNamespace(compilation_config=config)
        self.method, self.parallel_drafting, self.asked_to_run_eagerly = method, False, eagerly
        self.max_batch_size, self.num_speculative_tokens = 8, 3
        self.hidden_states = torch.ones(1, 8, dtype=torch.float16)

    def _draft_layers(self):
        """None is needed."""
        return {}


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
    head = Head(method, CUDAGraphMode[mode], largest, eagerly)
    head.load_model(None)
    buffer = head._states_to_join
    assert (None if buffer is None else tuple(buffer.shape)) == shape
    assert buffer is None or buffer.dtype == torch.float16
