# SPDX-License-Identifier: Apache-2.0
"""Mistakes with ``drafting.window``; see ``mistakes``."""

from __future__ import annotations

from tests.support.mistake import DRAFT, LLAMA, mkv, one, spec

WINDOW = mkv(drafting={"window": 1024})

WINDOWS = (
    one("window of no draft", "draft-window", LLAMA, *WINDOW, says="no draft with a KV cache"),
    one(
        "window of ngram",
        "draft-window",
        LLAMA,
        *spec(None, method="ngram"),
        *WINDOW,
        says="no draft with a KV cache",
    ),
    one(
        "window of MLA",
        "draft-window",
        "{DeepSeek-V3}",
        *spec("{DeepSeek-V3}"),
        *WINDOW,
        says="are of MLA",
    ),
    one(
        "window of masks",
        "draft-window",
        LLAMA,
        *spec("{llama-draft}", method="dflash"),
        *WINDOW,
        says="without a causal mask",
    ),
    one(
        "window of a recurrent draft",
        "draft-window",
        LLAMA,
        *spec("{lfm2-draft}"),
        *WINDOW,
        says="has recurrent layers",
    ),
    one(
        "window in contexts",
        "draft-window",
        LLAMA,
        *spec(DRAFT),
        *("-tp", "2", "-dcp", "2"),
        *WINDOW,
        says="context parallelism",
    ),
    one(
        "windows in contexts",
        "draft-shares",
        LLAMA,
        *spec("{window-head}"),
        *("-tp", "2", "-dcp", "2"),
        says="attends to all keys that it has",
    ),
    one(
        "window whose blocks are kept",
        "draft-window",
        LLAMA,
        *spec(DRAFT),
        "--disable-hybrid-kv-cache-manager",
        *WINDOW,
        says="leave --disable-hybrid-kv-cache-manager out",
    ),
    one(
        "window on a backend without",
        "backend",
        LLAMA,
        "--enforce-eager",
        *spec(DRAFT),
        *mkv(drafting={"window": 1024}, attention={"draft": "flash_attention_3"}),
        says="sliding_window",
    ),
)
