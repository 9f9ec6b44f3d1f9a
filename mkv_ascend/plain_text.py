# SPDX-License-Identifier: Apache-2.0
"""Text for a terminal: what files say is shown, not obeyed, and not at any length."""

from __future__ import annotations

import json
import re
from typing import Any, TextIO

__all__ = ["PlainStream", "plain", "plain_json", "shortened", "shortened_values"]

MOST_CHARACTERS = 3000
"""Of a line: the longest of ours lists the known model types."""
_OBEYED = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff]"
)
"""Control characters other than tabs and line feeds, what turns the direction of text or has no
width, and halves of characters, which no terminal can be sent."""


def plain(text: str) -> str:
    """The text with what a terminal would obey written out, such as ``\\x1b``."""
    return _OBEYED.sub(lambda found: ascii(found.group())[1:-1], text)


def shortened(text: str) -> str:
    """As ``plain``, with the middle of long lines left out: what to change stands at their end."""
    return "\n".join(map(_shortened_line, plain(text).split("\n")))


def _shortened_line(line: str) -> str:
    left_out = len(line) - MOST_CHARACTERS
    if left_out <= 0:
        return line
    kept = MOST_CHARACTERS // 2
    return f"{line[:kept]} ... ({left_out} characters are left out) ... {line[-kept:]}"


def plain_json(value: Any) -> str:
    """An answer as JSON, its texts ``shortened``; JSON itself writes control characters out."""
    return json.dumps(shortened_values(value), indent=2)


def shortened_values(value: Any) -> Any:
    """Plain values of JSON, their texts ``shortened``."""
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, dict):
        return {name: shortened_values(item) for name, item in value.items()}
    return [shortened_values(item) for item in value] if isinstance(value, list | tuple) else value


class PlainStream:
    """A stream that is written ``plain`` text, or ``shortened`` where it is for people alone."""

    def __init__(self, stream: TextIO, *, is_for_people: bool) -> None:
        self._stream = stream
        self._made = shortened if is_for_people else plain

    def write(self, text: str) -> int:
        """Write it; the number of characters that were given."""
        self._stream.write(self._made(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
