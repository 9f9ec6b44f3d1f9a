# SPDX-License-Identifier: Apache-2.0
"""A grammar that begins behind the end of reasoning, at any token of a verify step.

vLLM 0.23.0 asks once per step whether reasoning has ended, and then has the grammar mask all rows
of the step, or none. Here the grammar of such a request takes the tokens of the reasoning, too, and
forbids none of them; vLLM asks it for each row and hands it each token, as without reasoning.
Nothing else of the scheduler changes, so a step is judged token by token, as without drafts and as
vLLM 0.30.0 does it. Applied in the engine core of a target that has a draft.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mkv_ascend.adapters.patching import patch

if TYPE_CHECKING:
    import torch
    from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

ALL_TOKENS = -1
"""A word of a mask that allows each of its 32 tokens."""


class GrammarBehindReasoning:
    """A grammar of vLLM's that begins with the first token behind the reasoning.

    It has the methods that vLLM asks of a ``StructuredOutputGrammar``.
    """

    def __init__(
        self, grammar: StructuredOutputGrammar, reasoner: Any, prompt: Iterable[int], drafts: int
    ) -> None:
        """``reasoner``: vLLM's reasoning parser; ``drafts``: the most that a step verifies."""
        self._grammar = grammar
        self._tokens = list(prompt)
        # Some reasoning parsers change when they are asked. Before each token that may be taken
        # back there is one as it was.
        self._reasoners = deque([reasoner], maxlen=drafts + 1)
        self._ended = False
        self._behind = 0

    def _reason(self, tokens: list[int]) -> int:
        """Take tokens up to the end of reasoning; returns how many."""
        for taken, token in enumerate(tokens):
            if self._ended:
                return taken
            self._tokens.append(token)
            self._reasoners.append(copy.copy(self._reasoners[-1]))
            self._ended = self._reasoners[-1].is_reasoning_end_streaming(self._tokens, [token])
        return len(tokens)

    def _unreason(self, count: int) -> None:
        """Take back the last ``count`` tokens of the reasoning."""
        for _ in range(count):
            self._tokens.pop()
            self._reasoners.pop()
            self._ended = False

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Whether the grammar takes the tokens behind the reasoning; takes them."""
        behind = tokens[self._reason(tokens) :]
        if behind and not self._grammar.accept_tokens(request_id, behind):
            return False
        self._behind += len(behind)
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The first tokens, up to one that the grammar forbids."""
        if self._ended:
            return self._grammar.validate_tokens(tokens)
        reasoned = self._reason(tokens)
        self._unreason(reasoned)
        return tokens[:reasoned] + self._grammar.validate_tokens(tokens[reasoned:])

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` tokens."""
        behind = min(num_tokens, self._behind)
        if behind:
            self._grammar.rollback(behind)
            self._behind -= behind
        self._unreason(num_tokens - behind)

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        """Write which tokens may follow: any, as long as the reasoning goes on."""
        if self._ended:
            self._grammar.fill_bitmask(bitmask, batch_index)
        else:
            bitmask[batch_index].fill_(ALL_TOKENS)

    def is_terminated(self) -> bool:
        """Whether the grammar has come to its end."""
        return self._grammar.is_terminated()


@patch(
    name="grammars behind the end of reasoning",
    target="vllm.v1.structured_output:StructuredOutputManager._create_grammar",
    reads=(
        "vllm.v1.structured_output:StructuredOutputManager._get_reasoner",
        "vllm.v1.structured_output:StructuredOutputManager.grammar_bitmask",
        "vllm.v1.structured_output:StructuredOutputManager.should_fill_bitmask",
        "vllm.v1.structured_output:StructuredOutputManager.should_advance",
        "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
        "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids",
        "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids_in_output",
    ),
)
def begin_behind_reasoning(
    original: Any, manager: Any, request: Any
) -> StructuredOutputGrammar | GrammarBehindReasoning:
    """The grammar of a request, which sees to the reasoning before it by itself."""
    grammar: StructuredOutputGrammar = original(manager, request)
    asked, reasoner = request.structured_output_request, manager._get_reasoner(request)
    if reasoner is None or manager.enable_in_reasoning:
        return grammar
    if asked.reasoning_ended is None:
        asked.reasoning_ended = reasoner.is_reasoning_end(request.prompt_token_ids or [])
    if asked.reasoning_ended:
        return grammar
    # From now on vLLM asks the grammar for each row.
    asked.reasoning_ended = True
    drafts = manager.vllm_config.speculative_config.num_speculative_tokens
    return GrammarBehindReasoning(grammar, reasoner, request.all_token_ids, drafts)
