# SPDX-License-Identifier: Apache-2.0
"""What fails while models are built without memory: what an engine refuses, too, and what not."""

from __future__ import annotations

import linecache
import os
import traceback

from mkv_ascend.adapters.common.judge.front_check import of_host, words_of
from mkv_ascend.attention.selection import SelectionError
from mkv_ascend.layout.component import LayoutError
from mkv_ascend.layout.grouping import GroupingError
from mkv_ascend.rules.backends import of_selection
from mkv_ascend.rules.kv_cache import ConnectorError
from mkv_ascend.rules.refusal import Refusal, RefusedError

NO_SHAPE = "negative dimension"
"""What torch says of a tensor that has a dimension below 0."""


class BuildError(RuntimeError):
    """Why the models cannot be built; ``refusals``: none where only memory is lacking here."""

    def __init__(self, words: str, refusals: tuple[Refusal, ...] = ()) -> None:
        super().__init__(words)
        self.refusals = refusals


def failed(error: BaseException) -> BuildError:
    """The words of an error, and as which refusals it is told."""
    traceback.print_exception(error)  # For a developer: commands show the answer alone.
    frames = traceback.extract_tb(error.__traceback__)
    # The statement of the model, not one of torch that makes any tensor.
    named = next((one for one in reversed(frames) if _is_host(one) or _is_ours(one)), frames[-1])
    words = f"{words_of(error)} ({os.path.basename(named.filename)}:{named.lineno})"
    return BuildError(words, _refusals(error, frames[-1], words))


def _is_host(frame: traceback.FrameSummary) -> bool:
    return any(f"/{package}/" in frame.filename for package in ("vllm", "vllm_ascend"))


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return "/mkv_ascend/" in frame.filename


def _is_of_sizes(error: BaseException) -> bool:
    """Whether sizes alone can be why: shapes are what they would be with memory."""
    no_shape = isinstance(error, RuntimeError) and NO_SHAPE in str(error)
    return no_shape or isinstance(error, ZeroDivisionError)


def _refusals(
    error: BaseException, place: traceback.FrameSummary, words: str
) -> tuple[Refusal, ...]:
    """What an engine would refuse, too; none for what fails because nothing has memory here."""
    if isinstance(error, RefusedError):
        return error.refusals
    if isinstance(error, SelectionError):
        return (of_selection(error),)
    if isinstance(error, LayoutError | GroupingError):
        possible, change = "docs/configuration.md, layout", "change the options of layout"
        return (Refusal("layout", str(error), possible, change),)
    # What layers of ours refuse, in one sentence each.
    is_ours = _is_ours(place) and isinstance(error, NotImplementedError)
    if is_ours or isinstance(error, ConnectorError):
        code = "kv-connector" if isinstance(error, ConnectorError) else "backend"
        asked, _, possible = str(error).partition(". Possible: ")
        possible = possible or "what docs/compatibility.md lists"
        return (Refusal(code, asked, possible, "choose one of these"),)
    statement = linecache.getline(place.filename, place.lineno or 0).strip()
    if _is_host(place) and isinstance(error, ValueError) and statement.startswith("raise"):
        return (of_host(words_of(error)),)
    if _is_of_sizes(error) and not _is_ours(place):
        possible, change = "sizes of which models can be built", "correct those in config.json"
        return (of_host(words, possible, f"{change}, or what --hf-overrides says"),)
    return ()
