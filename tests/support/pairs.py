# SPDX-License-Identifier: Apache-2.0
"""What the engine tests share: prompts of real text, and the judgement by Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support import engine, prompts, reference
from tests.support.prompts import text_prompts as texts
from tests.support.tiny_models import model_directory

MAX_TOKENS = 32

# dtype -> difference of two logits that decides nothing, and the share of tokens (at least one)
# that may be such ties. A real device computes in bfloat16, the reference in float32.
TIES = {"float32": (reference.NEAR_TIE, 0.0), "bfloat16": (0.05, 0.02)}


def text_prompts(target: str | Path, count: int | None = None) -> list[list[int]]:
    """Token ids of the standard prompts and of decks, whose continuation needs every key."""
    texts = [*prompts.text_prompts(), *prompts.deck_prompts(4)]
    return [reference.token_ids(target, text) for text in texts[:count]]


def scenario(target: str, draft: str | None = None, **fields: Any) -> engine.Scenario:
    """A scenario of tiny models by name, with the standard prompts unless others are given."""
    directory = model_directory(target)
    values: dict[str, Any] = {
        "model": str(directory),
        "draft": None if draft is None else str(model_directory(draft)),
        "prompts": text_prompts(directory),
        "max_tokens": MAX_TOKENS,
        "record_drafts": draft is not None,
        **fields,
    }
    return engine.Scenario(**values)


def with_config(name: str, directory: Path, **changes: Any) -> str:
    """The checkpoint ``name`` in ``directory``, whose config.json says something else."""
    source = model_directory(name)
    for file in source.iterdir():
        if file.name != "config.json":
            (directory / file.name).symlink_to(file)
    config = json.loads((source / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
    return str(directory)


def assert_greedy(
    model: str | Path,
    prompts: Sequence[list[int]],
    completions: Sequence[list[int]],
    max_tokens: int,
    dtype: str | None = None,
) -> None:
    """Every token is Hugging Face's greedy choice in float32 after the tokens before it.

    Without near ties the completion is Hugging Face's. Weights of the tiny models depend on the
    processor and the Python that trained them, so a tie closer than rounding may turn up. One may
    pass, in bfloat16 a small share (see TIES). ``dtype``: what the engine rounds to, if not what
    engines compute in.
    """
    near_tie, share = TIES[dtype or engine.compared_dtype()]
    assert [len(tokens) for tokens in completions] == [max_tokens] * len(prompts)
    pairs = zip(prompts, completions, strict=True)
    report = reference.check_drafts(
        model, [reference.DraftProposal(prompt, tokens) for prompt, tokens in pairs], near_tie
    )
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert len(report.near_ties) <= max(1, share * report.checked), "\n".join(
        map(str, report.near_ties)
    )


def assert_greedy_tokens_of_reference(
    case: engine.Scenario, result: engine.Result, dtype: str | None = None
) -> None:
    """Every token of every round is Hugging Face's greedy token in float32."""
    prompts = case.prompts * case.repeats
    assert_greedy(case.model, prompts, result.tokens, case.max_tokens, dtype)


def assert_drafts_are_the_drafts_own(case: engine.Scenario, result: engine.Result) -> None:
    """Every proposed token is what the draft itself says after the accepted context."""
    assert result.proposals
    assert case.draft is not None
    near_tie, _ = TIES[engine.compared_dtype()]
    report = reference.check_drafts(case.draft, result.proposals, near_tie)
    assert report.checked == case.num_speculative_tokens * len(result.proposals)
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))


def run_greedy(case: engine.Scenario) -> engine.Result:
    """Run it: every token is Hugging Face's greedy one."""
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    return result


def run_judged(case: engine.Scenario) -> engine.Result:
    """Run it: every token is Hugging Face's greedy one, and every draft token the draft's own."""
    result = run_greedy(case)
    assert_drafts_are_the_drafts_own(case, result)
    return result


def checked_drafts(
    rows: Callable[[Sequence[int], Sequence[int]], Any],
    proposals: Sequence[reference.DraftProposal],
) -> int:
    """How many draft tokens there are, every one of which ``rows`` says itself.

    ``rows``: logits after a context and each token behind it.
    """
    near_tie, _ = TIES[engine.compared_dtype()]
    report = reference.judge(rows, proposals, near_tie)
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    return report.checked


def backends(result: engine.Result) -> dict[str, set[str]]:
    """Role -> set of the backends of its layers."""
    found: dict[str, set[str]] = {}
    for row in result.layers:
        found.setdefault(row["role"], set()).add(row["backend"])
    return found


def kv_groups(result: engine.Result, role: str) -> set[int]:
    """KV groups with layers of a role."""
    return {row["kv_group"] for row in result.layers if row["role"] == role}


def prompts_of(target: str, lengths: Sequence[int]) -> list[list[int]]:
    """Prompts of the given lengths, from the standard texts one after another."""
    ids = reference.token_ids(model_directory(target), " ".join(texts() * 8))
    return [ids[:1] + ids[start + 1 : start + length] for start, length in enumerate(lengths)]


def assert_drafted_in_parallel(draft: str, mask: int, result: engine.Result, drafted: int) -> None:
    """Every proposal is what the draft says behind its context and ``drafted - 1`` mask tokens."""
    assert result.proposals
    for proposal in result.proposals:
        logits = reference.logits_of(draft, [*proposal.context, *[mask] * (drafted - 1)])
        assert logits[len(proposal.context) - 1 :].argmax(-1).tolist() == proposal.tokens


def about_the_end_of_a_block(
    result: engine.Result, prompt: list[int], block: int
) -> tuple[int, int]:
    """Tokens that are computed before and after the step of ``prompt`` that reaches ``block``."""
    made = [one.context for one in result.proposals if one.context[: len(prompt)] == prompt]
    # The token that was sampled last is not computed yet.
    ends = sorted(len(context) - 1 for context in made)
    return max(end for end in ends if end < block), min(end for end in ends if end >= block)
