# SPDX-License-Identifier: Apache-2.0
"""Pairs in bfloat16 of which a part has weights or caches of 8 bits, and their judgement."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.support import eight_bits, engine, reference, speculation
from tests.support.pairs import TIES, prompts_of
from tests.support.prompts import text_prompts as texts
from tests.support.tiny_models import derived, model_directory
from tests.support.tiny_models.heads import Head

TARGET = "qwen3_wide"
# Past one block of 128 tokens. The last has fewer tokens than a verify step, and waits until
# another request has ended: its prompt is a shorter row beside verify steps.
LENGTHS = [41, 9, 126, 17, 140, 30, 3]
BLOCK, CHUNK = 128, 48
"""Tokens of a block, of which one prompt fills one, and of a prompt that a step computes."""
SHARE = 0.05
"""Share of tokens that may be near ties, which rounding decides."""

GRAPHS = {"graphs": "FULL_DECODE_ONLY", "capture_sizes": (4, 8, 16, 24)}


Rows = Callable[[Sequence[int], Sequence[int]], torch.Tensor]
"""Logits of a model after a context and after each token behind it."""


DECIDED = (299, 53, 613, 718, 277, 538, 357)
"""Where prompts of ``LENGTHS`` begin in the standard texts, of which no token that Qwen3, Llama or
its tiny draft says is decided by less than 0.12 of a logit. In bfloat16 logits of 8 to 16 are
multiples of 0.0625."""


def decided_prompts() -> list[list[int]]:
    """Prompts of ``LENGTHS`` whose answers and drafts rounding to 16 bits does not decide."""
    ids = reference.token_ids(model_directory(TARGET), " ".join(texts() * 2))
    starts = zip(DECIDED, LENGTHS, strict=True)
    return [ids[:1] + ids[start + 1 : start + length] for start, length in starts]


def case_of(target: Path, draft: Path | None, **fields: Any) -> engine.Scenario:
    """A scenario in bfloat16, whose prompts are computed at once."""
    limits = {"dtype": "bfloat16", "max_num_batched_tokens": 2048, "max_num_seqs": 6}
    values = {
        "model": str(target),
        "draft": None if draft is None else str(draft),
        "prompts": prompts_of(TARGET, LENGTHS),
        "max_tokens": 24,
        "record_drafts": draft is not None,
        **fields,
        "engine": {**limits, "enable_prefix_caching": False, **fields.get("engine", {})},
    }
    return engine.Scenario(**values)


@dataclass(frozen=True)
class AtOnce:
    """How many tokens of a request are computed from plain keys.

    Those of a step are where each of its chunks begins a prompt.

    Attributes:
        chunk: tokens of a prompt that a step computes; None: all.
        beside_a_hit: whether a chunk behind a hit comes in the first step.
        hits: numbers of the prompts whose first block is hit.
    """

    case: engine.Scenario
    chunk: int | None = None
    beside_a_hit: bool = False
    hits: tuple[int, ...] = ()

    def of(self, context: Sequence[int]) -> int:
        """The number of the request that ``context`` is of."""
        prompts = self.case.prompts
        start = next(one for one in prompts if list(context[: len(one)]) == one)
        if len(start) <= self.case.num_speculative_tokens + 1 or prompts.index(start) in self.hits:
            return 0
        waited = prompts.index(start) >= self.case.engine["max_num_seqs"]
        # With the first requests of the second round comes the one that is hit.
        if self.beside_a_hit and not waited and len(start) <= BLOCK:
            return 0
        return min(self.chunk or len(start), len(start))


def rows_of(directory: Path, at_once: AtOnce) -> Rows:
    """Logits of a model, quantised or not, after tokens of a request."""

    def rows(context: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        if not eight_bits.is_quantised(directory):
            return reference.logits_of(directory, [*context, *tokens])[len(context) - 1 :]
        return eight_bits.rows(directory, context, tokens, at_once.of(context))

    return rows


def rows_of_head(head: Path, target: Path, at_once: AtOnce) -> Rows:
    """Logits of the plain head in ``head`` on hidden states of a target with a cache of 8 bits."""

    def rows(context: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        model, scales = eight_bits.load(target)
        drafting = load_head(head, target)
        cached = eight_bits.cached_in_8_bits(model, scales, at_once.of(context))
        with torch.inference_mode(), cached:
            given = torch.tensor([list(context[:-1])])
            output = model(input_ids=given, use_cache=False, output_hidden_states=True)
            known = drafting.known(output.hidden_states)
            return speculation.rows_of_head(drafting, known, context, tokens)

    return rows


@functools.lru_cache(maxsize=2)
def load_head(head: Path, target: Path) -> Head:
    """The head in ``head`` on the model in ``target``; each of its parts gives bfloat16."""
    model, _ = eight_bits.load(target)
    loaded = derived.load_head(head, model)
    eight_bits.round_parts(loaded)
    return loaded


def judged(case: engine.Scenario, result: engine.Result, target: Path, draft: Path | None) -> None:
    """Tokens and draft tokens by the models themselves; acceptance by counting."""
    assert_said(rows_of(target, AtOnce(case)), said(case, result), near_tie_of(target))
    if draft is not None:
        assert_said(rows_of(draft, AtOnce(case)), result.proposals, near_tie_of(draft))
        assert_accepted_as_counted(case, result)


def said(case: engine.Scenario, result: engine.Result) -> list[reference.DraftProposal]:
    """What the target said, as proposals after the prompts."""
    assert [len(tokens) for tokens in result.tokens] == [case.max_tokens] * len(case.prompts)
    pairs = zip(case.prompts, result.tokens, strict=True)
    return [reference.DraftProposal(prompt, tokens) for prompt, tokens in pairs]


def near_tie_of(directory: Path) -> float:
    """Difference of two logits that decides nothing.

    Inputs of matrices are rounded to whole numbers; where bfloat16 lies between two of them, it may
    be the other one than in float32. Logits then differ by up to 0.1; they spread by 4 and more.
    """
    return 0.15 if eight_bits.rounds_inputs(directory) else TIES["bfloat16"][0]


def assert_said(
    rows: Rows,
    proposals: Sequence[reference.DraftProposal],
    near_tie: float = TIES["bfloat16"][0],
) -> None:
    """Every token is that of the logits ``rows``, or one of a small share of near ties."""
    assert proposals
    report = reference.judge(rows, proposals, near_tie)
    assert not report.wrong, "\n".join(map(str, report.wrong))
    assert len(report.near_ties) <= SHARE * report.checked, "\n".join(map(str, report.near_ties))


def assert_accepted_as_counted(
    case: engine.Scenario, result: engine.Result, filled_up: int = 0
) -> None:
    """Each verified proposal is accepted up to its first token that did not come out.

    Args:
        filled_up: requests whose first step vLLM may fill up to a verification's tokens with
            placeholders, which it counts and rejects.
    """
    made = {tuple(one.context): one.tokens for one in result.proposals}
    accepted, verified = [0] * case.num_speculative_tokens, 0
    undecided = 0
    for prompt, tokens in zip(case.prompts, result.tokens, strict=True):
        at = 1
        while at < len(tokens):
            proposed = made[tuple(prompt + tokens[:at])]
            verified += 1
            count = 0
            for token, right in zip(proposed, tokens[at:], strict=False):
                if token != right:
                    break
                accepted[count] += 1
                count += 1
            undecided += at + count >= len(tokens)
            at += count + 1
    assert verified <= result.num_drafts <= verified + filled_up
    for counted, reported in zip(accepted, result.accepted_per_position, strict=True):
        assert counted <= reported <= counted + undecided
    assert sum(accepted) > verified / 3


def run(target: Path, draft: Path | None, **fields: Any) -> engine.Result:
    """Run a pair and judge it."""
    case = case_of(target, draft, **fields)
    result = engine.run(case)
    judged(case, result, target, draft)
    return result
