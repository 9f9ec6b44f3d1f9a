# SPDX-License-Identifier: Apache-2.0
"""Heads of method dspark: tokens of plain loops, options of their checkpoints, drawn tokens."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from safetensors.torch import load_file, save_file

from tests.support import engine, hosts, reference, speculation
from tests.support.draft_facts import loaded
from tests.support.loop_judgement import assert_every_draft_token, assert_reference, drafter_of
from tests.support.marks import needs_float32
from tests.support.pairs import assert_greedy, kv_groups, prompts_of, scenario, with_config
from tests.support.stock import RUNNER_V2
from tests.support.tiny_models import block_head, model_directory

# Method dspark: a block of masks, and a bias of each token by the one before, over KV groups.
#
# The target has windows beside full attention, and the head's pages are of another size.

hosts.skip_module_unless("vllm_ascend_0_30", "vLLM 0.23.0 knows no method dspark")
PAIR = ("gpt_oss", "gpt_oss_dspark", "dspark")


@needs_float32
@pytest.mark.core(cases=["3"])
@pytest.mark.parametrize("k", [3, 5])
def test_proposals_and_acceptance_are_those_of_plain_loops(k):
    """Also with more tokens than the head was trained for."""
    sizes = (k + 1, 4 * (k + 1))
    result = assert_reference(*PAIR, k, graphs="FULL_DECODE_ONLY", capture_sizes=sizes)
    assert result.draft_replays > 5
    assert len(kv_groups(result, "target") | kv_groups(result, "draft")) > 1


@needs_float32
def test_vllm_ascends_own_proposals_on_v2_over_planned_caches():
    """No speculator of ours serves the method there; caches, windows and backends are ours."""
    sizes = (4, 16)
    result = assert_reference(*PAIR, 3, RUNNER_V2, graphs="FULL_DECODE_ONLY", capture_sizes=sizes)
    assert result.draft_replays > 5
    drafting = [row["name"] for row in result.layers if row["role"] == "draft"]
    assert len(drafting) == 2, "options of the draft apply to no layer"


@needs_float32
def test_every_draft_token_without_graphs_and_behind_prefix_hits():
    target, head, method = PAIR
    case = scenario(
        target,
        head,
        prompts=prompts_of(target, [265, 268, 5]),
        max_tokens=20,
        speculative={"method": method},
        repeats=2,
    )
    k = case.num_speculative_tokens
    drafter = drafter_of(model_directory(target), head, method, k)
    result = assert_every_draft_token(case, drafter, least=30 * k)
    assert max(result.cached_tokens) >= 128


# What config.json of a head of method dspark may say beside numbers, on model runner V1.
#
# On model runner V2 vllm-ascend's own proposals draft; layers with windows are ours there, too.
#
# Fewer draft tokens than the target has, a first token that is drafted by a mask, not by the token
# before it, rows of the draft window that see no later ones, and layers with sliding windows. Every
# draft token is what the same head says in plain torch; what is accepted shows nothing here, since
# no head was trained so.
TARGET, HEAD, K = "gpt_oss", "gpt_oss_dspark", 3
GRAPHS = {"graphs": "FULL_DECODE_ONLY", "capture_sizes": (4, 8, 16, 32)}


@dataclass(frozen=True)
class DraftOfFewerTokens(speculation.DraftBlock):
    """The head, which may draft some of the target's tokens alone."""

    kept: torch.Tensor

    def rows(self, context, drafted):
        rows = super().rows(context, drafted)
        return torch.full_like(rows, float("-inf")).index_copy_(1, self.kept, rows[:, self.kept])


class DraftBehindAnchor(speculation.DraftBlock):
    """The head, whose window has a mask for each token behind the row of the one before them."""

    def rows(self, context, drafted):
        head = speculation.load_head(self.checkpoint, self.target)
        with torch.inference_mode():
            known = head.known(speculation.hidden_states_of(self.target, tuple(context[:-1])))
            head.unanswered = 1
            rows = block_head.propose(head, known, context[-1], self.k)[0, : len(drafted) + 1]
            del head.unanswered
            before = torch.tensor([context[-1], *drafted])[: rows.shape[0]]
            return head.after(rows, before).float()


@dataclass(frozen=True)
class DraftOfSight(speculation.DraftBlock):
    """The head, whose rows see what ``sight`` says."""

    sight: block_head.Sight

    def rows(self, context, drafted):
        head = speculation.load_head(self.checkpoint, self.target)
        plain, head.sights = head.sights, [self.sight] * len(head.layers)
        try:
            return super().rows(context, drafted)
        finally:
            head.sights = plain


def causal_draft(*given):
    """The head, of whose draft window no row sees a later one."""
    return DraftOfSight(*given, block_head.Sight(causal=True))


def draft_with_sliding_windows(*given):
    """The head, whose rows see the tokens beside their own: not all of the draft window."""
    return DraftOfSight(*given, block_head.Sight(window=2))


def with_fewer_tokens(folder: Path, kept: torch.Tensor) -> str:
    """The head with an output matrix of its own, the rows ``kept`` of the target's."""
    head, target = model_directory(HEAD), model_directory(TARGET)
    weights = load_file(head / "model.safetensors")
    output = load_file(target / "model.safetensors")["lm_head.weight"]
    following = weights["markov_head.markov_w2.weight"]
    weights |= {
        "lm_head.weight": output[kept].clone(),
        "markov_head.markov_w2.weight": following[kept].clone(),
        "d2t": kept - torch.arange(len(kept)),
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((head / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "draft_vocab_size": len(kept)}))
    return str(folder)


def run_and_judge(
    checkpoint: str, drafter: speculation.Drafter, runner: Mapping[str, str] = MappingProxyType({})
) -> engine.Result:
    """Tokens are the target's, and draft tokens those of ``drafter``."""
    case = scenario(
        TARGET,
        HEAD,
        max_tokens=20,
        speculative={"method": "dspark"},
        environment=dict(runner),
        **GRAPHS,
    )
    result = engine.run(replace(case, draft=checkpoint))
    assert_greedy(case.model, case.prompts, result.tokens, case.max_tokens)
    report = reference.judge(drafter.rows, result.proposals, speculation.TIE)
    assert not report.wrong, report.wrong[:5]
    assert report.checked == K * len(result.proposals) > 100 * K
    assert runner or result.draft_replays > 5
    return result


@needs_float32
def test_a_head_that_drafts_fewer_tokens_than_the_target_has(tmp_path):
    every = json.loads((model_directory(TARGET) / "config.json").read_text())["vocab_size"]
    kept = torch.tensor([token for token in range(every) if token % 7 != 3])
    drafter = DraftOfFewerTokens(model_directory(HEAD), model_directory(TARGET), K, kept)
    assert_unlike_the_plain_head(run_and_judge(with_fewer_tokens(tmp_path, kept), drafter))


WINDOWS = {"dflash_config": {"use_swa": True, "swa_window_size": 2}}


@needs_float32
@pytest.mark.parametrize(
    ("option", "drafter", "runner"),
    [
        ({"sample_from_anchor": False}, DraftBehindAnchor, {}),
        ({"is_causal": True}, causal_draft, {}),
        (WINDOWS, draft_with_sliding_windows, {}),
        (WINDOWS, draft_with_sliding_windows, RUNNER_V2),
    ],
    ids=["a mask drafts the first token", "causal window", "sliding windows", "sliding windows-v2"],
)
def test_another_window(option, drafter, runner, tmp_path):
    folder = with_config(HEAD, tmp_path, **option)
    judge = drafter(model_directory(HEAD), model_directory(TARGET), K)
    assert_unlike_the_plain_head(run_and_judge(folder, judge, runner))


def assert_unlike_the_plain_head(result: engine.Result) -> None:
    """The option decides: without it the head would have drafted other tokens."""
    plain = speculation.DraftBlock(model_directory(HEAD), model_directory(TARGET), K)
    report = reference.judge(plain.rows, result.proposals, speculation.TIE)
    assert len(report.wrong) > 5


# Draft tokens of method dspark that depend on each other, against plain loops. No engine.

dspark = hosts.module("drafting.dspark")

REQUESTS, STEPS, WIDTH, DRAFTED = 3, 4, 8, 11
"""The head drafts fewer tokens than the target has; each is another number there."""


class Model:
    """A head's output matrix, and what each token adds to the logits of the next one."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(2)
        self.output = torch.randn(WIDTH, DRAFTED, generator=generator)
        self.of_token = torch.randn(2 * DRAFTED, WIDTH, generator=generator)
        self.of_embedding = torch.randn(WIDTH, DRAFTED, generator=generator)

    def compute_draft_logits(self, states: torch.Tensor) -> torch.Tensor:
        return states @ self.output

    def markov_embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.of_token[tokens]

    def markov_bias(self, embedded: torch.Tensor) -> torch.Tensor:
        return embedded @ self.of_embedding

    def map_draft_to_target(self, tokens: torch.Tensor) -> torch.Tensor:
        return 2 * tokens


@pytest.mark.core
@pytest.mark.parametrize("first", [0, 1], ids=["from the anchor", "behind the anchor"])
def test_each_token_follows_the_one_before_it(first: int) -> None:
    """The first one follows the token that the target sampled, with which each window begins."""
    model, window = Model(), STEPS + first
    rows = torch.arange(REQUESTS * window).view(REQUESTS, window)
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(REQUESTS * window, WIDTH, generator=generator)
    token_ids = torch.full((REQUESTS * window + 5,), 1, dtype=torch.int32)
    sampled = torch.tensor([4, 9, 20], dtype=torch.int32)
    token_ids[rows[:, 0]] = sampled
    buffers = SimpleNamespace(token_ids=token_ids)
    of_draft = loaded(model, num_speculative_tokens=STEPS, from_anchor=not first)
    draft = dspark.MarkovDraft(of_draft, None, buffers)
    expected = []
    for request, token in enumerate(sampled.tolist()):
        for row in rows[request, first:]:
            bias = model.of_token[token] @ model.of_embedding
            token = 2 * int((states[row] @ model.output + bias).argmax())
            expected.append(token)
    sample_rows = rows[:, first:].flatten()
    assert draft.sample(states, sample_rows).tolist() == expected
    out = torch.zeros(REQUESTS * STEPS, dtype=torch.int64)
    assert draft.sample(states, sample_rows, out) is out
    assert out.tolist() == expected
