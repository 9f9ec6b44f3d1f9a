# SPDX-License-Identifier: Apache-2.0
"""Parts of a draft and what they are given, on stand-ins; engines judge the whole. No engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm.config import CUDAGraphMode

from mkv_ascend.adapters.common.backends.mla import MLA
from mkv_ascend.adapters.common.backends.port import Backend
from mkv_ascend.adapters.common.drafting import assembly as assemblies
from mkv_ascend.adapters.common.drafting import capture, mask_tokens, proposers
from mkv_ascend.adapters.common.drafting.assembly import Assembly, layers_of
from mkv_ascend.adapters.common.drafting.draft import AscendDraft
from mkv_ascend.adapters.common.drafting.proposers import PassesOfProposer, target_output
from mkv_ascend.adapters.common.drafting.strategies import Attention
from mkv_ascend.adapters.common.patches import prefix_hits, sampled_rows
from tests.support import hosts
from tests.support.draft_facts import K, facts, loaded

pytestmark = pytest.mark.core


def draft_of(model: Any, kind: type[AscendDraft] = AscendDraft, **given: Any) -> Any:
    """A draft with this model, and with what is given of its facts."""
    passes: Any = given.pop("passes", None)
    buffers = given.pop("buffers", None)
    return kind(loaded(model, **given), passes, buffers)


@pytest.mark.parametrize(("method", "joins"), [("eagle3", True), ("eagle", False), ("mtp", False)])
def test_heads_of_eagle3_alone_join_hidden_states(method: str, joins: bool) -> None:
    model = SimpleNamespace(combine_hidden_states=lambda states: states[:, :2] + 10)
    states = torch.arange(12.0).view(3, 4)
    found = draft_of(model, method=method).combine(states)
    assert found.tolist() == (states[:, :2] + 10 if joins else states).tolist()


@pytest.mark.parametrize(
    ("rows", "tokens"), [(torch.tensor([2, 0]), [2, 0]), (slice(1, 3), [1, 2])], ids=str
)
def test_tokens_are_sampled_of_the_rows_that_are_asked_for(rows: Any, tokens: list[int]) -> None:
    model = SimpleNamespace(compute_logits=lambda states: states)
    assert draft_of(model).sample(torch.eye(3), rows).tolist() == tokens


def test_mask_tokens_stand_at_their_positions() -> None:
    asked: list[dict[str, Any]] = []

    def model(**given: Any) -> torch.Tensor:
        asked.append(given)
        return torch.zeros(2, 1)

    buffers = SimpleNamespace(token_ids=torch.arange(5, 9), positions=torch.arange(20, 24))
    draft = draft_of(model, mask_tokens.MaskTokensDraft, buffers=buffers)
    draft.forward(2)
    (given,) = asked
    assert (given["input_ids"].tolist(), given["positions"].tolist()) == ([5, 6], [20, 21])


def test_a_layers_context_is_written_by_the_slots_of_its_own_group() -> None:
    written: list[Any] = []
    layer = SimpleNamespace(
        impl=SimpleNamespace(do_kv_cache_update=lambda *given: written.append(given))
    )
    in_group = mask_tokens.LayerInGroup(layer, 1)
    slots = torch.tensor([[1, 2], [3, 4]])
    key, value, cache = torch.zeros(3)
    in_group.impl.do_kv_cache_update(layer, key, value, cache, slots)
    assert written[0][0] is layer
    assert written[0][-1].tolist() == [3, 4]


@pytest.mark.parametrize("causal", [True, False])
def test_builders_are_told_whether_their_layers_are_causal(causal: bool) -> None:
    asked: list[Any] = []

    def common_of(_batch: Any, *, causal: bool) -> Any:
        asked.append(causal)
        return SimpleNamespace()

    class Told(Backend):
        def run(self, *_: Any) -> Any:
            return SimpleNamespace(causal=causal)

    group: Any = SimpleNamespace(causal=causal)
    builder = Told(None, None, group, SimpleNamespace(of=common_of))  # type: ignore[arg-type]
    nothing = torch.zeros(1)
    builder.build(SimpleNamespace(index=1), nothing, nothing, None)  # type: ignore[arg-type]
    assert asked == [causal]


def test_decodes_of_mla_are_as_long_as_their_own_pass_says() -> None:
    built = SimpleNamespace(decode=SimpleNamespace(seq_lens_list=[1, 1], max_seq_lens=1))
    lengths: Any = SimpleNamespace(tensor=torch.tensor([5, 9]), values=[5, 9])
    MLA(None, None).set_lengths(built, lengths)
    assert (built.decode.seq_lens_list, built.decode.max_seq_lens) == ([5, 9], 9)


@pytest.mark.parametrize(
    ("ranks", "shares", "fits"), [(1, True, True), (2, True, False), (1, False, False)]
)
def test_passes_have_rows_of_their_own_where_ranks_share_tokens_out(
    ranks: int, shares: bool, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposers, "enable_sp", lambda _config: shares)
    config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_size=ranks))
    proposer = SimpleNamespace(runner=None, vllm_config=config)
    assert PassesOfProposer(proposer).fits_each_pass is fits


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_rank_asks_no_other_how_many_rows_a_pass_has(ranks: int) -> None:
    parallel = SimpleNamespace(data_parallel_size=ranks, pipeline_parallel_size=1)
    config = SimpleNamespace(parallel_config=parallel)
    passes = SimpleNamespace(share_rows=lambda rows: (rows + 3, torch.tensor([rows + 3] * 2)))
    rows, across = draft_of(None, passes=passes, vllm_config=config).share_rows(6)
    assert (rows, across is None) == ((6, True) if ranks == 1 else (9, False))


def test_layers_of_a_draft_are_none_of_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    every = {"layers.0": 1, "draft.1": 2, "draft.0": 3}
    monkeypatch.setattr(assemblies, "get_layers_from_vllm_config", lambda *_: every)
    config: Any = None
    found = layers_of(config, {"draft.0", "draft.1"})
    assert list(found.items()) == [("draft.1", 2), ("draft.0", 3)]


def test_a_draft_that_is_given_up_does_not_run() -> None:
    assembly: Any = object.__new__(Assembly)
    assembly.facts = facts()
    assembly.graphs, assembly._publish = None, lambda: None
    assembly.proposal = SimpleNamespace(
        propose=lambda target, _tokens: torch.full((target.requests, K), 5),
        counts=SimpleNamespace(note=lambda *_: None),
    )
    target = SimpleNamespace(requests=2, next_token_ids=torch.tensor([7, 8], dtype=torch.int32))
    assert assembly.propose(target).tolist() == [[5] * K] * 2
    assembly.give_up()
    assert assembly.propose(target).tolist() == [[0] * K] * 2


def test_a_proposal_knows_which_tokens_were_rejected() -> None:
    given = {
        "common_attn_metadata": SimpleNamespace(
            _seq_lens_cpu=torch.tensor([9, 6]),
            seq_lens_cpu_upper_bound=None,
            query_start_loc=torch.tensor([0, 4, 5]),
            query_start_loc_cpu=torch.tensor([0, 4, 5]),
            max_query_len=4,
        ),
        "next_token_ids": torch.tensor([7, 8]),
        "target_token_ids": torch.arange(5),
        "target_positions": torch.tensor([5, 6, 7, 8, 5]),
        "target_hidden_states": torch.zeros(5, 2),
        "num_rejected_tokens_gpu": torch.tensor([2, 0]),
    }
    buffers = SimpleNamespace(embeddings=None, rope_positions=None)
    assembly = SimpleNamespace(draft=SimpleNamespace(buffers=buffers))
    output = target_output(SimpleNamespace(assembly=assembly), given)
    assert output.num_rejected is not None
    assert output.num_rejected.tolist() == [2, 0]
    assert output.positions.tolist() == [5, 6, 7, 8, 5]


@pytest.mark.parametrize(("parallel", "later"), [(False, K - 1), (True, 0)])
@pytest.mark.parametrize("longest", [(64, 32), (32, 64)])
def test_limits_of_a_draft(parallel: bool, later: int, longest: tuple[int, int]) -> None:
    """Passes behind the first, and the shorter context of both models."""
    draft_model = SimpleNamespace(max_model_len=longest[1])
    config = SimpleNamespace(speculative_config=SimpleNamespace(draft_model_config=draft_model))
    sizes = Attention.sizes(facts(in_parallel=parallel, vllm_config=config), longest[0])
    assert (sizes.later_passes, sizes.max_model_len) == (later, 32)


def test_a_draft_that_is_asked_to_run_eagerly_is_not_captured() -> None:
    compilation = SimpleNamespace(cudagraph_mode=CUDAGraphMode.FULL_DECODE_ONLY)
    config = SimpleNamespace(compilation_config=compilation)
    draft: Any = SimpleNamespace(
        loaded=loaded(vllm_config=config, enforce_eager=True),
        passes=SimpleNamespace(in_step=True, replays_in_step=lambda: False),
    )
    why = capture.why_not_captured(draft, [], hosts.module("drafting.host").HOST, runs_along=False)
    assert why == "speculative_config says enforce_eager"


@hosts.only_on("vllm_ascend_0_23", "drafts of 0.30.0rc2 are told whole positions")
def test_drafting_layers_have_this_ranks_positions_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vllm-ascend adds up the ranks' rows, as if each had a part of every one."""
    module = hosts.module("drafting.host")
    group = SimpleNamespace(world_size=2, rank_in_group=1)
    monkeypatch.setattr(module, "get_tp_group", lambda: group)
    extra = SimpleNamespace(pad_size=1, flash_comm_v1_enabled=True)
    monkeypatch.setattr(module, "_EXTRA_CTX", extra)

    def add_up(states: torch.Tensor, positions: torch.Tensor) -> Any:
        return 2 * states, 2 * positions

    def shares(method: str) -> Any:
        proposer = SimpleNamespace(
            method=method, is_multimodal_model=False, maybe_pad_and_reduce=add_up
        )
        draft = draft_of(None, module.RankedDraft, passes=SimpleNamespace(proposer=proposer))
        return draft.share_of_rank(torch.ones(3, 1), torch.tensor([4, 5, 6]))

    states, positions = shares("mtp")
    assert (states.tolist(), positions.tolist()) == ([[1.0], [0.0]], [6, 0])
    assert shares("eagle3")[1].tolist() == [8, 10, 12]


def test_blocks_are_cached_once_their_hashes_are_there() -> None:
    cached: list[Any] = []
    cache_blocks = prefix_hits._of_hashed_blocks(lambda *given: cached.append(given), 4)
    request = SimpleNamespace(block_hashes=["one", "two"])
    for tokens in (12, 8, 5):
        cache_blocks(request, tokens)
    assert cached == [(request, 8), (request, 8), (request, 5)]


def test_of_two_rows_that_are_swapped_each_has_the_others_mask() -> None:
    """As vLLM swaps them: a view of the first row is overwritten before it is read."""
    masks = torch.tensor([[True, False], [False, True], [True, True]])
    batch = SimpleNamespace(allowed_token_ids_mask_cpu_tensor=masks)

    def swap(batch: Any, first: int, second: int) -> None:
        rows = batch.allowed_token_ids_mask_cpu_tensor
        rows[first], rows[second] = rows[second], rows[first]

    replacement, *_ = sampled_rows.swap_both_masks.functions.values()
    replacement(swap, batch, 0, 2)
    assert masks.tolist() == [[True, True], [False, True], [True, False]]
