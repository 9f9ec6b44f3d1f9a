# SPDX-License-Identifier: Apache-2.0
"""What is noted of a draft's captured launches, without an engine."""

from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl
from vllm_ascend.attention.mla_v1 import AscendMLAImpl
from vllm_ascend.compilation import acl_graph

from mkv_ascend.drafting.launches import OneTable, launch_kind, use

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
