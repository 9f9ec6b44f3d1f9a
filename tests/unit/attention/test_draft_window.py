# SPDX-License-Identifier: Apache-2.0
"""What ``drafting.window`` comes to for one layer."""

import pytest

from mkv_ascend.attention.options import kind_of_layer, window_of_layer
from mkv_ascend.layout.kind import Kind


@pytest.mark.parametrize(
    ("own", "asked", "longest", "window"),
    [
        (None, None, 4096, None),
        (512, None, 4096, 512),
        (None, 1024, 4096, 1024),
        # The smaller one of two windows.
        (512, 1024, 4096, 512),
        (2048, 1024, 4096, 1024),
        # A window that holds every request changes nothing.
        (None, 4095, 4096, 4095),
        (None, 4096, 4096, None),
        (512, 4096, 4096, 512),
        # The longest request is not known.
        (None, 4096, None, 4096),
    ],
)
def test_the_smallest_window_that_is_shorter_than_requests(
    own: int | None, asked: int | None, longest: int | None, window: int | None
) -> None:
    assert window_of_layer(own, asked, longest) == window


def test_only_layers_that_attend_to_all_tokens_become_windows() -> None:
    assert kind_of_layer(Kind.FULL_ATTENTION, 1024, 4096) is Kind.SLIDING_WINDOW
    assert kind_of_layer(Kind.FULL_ATTENTION, 4096, 4096) is Kind.FULL_ATTENTION
    assert kind_of_layer(Kind.FULL_ATTENTION, None, 4096) is Kind.FULL_ATTENTION
    for kind in set(Kind) - {Kind.FULL_ATTENTION}:
        assert kind_of_layer(kind, 1024, 4096) is kind
