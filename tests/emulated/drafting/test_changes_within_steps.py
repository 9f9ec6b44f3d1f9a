# SPDX-License-Identifier: Apache-2.0
"""What changes within a verify step: reasoning, stops, shortest and longest answers.

The target drafts for itself, so that steps are long. Prompts that go on into the greedy answer, a
token further each, put one and the same change at each place of a step. The judge is a plain loop
over Hugging Face's logits.
"""

import pytest

from tests.emulated.drafting import probes
from tests.support import ends_reasoning, hosts, programs, prompts, reference
from tests.support.pairs import scenario
from tests.support.stock import RUNNER_V2
from tests.support.tiny_models import model_directory
from tests.support.tiny_models.tokenizer import EOS_TOKEN_ID, VOCABULARY_SIZE

TARGET, K = "llama_target", 5
PLACES = 2 * (K + 1)
"""How far a change is moved on: over two steps."""
LETTERS, DIGITS = 25, 5
EXPRESSION = f"[a-z]{{{LETTERS}}}[0-9]{{{DIGITS}}}"
NEW_TOKENS = PLACES + 6

V2 = hosts.only_on("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")
SETTINGS = [
    pytest.param(({}, False), id="v1"),
    pytest.param(({}, True), id="v1-async"),
    pytest.param((RUNNER_V2, True), id="v2-async", marks=V2),
]


def chosen(context, allowed=None, forbidden=None):
    row = reference.logits_of(model_directory(TARGET), context)[-1].clone()
    if allowed is not None:
        row[[token for token in range(VOCABULARY_SIZE) if token not in allowed]] = -float("inf")
    if forbidden is not None:
        row[forbidden] = -float("inf")
    return int(row.argmax())


@pytest.fixture(scope="module")
def begun():
    """A prompt, its greedy answer, and where in this a token stands first that is late enough."""
    for text in prompts.text_prompts()[4:]:
        prompt = reference.token_ids(model_directory(TARGET), text)
        [greedy] = reference.greedy(model_directory(TARGET), [prompt], NEW_TOKENS + PLACES)
        answer = greedy.tokens
        for place in range(PLACES, PLACES + 4):
            is_new = answer[place] not in answer[:place] and answer[place] < 256
            if is_new and not greedy.near_ties:
                return prompt, answer, place
    raise AssertionError("no prompt's answer has a new token where it is needed")


def allowed_behind(tokens):
    if len(tokens) < LETTERS:
        return range(ord("a"), ord("z") + 1)
    return range(ord("0"), ord("9") + 1) if len(tokens) < LETTERS + DIGITS else [EOS_TOKEN_ID]


def with_grammar(prompt, answer, place):
    """The answer whose reasoning ends at ``place``, with what the grammar makes of the rest."""
    whole = answer[: place + 1]
    while whole[-1] != EOS_TOKEN_ID:
        whole.append(chosen([*prompt, *whole], allowed_behind(whole[place + 1 :])))
    return whole


def delayed(prompt, answer, stop, least):
    """The answer that ``stop`` ends, but not before ``least`` other tokens."""
    tokens = []
    while len(tokens) < NEW_TOKENS and stop not in tokens:
        best, forbidden = answer[len(tokens)], stop if len(tokens) < least else None
        if best == forbidden or tokens != answer[: len(tokens)]:
            best = chosen([*prompt, *tokens], forbidden=forbidden)
        tokens.append(best)
    return tokens


def before_stop(answer, text, least):
    """The text before the first ``text`` that ends behind ``least`` tokens, one a character."""
    whole = bytes(answer).decode("latin-1")
    found = whole.find(text, max(0, least + 1 - len(text)))
    return whole if found < 0 else whole[:found]


def asked(prompt, **sampling):
    fields = {"temperature": 0.0, "max_tokens": NEW_TOKENS, "ignore_eos": True}
    return {"prompt": prompt, "sampling": {**fields, **sampling}}


def requests_of(prompt, answer, place):
    """For each sort: requests, and their right tokens, or the text that these begin with."""
    stop = answer[place]
    moved = [([*prompt, *answer[:on]], answer[on:]) for on in range(PLACES)]
    grammatical = with_grammar(prompt, answer, place)
    text = bytes(answer[place - 1 : place + 1]).decode("latin-1")
    return {
        "grammars": [
            (
                asked(
                    start,
                    structured_outputs={"regex": EXPRESSION},
                    ignore_eos=False,
                    max_tokens=len(grammatical) + 4,
                ),
                grammatical[on:],
            )
            for on, (start, _) in enumerate(moved)
        ],
        "longest answers": [
            (asked(prompt, max_tokens=most), answer[:most]) for most in range(1, PLACES + 1)
        ],
        "stop tokens": [
            (asked(start, stop_token_ids=[stop]), rest[: rest.index(stop) + 1])
            for start, rest in moved
        ],
        "stop strings": [
            (asked(start, stop=[text]), before_stop(rest[:NEW_TOKENS], text, 0))
            for start, rest in moved
        ],
        "stop strings behind shortest answers": [
            (
                asked(prompt, stop=[text], min_tokens=least),
                before_stop(answer[:NEW_TOKENS], text, least),
            )
            for least in range(place - 1, place + K + 2)
        ],
        "shortest answers": [
            (
                asked(prompt, stop_token_ids=[stop], min_tokens=least),
                delayed(prompt, answer, stop, least),
            )
            for least in range(place - 1, place + K + 2)
        ],
    }


@pytest.mark.host("0.23", cases=["v1", "v1-*"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_change_at_each_place_of_a_step(setting, begun):
    variables, asynchronous = setting
    prompt, answer, place = begun
    sorts = requests_of(prompt, answer, place)
    case = scenario(
        TARGET,
        TARGET,
        num_speculative_tokens=K,
        engine={
            "skip_tokenizer_init": False,
            "max_num_seqs": 6,
            "async_scheduling": asynchronous,
            "structured_outputs_config": {
                "backend": "xgrammar",
                "reasoning_parser": ends_reasoning.NAME,
                "reasoning_parser_plugin": ends_reasoning.__file__,
            },
        },
    )
    requests = [request for sort in sorts.values() for request, _ in sort]
    found = programs.answer_of(
        probes.parameters,
        {"engine": case.engine_arguments(), "requests": requests},
        {**variables, ends_reasoning.END: str(answer[place])},
    )
    answers = iter(found["answers"])
    for sort, pairs in sorts.items():
        for at, (_, expected) in enumerate(pairs):
            given = next(answers)
            [tokens], [said] = given["tokens"], given["texts"]
            right = said if isinstance(expected, str) else tokens
            assert right == expected, (sort, at, bytes(token % 256 for token in tokens))
    # A model takes its own drafts, but where a grammar or a shortest answer wants others.
    assert found["accepted"][-1] > 0.3 * found["accepted"][0] > 30
