# SPDX-License-Identifier: Apache-2.0
"""What an engine did, judged by Hugging Face and plain loops where the lead of a logit decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import reference
from tests.support.engine import Result, Scenario

if TYPE_CHECKING:
    import torch

TARGET, DRAFT, ACCEPTANCE, LOGPROBS, LENGTHS = (
    "target",
    "draft",
    "acceptance",
    "logprobs",
    "lengths",
)
SHORTEST, LONGEST = 1, 3
"""Of a suffix that drafts are looked up by, in tokens."""
TOLD = 3
"""Problems of a kind that are told in words."""

COARSE = ("XIELUActivation",)
"""Modules whose own numbers, two of a layer, vLLM has in bfloat16 in float32 engines, too."""

Answers = list[tuple[int, ...]]


@dataclass
class Judgement:
    """Counts of a run by what was judged: ``target``, ``draft``, ``acceptance``, ``logprobs``.

    Attributes:
        judged: decided by the reference.
        ties: not judged, because the two largest logits are too near each other.
        wrong: other than the reference.
        problems: words for the first of them.
        accepted: draft tokens that the engine's own counts say were accepted.
        verified: draft tokens that steps verified.
    """

    judged: dict[str, int] = field(default_factory=dict)
    ties: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    accepted: int = 0
    verified: int = 0

    def token(self, what: str, row: torch.Tensor, token: int, gap: float, where: str) -> bool:
        """Judge one token; whether it is the reference's, or nothing is decided."""
        expected, lead = reference.choice(row)
        if lead <= gap:
            self.ties[what] = self.ties.get(what, 0) + 1
            return True
        self.judged[what] = self.judged.get(what, 0) + 1
        if token == expected:
            return True
        self.fault(what, f"{where} is {token}, Hugging Face says {expected} (lead {lead:.2g})")
        return False

    def fault(self, what: str, words: str) -> None:
        """Note something wrong."""
        self.wrong[what] = self.wrong.get(what, 0) + 1
        if self.wrong[what] <= TOLD:
            self.problems.append(f"{what}: {words}")


@dataclass(frozen=True)
class Judge:
    """Judges engines of one pair.

    Attributes:
        target, draft: folders of checkpoints; no draft: tokens of a draft are not judged.
        target_gap, draft_gap: leads of a logit that decide nothing.
    """

    target: Path
    target_gap: float
    draft: Path | None = None
    draft_gap: float = 0.0

    def judge(self, scenario: Scenario, result: Result) -> Judgement:
        """All that a run tells."""
        found = Judgement()
        answers = whole_answers(scenario, result)
        self._judge_tokens(found, scenario, result)
        self._judge_steps(found, scenario, result, answers)
        longest = int(scenario.engine["max_model_len"])
        for proposal in result.proposals:
            # Tokens past the longest context are left out: no position is left for them.
            tokens = proposal.tokens[: longest - len(proposal.context)]
            if self.draft is None:
                _judge_looked_up(found, proposal.context, tokens, scenario.num_speculative_tokens)
            elif tokens:
                self._judge_draft(found, proposal.context, tokens, answers)
        return found

    def _judge_tokens(self, found: Judgement, scenario: Scenario, result: Result) -> None:
        prompts = prompts_of(scenario)
        if len(result.tokens) != len(prompts):
            found.fault(LENGTHS, f"{len(result.tokens)} answers to {len(prompts)} questions")
            return
        for index, (prompt, tokens) in enumerate(zip(prompts, result.tokens, strict=True)):
            where = f"answer {index}, prompt of {len(prompt)}"
            for problem in wrong_length(scenario, prompt, tokens):
                found.fault(LENGTHS, f"{where}: {problem}")
            if not tokens:
                continue
            rows = rows_of(self.target, (*prompt, *tokens[:-1]))[len(prompt) - 1 :]
            for position, token in enumerate(tokens):
                said = f"{where}: token {position}"
                if not found.token(TARGET, rows[position], token, self.target_gap, said):
                    break
            if result.logprobs and result.logprobs[index]:
                self._judge_logprobs(found, rows, tokens, result.logprobs[index], where)

    def _judge_logprobs(
        self,
        found: Judgement,
        rows: torch.Tensor,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        where: str,
    ) -> None:
        if len(logprobs) != len(tokens):
            found.fault(LOGPROBS, f"{where}: {len(logprobs)} of {len(tokens)} tokens")
            return
        expected = rows.log_softmax(-1)
        for position, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            found.judged[LOGPROBS] = found.judged.get(LOGPROBS, 0) + 1
            right = float(expected[position][token])
            if not abs(right - logprob) <= self.target_gap:
                found.fault(LOGPROBS, f"{where}: number {position} is {logprob}, not {right}")
                return

    def _judge_steps(
        self, found: Judgement, scenario: Scenario, result: Result, answers: Answers
    ) -> None:
        """A step gives the draft tokens that the target would have chosen, and one of its own."""
        accepted = [0] * scenario.num_speculative_tokens
        for number, step in enumerate(result.steps):
            found.verified += len(step.drafted)
            for position in range(len(step.sampled) - 1):
                accepted[position] += 1
            where = f"step {number} behind {len(step.context)} tokens, {step.drafted} drafted"
            tokens = (*step.context, *step.drafted[: len(step.sampled) - 1])
            rows = rows_behind(self.target, tokens, answers)[len(step.context) - 1 :]
            for position, token in enumerate(step.sampled):
                said = f"{where}: number {position}"
                if not found.token(ACCEPTANCE, rows[position], token, self.target_gap, said):
                    break
            if (right := accepted_of(step.drafted, step.sampled)) != len(step.sampled) - 1:
                found.fault(ACCEPTANCE, f"{where}: gave {step.sampled}, {right} were right")
        found.accepted = result.num_accepted
        counts = result.accepted_per_position or [0] * len(accepted)
        if scenario.record_steps and accepted != counts:
            found.fault(ACCEPTANCE, f"counted {counts}, by loops {accepted}")

    def _judge_draft(
        self, found: Judgement, context: list[int], tokens: list[int], answers: Answers
    ) -> None:
        assert self.draft is not None
        rows = rows_behind(self.draft, (*context, *tokens[:-1]), answers)[len(context) - 1 :]
        for position, token in enumerate(tokens):
            where = f"behind {len(context)} tokens, pass {position}"
            if not found.token(DRAFT, rows[position], token, self.draft_gap, where):
                break


def accepted_of(drafted: Sequence[int], sampled: Sequence[int]) -> int:
    """How many draft tokens the target chose, too, before the first that it did not."""
    for position, token in enumerate(drafted):
        if position >= len(sampled) or token != sampled[position]:
            return position
    return len(drafted)


def _judge_looked_up(found: Judgement, context: list[int], tokens: list[int], k: int) -> None:
    found.judged[DRAFT] = found.judged.get(DRAFT, 0) + len(tokens)
    right = looked_up(context)[: min(k, len(tokens)) or k]
    if tokens != right:
        found.fault(DRAFT, f"behind {len(context)} tokens {tokens}, looked up {right}")


def looked_up(context: list[int]) -> list[int]:
    """What follows the earliest occurrence of the longest suffix that occurred before."""
    for length in range(LONGEST, SHORTEST - 1, -1):
        suffix = context[-length:]
        for start in range(len(context) - length):
            if context[start : start + length] == suffix:
                return context[start + length :]
    return []


def wrong_length(scenario: Scenario, prompt: Sequence[int], tokens: Sequence[int]) -> Iterator[str]:
    """Whether an answer is shorter or longer than its limits say."""
    longest = int(scenario.engine["max_model_len"])
    wanted = min(scenario.max_tokens, longest - len(prompt))
    stops = {*scenario.sampling.get("stop_token_ids", ())}
    stops |= {ord(word) for word in scenario.sampling.get("stop", ())}
    ended = next((index + 1 for index, token in enumerate(tokens) if token in stops), wanted)
    # Of a stop string the tokens of its step are kept; of a token nothing behind it.
    most = wanted if scenario.sampling.get("stop") else ended
    if not min(ended, wanted) <= len(tokens) <= most:
        yield f"{len(tokens)} tokens, not {ended}"


def prompts_of(scenario: Scenario) -> list[list[int]]:
    """The prompt of each answer."""
    choices = scenario.sampling.get("n", 1)
    return [one for one in scenario.prompts * scenario.repeats for _ in range(choices)]


def whole_answers(scenario: Scenario, result: Result) -> Answers:
    """Prompts with the tokens behind them that were read."""
    pairs = zip(prompts_of(scenario), result.tokens, strict=False)
    return [(*prompt, *tokens[:-1]) for prompt, tokens in pairs]


def rows_behind(folder: Path, tokens: tuple[int, ...], answers: Answers) -> torch.Tensor:
    """As ``rows_of``, and more rows if an answer begins so: one run is enough for all of it."""
    whole = next((one for one in answers if one[: len(tokens)] == tokens), tokens)
    return rows_of(folder, whole)


@lru_cache(maxsize=4096)
def rows_of(folder: Path, tokens: tuple[int, ...]) -> torch.Tensor:
    """Logits of Hugging Face after each of the tokens, in float32 but for ``COARSE``."""
    import torch

    for module in reference.load_model(folder).modules():
        if type(module).__name__ in COARSE:
            module.to(torch.bfloat16)
    return reference.logits_of(folder, tokens)
