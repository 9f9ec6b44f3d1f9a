# SPDX-License-Identifier: Apache-2.0
"""Answers to questions that a command asks of a process with vLLM in it.

``mkv_ascend.commands.host_process`` starts the process and asks.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from typing import Any

from mkv_ascend.plain_text import shortened_values

MARK = "mkv-ascend explain: "
"""Begins the line of output with the answer; vLLM may print lines of its own."""


def answer(respond: Callable[[Any], Any]) -> None:
    """Read the question from standard input as JSON, print what ``respond`` makes of it.

    A host's words may hold all of a file that it could not read: they are ``shortened``.
    """
    # The process lives for one answer. Collecting among all that vLLM imports is a fifth of it.
    gc.disable()
    result = respond(json.loads(sys.stdin.read()))
    sys.stdout.write(f"\n{MARK}{json.dumps(shortened_values(result))}\n")
    sys.stdout.flush()
