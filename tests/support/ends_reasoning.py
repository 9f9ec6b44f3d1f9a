# SPDX-License-Identifier: Apache-2.0
"""A reasoning parser for vLLM (``reasoning_parser_plugin``) whose reasoning ends with one token.

Text that was read has no reasoning. Which token it is, the environment says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from vllm.reasoning import ReasoningParser, ReasoningParserManager

END = "TESTED_END_OF_REASONING"
"""Environment variable: the token's id."""
NAME = "ends_reasoning"


class EndsReasoning(ReasoningParser):
    """Tells the engine core where reasoning ends; answers are not parsed."""

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Not in a prompt."""
        return False

    def is_reasoning_end_streaming(
        self, input_ids: Sequence[int], delta_ids: Iterable[int]
    ) -> bool:
        """Whether the newest tokens have the end."""
        return int(os.environ[END]) in delta_ids


ReasoningParserManager.register_module(NAME, module=EndsReasoning)
