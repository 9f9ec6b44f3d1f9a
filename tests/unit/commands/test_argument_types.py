# SPDX-License-Identifier: Apache-2.0
"""Sizes of memory as a user writes them."""

from __future__ import annotations

import argparse

import pytest

from mkv_ascend.commands.command_words import memory_size


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("4GiB", 4 * 1024**3), ("512 mib", 512 * 1024**2), ("2GB", 2 * 10**9)],
)
def test_bytes_with_units(text: str, value: int) -> None:
    assert memory_size(text) == value


@pytest.mark.parametrize("text", ["", "0", "1.5GiB", "-1", "4 gibi", "GiB"])
def test_bytes_refuse_what_is_not_exact(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="bytes"):
        memory_size(text)
