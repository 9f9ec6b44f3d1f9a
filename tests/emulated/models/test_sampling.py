# SPDX-License-Identifier: Apache-2.0
"""Sampling on the emulated NPU, judged by Hugging Face's logits of the same context.

Every token is judged by what the model says after the engine's own tokens before it, so one odd
token does not hide the rest. One engine runs all requests. With Triton, vllm-ascend applies
penalties by its own kernels, so a second engine that finds Triton runs them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.emulated import probes
from tests.support import programs, prompts, reference
from tests.support.tiny_models import model_directory

pytestmark = pytest.mark.host("0.23")

MODEL = "llama_target"
NUM_TOKENS = 12
PENALTIES = {"repetition_penalty": 1.4, "presence_penalty": 0.6, "frequency_penalty": 0.5}
NUM_SAMPLES, TEMPERATURE = 400, 0.8


def requests(texts: list[list[int]]) -> dict[str, list[dict[str, Any]]]:
    """Name of a batch -> its requests. Each batch is one call of ``LLM.generate``."""
    short, middle, long = texts

    def each(prompt: list[int], **sampling: Any) -> dict[str, Any]:
        return {"prompt": prompt, "sampling": {"max_tokens": NUM_TOKENS, **sampling}}

    return {
        "logprobs": [
            each(middle, temperature=0.0, logprobs=5, prompt_logprobs=3),
            each(short, temperature=0.0, logprobs=5),
        ],
        "penalties": [each(prompt, temperature=0.0, **PENALTIES) for prompt in texts],
        "top_k": [each(middle, seed=seed, temperature=2.0, top_k=3) for seed in range(6)],
        "top_p": [each(middle, seed=seed, temperature=2.0, top_p=0.6) for seed in range(6)],
        "min_p": [each(middle, seed=seed, temperature=1.0, min_p=0.2) for seed in range(6)],
        "one_token_left": [
            each(middle, seed=1, temperature=1.5, top_k=1),
            each(middle, seed=1, temperature=1.5, top_p=1e-6),
            each(middle, temperature=0.0),
        ],
        "allowed": [each(middle, temperature=0.0, allowed_token_ids=[65, 66, 67])],
        "seeds_together": [each(middle, seed=seed, temperature=1.5) for seed in range(4)],
        "seed_alone": [each(middle, seed=2, temperature=1.5)],
        # The prompt is longer than a chunk, so the draws of its unfinished prefill are taken back;
        # the second time most of it comes from the prefix cache.
        "seeded_chunks": [each(long, seed=5, temperature=1.5)],
        "seeded_cached": [each(long, seed=5, temperature=1.5)],
        "frequencies": [
            each(middle, seed=seed, temperature=TEMPERATURE, max_tokens=1)
            for seed in range(NUM_SAMPLES)
        ],
    }


class Session:
    """The requests and answers of one engine."""

    def __init__(self, folder: Path, has_triton: bool, only: str | None = None) -> None:
        self.model = str(model_directory(MODEL))
        texts = [reference.token_ids(self.model, prompts.text_prompts()[i]) for i in (1, 3, 11)]
        everything = requests(texts)
        self.requests = everything if only is None else {only: everything[only]}
        request = {
            "model": self.model,
            "engine": {"max_num_batched_tokens": 96, "max_num_seqs": 32, "max_logprobs": 5},
            "batches": list(self.requests.values()),
        }
        triton = {"EMULATED_NPU_TRITON": str(int(has_triton))}
        answers = programs.answer_of(probes.sampling, request, triton)
        self.answers = dict(zip(self.requests, answers, strict=True))

    def tokens(self, batch: str) -> list[list[int]]:
        return [answer["tokens"] for answer in self.answers[batch]]

    def judged(self, batch: str) -> list[tuple[list[int], int, torch.Tensor]]:
        """(context, token, logits) of every token that a batch generated."""
        found = []
        for request, answer in zip(self.requests[batch], self.answers[batch], strict=True):
            prompt, generated = request["prompt"], answer["tokens"]
            rows = reference.logits_of(self.model, [*prompt, *generated[:-1]])[len(prompt) - 1 :]
            assert len(rows) == len(generated)
            for index, token in enumerate(generated):
                found.append(([*prompt, *generated[:index]], token, rows[index]))
        return found


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return Session(tmp_path_factory.mktemp("sampling"), has_triton=False)


def assert_is_largest(values: torch.Tensor, token: int) -> None:
    assert values[token] >= values.max() - reference.NEAR_TIE


def test_log_probabilities_of_generated_tokens(session: Session) -> None:
    positions = [item for answer in session.answers["logprobs"] for item in answer["logprobs"]]
    judged = session.judged("logprobs")
    assert len(positions) == len(judged) == 2 * NUM_TOKENS
    for given, (_, token, logits) in zip(positions, judged, strict=True):
        expected = logits.log_softmax(-1)
        assert_is_largest(expected, token)
        assert len(given) == 5
        best = expected.topk(5).values.tolist()
        assert sorted(given.values(), reverse=True) == pytest.approx(best, abs=1e-4)
        for identifier, value in given.items():
            assert value == pytest.approx(expected[int(identifier)].item(), abs=1e-4)


def test_log_probabilities_of_the_prompt(session: Session) -> None:
    prompt = session.requests["logprobs"][0]["prompt"]
    given = session.answers["logprobs"][0]["prompt_logprobs"]
    assert given[0] is None
    assert len(given) == len(prompt)
    expected = reference.logits_of(session.model, prompt).log_softmax(-1)
    for position in range(1, len(prompt)):
        value = given[position][str(prompt[position])]
        assert value == pytest.approx(expected[position - 1, prompt[position]].item(), abs=1e-4)


def penalised(logits: torch.Tensor, context: list[int], num_generated: int) -> torch.Tensor:
    """Penalties as vLLM documents them: repetition counts the prompt, the others do not."""
    result = logits.tolist()
    for token in set(context):
        factor = PENALTIES["repetition_penalty"]
        result[token] = result[token] / factor if result[token] > 0 else result[token] * factor
    generated = Counter(context[len(context) - num_generated :])
    for token, count in generated.items():
        result[token] -= PENALTIES["frequency_penalty"] * count + PENALTIES["presence_penalty"]
    return torch.tensor(result)


def assert_penalties_decide(session: Session) -> None:
    changed = 0
    for index, (context, token, logits) in enumerate(session.judged("penalties")):
        assert_is_largest(penalised(logits, context, index % NUM_TOKENS), token)
        changed += token != int(logits.argmax())
    assert changed > NUM_TOKENS // 2


def test_penalties(session: Session) -> None:
    assert_penalties_decide(session)


def test_penalties_by_the_triton_kernels_of_vllm_ascend(tmp_path: Path) -> None:
    assert_penalties_decide(Session(tmp_path, has_triton=True, only="penalties"))


def test_top_k_keeps_the_k_most_probable(session: Session) -> None:
    ranks = [int((row > row[token]).sum()) for _, token, row in session.judged("top_k")]
    assert set(ranks) == {0, 1, 2}


def test_top_p_keeps_the_smallest_set_with_that_probability(session: Session) -> None:
    before = []
    for _, token, logits in session.judged("top_p"):
        probabilities = (logits / 2.0).softmax(-1)
        before.append(probabilities[probabilities > probabilities[token]].sum().item())
    # A token is kept while what is more probable does not reach top_p yet.
    assert max(before) < 0.6 + 1e-4
    assert max(before) > 0


def test_min_p_keeps_what_reaches_that_share_of_the_most_probable(session: Session) -> None:
    shares = []
    for _, token, logits in session.judged("min_p"):
        probabilities = logits.softmax(-1)
        shares.append((probabilities[token] / probabilities.max()).item())
    assert min(shares) >= 0.2 - 1e-4
    assert min(shares) < 1


def test_a_choice_of_one_token_is_greedy(session: Session) -> None:
    top_k, top_p, greedy = session.tokens("one_token_left")
    assert top_k == top_p == greedy


def test_only_allowed_tokens(session: Session) -> None:
    for _, token, logits in session.judged("allowed"):
        assert token == 65 + int(logits[65:68].argmax())


def test_a_seed_decides_the_tokens_whatever_else_is_in_the_batch(session: Session) -> None:
    together = session.tokens("seeds_together")
    assert len({tuple(tokens) for tokens in together}) == 4
    assert session.tokens("seed_alone") == [together[2]]


def test_a_seed_decides_the_tokens_however_the_prompt_is_chunked(session: Session) -> None:
    assert session.tokens("seeded_chunks") == session.tokens("seeded_cached")


def test_frequencies_follow_the_probabilities(session: Session) -> None:
    prompt = session.requests["frequencies"][0]["prompt"]
    logits = reference.logits_of(session.model, prompt)[-1]
    expected = (logits / TEMPERATURE).softmax(-1)
    counts = Counter(tokens[0] for tokens in session.tokens("frequencies"))
    found = torch.zeros_like(expected)
    for token, count in counts.items():
        found[token] = count / NUM_SAMPLES
    distance = (found - expected).abs().sum().item() / 2
    # About 0.4 * sqrt(outcomes / samples) for a right sampler.
    assert distance < 0.1
    assert expected.max() < 0.9
