# SPDX-License-Identifier: Apache-2.0
"""Random words by the published test vectors of Philox."""

import numpy as np
import pytest

from emulated_npu.triton_interpreter.stand_ins import philox

# Counter, key, words: known answers of Random123 for philox4x32 with ten rounds.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter, key, words):
    given = [np.array([word], dtype=np.uint32) for word in (*counter, *key)]
    assert [int(word[0]) for word in philox(*given, rounds=10)] == list(words)
