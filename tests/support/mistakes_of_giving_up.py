# SPDX-License-Identifier: Apache-2.0
"""Mistakes with ``drafting.give_up_below``; see ``mistakes``."""

from __future__ import annotations

from tests.support.mistake import DRAFT, LLAMA, mkv, one, spec

GIVE_UP = mkv(drafting={"give_up_below": 0.2})

GIVING_UP = (
    one("giving up no draft", "give-up", LLAMA, *GIVE_UP, says="no draft with a KV cache"),
    one(
        "giving up what is looked up",
        "give-up",
        LLAMA,
        *spec(None, method="ngram"),
        *GIVE_UP,
        says="no draft with a KV cache",
    ),
    one(
        "giving up layers in turn",
        "give-up",
        "{step3.5}",
        *spec(None, method="mtp"),
        *GIVE_UP,
        says="vllm-ascend's own proposal",
    ),
    one(
        "giving up in contexts",
        "give-up",
        LLAMA,
        *spec(DRAFT),
        *("-pcp", "2"),
        *GIVE_UP,
        says="vllm-ascend's own proposal",
    ),
    one(
        "giving up on one of two ranks",
        "give-up",
        LLAMA,
        *spec(DRAFT),
        *("-dp", "2"),
        *GIVE_UP,
        says="ranks draft together",
    ),
    one(
        "giving up over stages",
        "give-up",
        LLAMA,
        *spec(DRAFT),
        *("-pp", "2"),
        *GIVE_UP,
        says="--pipeline-parallel-size",
    ),
)
