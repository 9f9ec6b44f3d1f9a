# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters beside a draft over two KV groups: tokens are those without speculation.

All sorts run in one engine per model runner. The judge is a plain loop over Hugging Face's logits.
"""

import string

import pytest

from tests.emulated.drafting import probes
from tests.support import programs, prompts, reference
from tests.support.pairs import scenario
from tests.support.stock import RUNNER_V2, RUNNERS
from tests.support.tiny_models import model_directory

TARGET, DRAFT = "gemma3", "gemma3_draft"
K, NEW_TOKENS, TOP = 3, 20, 4
# Without it vllm-ascend's model runner V1 counts penalties elsewhere.
TRITON = {"EMULATED_NPU_TRITON": "1"}
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.6}
LEAST = 12
# Rounding in float32; probabilities of neighbours in a list differ by much more.
ROUNDING = 2e-3


def text_ids():
    directory = model_directory(TARGET)
    texts = [*prompts.text_prompts()[3:6], prompts.deck_prompts(1)[0]]
    return [reference.token_ids(directory, text) for text in texts]


def chosen_one_by_one(prompt, changed=lambda row, done: row):
    """Greedy tokens, each of the logits as ``changed(logits, tokens so far)`` leaves them."""
    done = []
    for _ in range(NEW_TOKENS):
        row = reference.logits_of(model_directory(TARGET), [*prompt, *done])[-1].clone()
        done.append(int(changed(row, done).argmax()))
    return done


def penalised(prompt, **others):
    penalties = {**PENALTIES, **others}

    def changed(row, done):
        for token in {*prompt, *done}:
            factor = penalties["repetition_penalty"]
            row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
        for token in done:
            row[token] -= penalties["frequency_penalty"]
        for token in set(done):
            row[token] -= penalties["presence_penalty"]
        return row

    return chosen_one_by_one(prompt, changed)


def delayed(prompt, stop):
    """With a token that must not come before ``LEAST`` others, and ends the answer after them."""

    def changed(row, done):
        if len(done) < LEAST:
            row[stop] = -float("inf")
        return row

    tokens = chosen_one_by_one(prompt, changed)
    return tokens[: tokens.index(stop) + 1] if stop in tokens else tokens


def allowed(prompt, tokens):
    def changed(row, done):
        kept = row[tokens].clone()
        row[:] = -float("inf")
        row[tokens] = kept
        return row

    return chosen_one_by_one(prompt, changed)


def asked(prompt, **sampling):
    fields = {"temperature": 0.0, "max_tokens": NEW_TOKENS, "ignore_eos": True}
    return {"prompt": prompt, "sampling": {**fields, **sampling}}


def drawn(prompt):
    return asked(prompt, temperature=1.0, seed=11, n=2)


@pytest.fixture(scope="module")
def greedy():
    return [chosen_one_by_one(prompt) for prompt in text_ids()]


def unwanted(tokens):
    """Two tokens of a greedy answer that follow each other, as text.

    Without a space: vLLM bans a word also without those before it, and then one token alone.
    """
    pairs = (bytes(tokens[at : at + 2]).decode() for at in range(6, len(tokens) - 1))
    return next(pair for pair in pairs if not set(pair) & set(string.whitespace))


def without(prompt, word):
    """No token completes ``word``."""
    *before, last = word.encode()

    def changed(row, done):
        if done[-len(before) :] == before:
            row[last] = -float("inf")
        return row

    return chosen_one_by_one(prompt, changed)


def stop_tokens(tokens):
    """Those that come early in a greedy answer, so that to wait for one changes the answer."""
    return sorted({*tokens[3:6]})


def stop_text(tokens):
    return bytes(tokens[9:11]).decode()


def delayed_requests(prompts, answers):
    """For each prompt requests that stop tokens of its greedy answer may end, but not early."""
    return [
        asked(prompt, stop_token_ids=[stop], min_tokens=LEAST)
        for prompt, tokens in zip(prompts, answers, strict=True)
        for stop in stop_tokens(tokens)
    ]


def assert_delayed(found, answers):
    expected = [
        delayed(prompt, stop)
        for prompt, tokens in zip(text_ids(), answers, strict=True)
        for stop in stop_tokens(tokens)
    ]
    assert found == expected
    assert {len(tokens) for tokens in expected} != {NEW_TOKENS}


LETTERS = [*range(ord("a"), ord("z") + 1)]


def answers_of(requests, environment, *, asynchronous):
    """What one engine made of ``requests``, lists by sort; answers by sort, and its counters."""
    case = scenario(
        TARGET,
        DRAFT,
        num_speculative_tokens=K,
        engine={"skip_tokenizer_init": False, "max_num_seqs": 6},
    )
    everything = [each for several in requests.values() for each in several]
    arguments = {**case.engine_arguments(), "async_scheduling": asynchronous}
    answer = programs.answer_of(
        probes.parameters, {"engine": arguments, "requests": everything}, environment
    )
    answers = iter(answer["answers"])
    by_sort = {sort: [next(answers) for _ in several] for sort, several in requests.items()}
    return {**answer, "by_sort": by_sort}


@pytest.fixture(scope="module", params=RUNNERS)
def session(request, greedy):
    ids = text_ids()
    requests = {
        "logprobs": [asked(prompt, logprobs=TOP) for prompt in ids[:3]],
        "prompt_logprobs": [asked(prompt, prompt_logprobs=TOP) for prompt in ids[:2]],
        "penalties": [asked(prompt, **PENALTIES) for prompt in ids],
        "delayed": delayed_requests(ids, greedy),
        "allowed": [asked(prompt, allowed_token_ids=LETTERS) for prompt in ids[:2]],
        "stopped": [
            asked(prompt, stop=[stop_text(tokens)])
            for prompt, tokens in zip(ids, greedy, strict=True)
        ],
        "drawn": [drawn(ids[0])] * 3,
    }
    runner = request.param
    return answers_of(requests, runner | TRITON, asynchronous=runner == RUNNER_V2)


def tokens_of(session, sort):
    return [answer["tokens"][0] for answer in session["by_sort"][sort]]


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
def test_drafts_are_accepted(session):
    assert session["drafts"] > 100
    assert sum(session["accepted"]) > 0.2 * K * session["drafts"]


def assert_near(listed, row):
    """``listed``: token -> logarithm of its probability; the best ones are there."""
    expected = row.log_softmax(-1)
    best = expected.topk(TOP)
    for token, value in listed.items():
        assert abs(value - float(expected[int(token)])) < ROUNDING
    least = min(float(expected[int(token)]) for token in listed)
    assert len(listed) >= TOP
    assert sorted(listed.values(), reverse=True)[:TOP] == pytest.approx(
        best.values.tolist(), abs=ROUNDING
    )
    assert least <= float(best.values[-1]) + ROUNDING


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
def test_logprobs(session, greedy):
    for prompt, expected, answer in zip(
        text_ids(), greedy, session["by_sort"]["logprobs"], strict=False
    ):
        [tokens], [listed] = answer["tokens"], answer["logprobs"]
        assert tokens == expected
        rows = reference.logits_of(model_directory(TARGET), [*prompt, *tokens])[len(prompt) - 1 :]
        assert len(listed) == len(tokens)
        for position, row in zip(listed, rows, strict=False):
            assert_near(position, row)


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
def test_prompt_logprobs(session, greedy):
    for prompt, expected, answer in zip(
        text_ids(), greedy, session["by_sort"]["prompt_logprobs"], strict=False
    ):
        assert answer["tokens"] == [expected]
        rows = reference.logits_of(model_directory(TARGET), prompt)
        assert len(answer["prompt_logprobs"]) == len(prompt) - 1
        for position, row in zip(answer["prompt_logprobs"], rows, strict=False):
            assert_near(position, row)


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
def test_penalties(session, greedy):
    expected = [penalised(prompt) for prompt in text_ids()]
    assert tokens_of(session, "penalties") == expected
    assert sum(one != other for one, other in zip(expected, greedy, strict=True)) > 1


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_what_counts_tokens_with_asynchronous_scheduling(runner, greedy):
    """The scheduler knows neither the drafts before a row nor how many before it were accepted.

    On model runner V1 without Triton, where stock's penalties end the engine.
    """
    ids = text_ids()
    words = [unwanted(tokens) for tokens in greedy]
    requests = {
        "penalties": [asked(prompt, **PENALTIES) for prompt in ids],
        "repetition": [asked(prompt, repetition_penalty=1.3) for prompt in ids],
        "words": [asked(prompt, bad_words=[word]) for prompt, word in zip(ids, words, strict=True)],
        "delayed": delayed_requests(ids, greedy),
    }
    answer = answers_of(requests, runner, asynchronous=True)
    assert tokens_of(answer, "penalties") == [penalised(prompt) for prompt in ids]
    alone = {"presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert tokens_of(answer, "repetition") == [penalised(prompt, **alone) for prompt in ids]
    expected = [without(prompt, word) for prompt, word in zip(ids, words, strict=True)]
    assert tokens_of(answer, "words") == expected
    assert_delayed(tokens_of(answer, "delayed"), greedy)
    assert sum(one != other for one, other in zip(expected, greedy, strict=True)) > 1
    assert sum(answer["accepted"]) > 0.2 * K * answer["drafts"] > 10


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
def test_an_answer_of_at_least_so_many_tokens(session, greedy):
    assert_delayed(tokens_of(session, "delayed"), greedy)


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
def test_allowed_tokens(session):
    assert tokens_of(session, "allowed") == [allowed(prompt, LETTERS) for prompt in text_ids()[:2]]


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
def test_stop_strings(session, greedy):
    for tokens, answer in zip(greedy, session["by_sort"]["stopped"], strict=True):
        text = bytes(tokens).decode()
        assert answer["texts"] == [text[: text.index(stop_text(tokens))]]
        assert len(answer["tokens"][0]) < NEW_TOKENS


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
def test_the_same_seed_draws_the_same_tokens_beside_other_requests(session):
    first, *others = (answer["tokens"] for answer in session["by_sort"]["drawn"])
    assert others == [first, first]
    assert first[0] != first[1]
