# SPDX-License-Identifier: Apache-2.0
"""An assertion without words is told by its statement and the options that it reads."""

from __future__ import annotations

from typing import Any

import pytest

from mkv_ascend.adapters.common.judge.front_check import assertion_of, of_error, words_of
from tests.support.silent_refusals import (
    Checked,
    refuse_all,
    refuse_fp8,
    refuse_with_words,
    with_cache,
)


def raised(function: Any, *given: Any) -> BaseException:
    with pytest.raises(Exception) as found:
        function(*given)
    return found.value


@pytest.mark.parametrize("error", [raised(refuse_fp8, with_cache("fp8")), raised(Checked)])
def test_the_statement_and_the_option_are_told(error: BaseException) -> None:
    refusal = of_error(error)
    assert "asserts not config, where config.cache_config.cache_dtype == 'fp8'" in refusal.asked
    assert "--kv-cache-dtype: without words" in refusal.asked
    assert "silent_refusals.py:" in refusal.asked
    assert "pydantic" not in refusal.asked
    assert refusal.possible == "values of --kv-cache-dtype that make it hold"
    assert refusal.change == "change --kv-cache-dtype, or leave it out"


def test_where_no_option_is_read_none_is_named() -> None:
    refusal = of_error(raised(refuse_all, with_cache("fp8")))
    assert "configuration: without words it asserts not config (" in refusal.asked
    assert refusal.change == "change the option that it reads"


def test_words_are_told_as_they_are() -> None:
    for error in (raised(refuse_with_words), ValueError("the words of a host")):
        assert assertion_of(error) is None
        assert of_error(error).asked.endswith("configuration: the words of a host")


def test_what_is_raised_without_a_statement_is_told_by_its_kind() -> None:
    error = raised(refuse_fp8, with_cache("auto"))
    assert assertion_of(error) is None
    assert words_of(error) == "AssertionError"
