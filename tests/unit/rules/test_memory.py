# SPDX-License-Identifier: Apache-2.0
"""What weights leave of a device, and what is refused for it."""

from __future__ import annotations

from mkv_ascend.rules.kv_cache import Memory, weights_over_device

GIB = 1 << 30


def memory(target: int, draft: int = 0, given: int = 0, ranks: int = 1) -> Memory:
    return Memory(64 * GIB, 0.9, given, 0, target * GIB, draft * GIB, GIB, ranks)


def test_caches_have_what_weights_leave_and_are_told_after_activations() -> None:
    found = memory(20, 4)
    assert found.most == int(64 * GIB * 0.9) - 24 * GIB
    assert found.expected == found.most - GIB
    assert (
        found.basis == "57.6 GiB of a device less 24.0 GiB of weights and about 1.0 GiB of "
        "activations"
    )
    assert memory(20, given=8 * GIB).expected == 8 * GIB


def test_weights_over_a_device_are_refused_with_the_ranks_that_hold_them() -> None:
    assert not list(weights_over_device(memory(57)))
    (found,) = weights_over_device(memory(1250))
    assert found.code == "memory"
    assert "take 1250.0 GiB on each of 1 ranks" in found.asked
    assert "about 32 ranks" in found.possible
    (found,) = weights_over_device(memory(50, 10, ranks=2))
    assert "(target 50.0 GiB, draft 10.0 GiB)" in found.asked
    # With memory for caches given, weights may take all that is left.
    assert not list(weights_over_device(memory(60, given=GIB)))
