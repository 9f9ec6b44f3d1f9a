# SPDX-License-Identifier: Apache-2.0
"""Grammars whose beginning, trigger or end falls on any token of a verify step.

vLLM's manager of grammars and its scheduler take steps with drafts here, beside xgrammar. The judge
is a plain loop over the grammar's rule, one token after the other.
"""

import copy
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

from tests.support import hosts
from tests.support.tiny_models.tokenizer import EOS_TOKEN_ID, VOCABULARY_SIZE, build_tokenizer

ON_0_23 = hosts.NAME == "vllm_ascend_0_23"
LETTERS, DIGITS = 7, 3
EXPRESSION = f"[a-z]{{{LETTERS}}}[0-9]{{{DIGITS}}}"
TRIGGER, TAG, TAG_END = b"<t=", b"<t=f>", b"</t>"
END, TWO_ENDS = b"|", b"|/"
Tokens = Sequence[int]


class Reasoner:
    """A reasoning parser: reasoning ends with ``END``, wherever it was in the delta."""

    end = END

    def __init__(self, tokenizer: Any) -> None:
        pass

    def is_reasoning_end(self, tokens: Tokens) -> bool:
        return self.end in bytes(token for token in tokens if token < 256)

    def is_reasoning_end_streaming(self, tokens: Tokens, delta: Any) -> bool:
        return self.end[0] in list(delta)


class OfTwoTokens(Reasoner):
    """The end is two tokens."""

    end = TWO_ENDS

    def is_reasoning_end_streaming(self, tokens: Tokens, delta: Any) -> bool:
        return self.is_reasoning_end(tokens)


class OneTokenLater(Reasoner):
    """As Step3p5's: reasoning ends one token later, which the parser keeps in mind."""

    def __init__(self, tokenizer: Any) -> None:
        self.waits = False

    def is_reasoning_end_streaming(self, tokens: Tokens, delta: Any) -> bool:
        ended, self.waits = self.waits, self.end[0] in list(delta)
        return ended


def manager_of(reasoner: type[Reasoner] | None, drafts: int) -> StructuredOutputManager:
    config: Any = SimpleNamespace(
        # Otherwise grammars are made in threads.
        parallel_config=SimpleNamespace(distributed_executor_backend="external_launcher"),
        scheduler_config=SimpleNamespace(max_num_seqs=2),
        model_config=SimpleNamespace(
            skip_tokenizer_init=True, is_diffusion=False, get_vocab_size=lambda: VOCABULARY_SIZE
        ),
        structured_outputs_config=SimpleNamespace(
            enable_in_reasoning=False, disable_any_whitespace=False
        ),
        speculative_config=SimpleNamespace(num_speculative_tokens=drafts),
        num_speculative_tokens=drafts,
    )
    manager = StructuredOutputManager(config)
    manager.tokenizer = build_tokenizer(1000)
    manager.reasoner_cls = reasoner
    manager.backend = XgrammarBackend(config, manager.tokenizer, VOCABULARY_SIZE)
    return manager


def allowed_by_expression(text: bytes) -> set[int]:
    if len(text) < LETTERS:
        return set(b"abcdefghijklmnopqrstuvwxyz")
    return set(b"0123456789") if len(text) < LETTERS + DIGITS else {EOS_TOKEN_ID}


def allowed_by_tag(text: bytes) -> set[int]:
    """Anything up to the trigger, then the rest of the tag; digits and the end inside."""
    tag = text.rfind(TRIGGER)
    if tag < 0 or TAG_END in text[tag:]:
        return set(range(VOCABULARY_SIZE))
    inside = text[tag:]
    whole = TAG + b"".join(b"*" for _ in range(DIGITS)) + TAG_END
    following = whole[len(inside)]
    return set(b"0123456789") if following == ord("*") else {following}


GRAMMARS: dict[str, tuple[dict[str, str], Callable[[bytes], set[int]]]] = {
    "regex": ({"regex": EXPRESSION}, allowed_by_expression),
    "structural_tag": (
        {
            "structural_tag": json.dumps(
                {
                    "type": "structural_tag",
                    "format": {
                        "type": "triggered_tags",
                        "triggers": [TRIGGER.decode()],
                        "tags": [
                            {
                                "begin": TAG.decode(),
                                "content": {"type": "regex", "pattern": f"[0-9]{{{DIGITS}}}"},
                                "end": TAG_END.decode(),
                            }
                        ],
                    },
                }
            )
        },
        allowed_by_tag,
    ),
}
PROMPT = list(b"say: ")
MOST_TOKENS = 40


def wanted(script: bytes, done: Tokens) -> int:
    """What the target likes best behind ``done``: the script, then letters, which digits are not"""
    return script[len(done)] if len(done) < len(script) else ord("a") + len(done) * 7 % 26


def chosen(script: bytes, done: Tokens, allowed: set[int]) -> int:
    best = wanted(script, done)
    return best if best in allowed else min(allowed)


def by_plain_loop(
    script: bytes, allowed: Callable[[bytes], set[int]], reasoner: type[Reasoner] | None
) -> list[int]:
    """The answer, token after token; what the grammar sees begins behind the reasoning."""
    asked = None if reasoner is None else reasoner(None)
    done: list[int] = []
    begin = 0 if asked is None else None
    while len(done) < MOST_TOKENS and EOS_TOKEN_ID not in done:
        everything = set(range(VOCABULARY_SIZE))
        token = chosen(script, done, everything if begin is None else allowed(bytes(done[begin:])))
        done.append(token)
        if (
            begin is None
            and asked is not None
            and asked.is_reasoning_end_streaming([*PROMPT, *done], [token])
        ):
            begin = len(done)
    return done


class Steps:
    """One request that takes verify steps with vLLM's own manager and scheduler."""

    def __init__(
        self, grammar: dict[str, str], script: bytes, reasoner: type[Reasoner] | None, drafts: int
    ) -> None:
        self.manager, self.drafts, self.script = manager_of(reasoner, drafts), drafts, script
        params = SamplingParams(
            max_tokens=MOST_TOKENS, structured_outputs=StructuredOutputsParams(**grammar)
        )
        params.structured_outputs._backend = "xgrammar"
        params.update_from_generation_config({}, EOS_TOKEN_ID)
        self.request = Request("one", list(PROMPT), params, None)
        self.scheduler: Any = SimpleNamespace(
            requests={"one": self.request},
            structured_output_manager=self.manager,
            max_model_len=1000,
        )
        if ON_0_23:
            patches = hosts.module("patches.reasoning_grammars")
            original = self.manager._create_grammar
            self.manager._create_grammar = lambda request: patches.begin_behind_reasoning.functions[
                "vllm.v1.structured_output:StructuredOutputManager._create_grammar"
            ](lambda _, asked: original(asked), self.manager, request)
        self.manager.grammar_init(self.request)
        self.accepted = 0

    @property
    def done(self) -> list[int]:
        return list(self.request.output_token_ids)

    def proposed(self, ahead: bool) -> list[int]:
        """What the target would like best, as far as the grammar takes it.

        ``ahead``: as with asynchronous scheduling, where the place of each draft is taken before.
        """
        drafts: list[int] = []
        for _ in range(self.drafts):
            drafts.append(wanted(self.script, [*self.done, *drafts]))
        told = DraftTokenIds(["one"], [drafts])
        if not ahead:
            Scheduler.update_draft_token_ids(self.scheduler, told)
            return list(self.request.spec_token_ids)
        scheduled = SimpleNamespace(scheduled_spec_decode_tokens={"one": [-1] * self.drafts})
        Scheduler.update_draft_token_ids_in_output(self.scheduler, told, scheduled)
        return list(scheduled.scheduled_spec_decode_tokens["one"])

    def verified(self, drafts: list[int]) -> list[int]:
        """Tokens that the target takes with the masks of each row."""
        mask = self.manager.grammar_bitmask({"one": self.request}, ["one"], {"one": drafts})
        assert mask is not None
        assert len(mask) == len(drafts) + 1
        tokens: list[int] = []
        for row in mask:
            bits = numpy.unpackbits(row.view(numpy.uint8), bitorder="little")
            allowed = set(numpy.flatnonzero(bits[:VOCABULARY_SIZE]).tolist())
            tokens.append(chosen(self.script, [*self.done, *tokens], allowed))
            if len(tokens) > len(drafts) or tokens[-1] != drafts[len(tokens) - 1]:
                break
        return tokens

    def take(self, tokens: list[int]) -> bool:
        """Give the request what a step gave, as ``update_from_output`` does; whether it stops."""
        request = self.request
        request.num_computed_tokens = request.num_tokens + len(tokens) - 1
        self.accepted += len(tokens) - 1
        tokens, stopped = Scheduler._update_request_with_output(self.scheduler, request, tokens)
        if not ON_0_23:
            assert self.manager.accept_tokens(request, tokens)
        elif self.manager.should_advance(request):
            assert request.structured_output_request.grammar.accept_tokens("one", tokens)
        return bool(stopped)

    def run(self, *, ahead: bool) -> list[int]:
        drafts: list[int] = []
        while not self.take(self.verified(drafts)):
            drafts = self.proposed(ahead)
        return self.done


WORDS = b"so it is, or so they say, as far as we can see"


@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("drafts", [1, 3, 5])
@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize(
    "reasoner",
    [
        Reasoner,
        OfTwoTokens,
        pytest.param(
            OneTokenLater,
            marks=hosts.only_on(
                "vllm_ascend_0_23", "no reasoning parser of vLLM 0.30.0 has a state"
            ),
        ),
    ],
)
def test_reasoning_ends_at_each_place_of_a_step(
    reasoner: type[Reasoner], grammar: str, drafts: int, ahead: bool
) -> None:
    fields, allowed = GRAMMARS[grammar]
    for length in range(2 * drafts + 2):
        behind = TRIGGER if grammar == "structural_tag" else b""
        script = WORDS[:length] + TWO_ENDS[: len(reasoner.end)] + behind
        steps = Steps(fields, script, reasoner, drafts)
        expected = by_plain_loop(script, allowed, reasoner)
        assert steps.run(ahead=ahead) == expected, (length, bytes(expected[:-1]))
        assert steps.accepted > 0


@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("drafts", [1, 3, 5])
def test_a_trigger_stands_at_each_place_of_a_step(drafts: int, ahead: bool) -> None:
    fields, allowed = GRAMMARS["structural_tag"]
    for length in range(2 * drafts + 2):
        script = WORDS[:length] + TRIGGER
        steps = Steps(fields, script, None, drafts)
        assert steps.run(ahead=ahead) == by_plain_loop(script, allowed, None), length
        assert steps.accepted > length // 2


@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("drafts", [1, 3, 5])
def test_a_grammar_ends_at_each_place_of_a_step(drafts: int, ahead: bool) -> None:
    """Steps begin at other tokens of the answer by as many words as stand before it."""
    fields, allowed = GRAMMARS["regex"]
    whole = b"abcdefg123"
    for length in range(2 * drafts + 2):
        script = WORDS[:length] + END + whole + bytes([ord("x")] * 8)
        steps = Steps(fields, script, Reasoner, drafts)
        answer = steps.run(ahead=ahead)
        assert answer == by_plain_loop(script, allowed, Reasoner), length
        assert bytes(answer[length + 1 : -1]) == whole
        assert answer[-1] == EOS_TOKEN_ID


@hosts.only_on("vllm_ascend_0_23", "0.30.0 needs no grammar of ours")
def test_tokens_are_taken_back_over_the_end_of_reasoning() -> None:
    grammars = hosts.module("patches.reasoning_grammars")
    manager = manager_of(None, 4)
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    inner = manager.backend.compile_grammar(StructuredOutputOptions.REGEX, EXPRESSION)
    grammar = grammars.GrammarBehindReasoning(inner, OneTokenLater(None), PROMPT, 4)
    before = copy.copy(grammar.__dict__)
    for _ in range(2):
        for tokens in (b"so|x", b"|xab", b"abcd", b"|"):
            assert grammar.accept_tokens("one", list(tokens))
            grammar.rollback(len(tokens))
        assert grammar._ended is before["_ended"]
        assert grammar._tokens == PROMPT
    # The parser waited for a token that was taken back.
    assert grammar.accept_tokens("one", list(b"x9"))
    assert grammar.validate_tokens(list(b"|.a9")) == list(b"|.a")
    assert grammar.accept_tokens("one", list(b"|.ab"))
    assert grammar.validate_tokens(list(b"c9")) == list(b"c")
    assert not grammar.accept_tokens("one", list(b"9"))
