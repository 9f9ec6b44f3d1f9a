# SPDX-License-Identifier: Apache-2.0
"""Mistakes with ``drafting.window``, and with windows and shares; see ``mistakes``."""

from __future__ import annotations

from tests.support import hosts
from tests.support.mistake import DRAFT, LLAMA, Mistake, mkv, one, spec

WINDOW = mkv(drafting={"window": 1024})
REPLICATED = mkv(kv_cache={"replicate_draft": True})

IN_BLOCKS = (
    one(
        "dflash with windows",
        "dflash",
        LLAMA,
        *spec("{all-windows-head}", method="dflash"),
        says="have sliding windows",
    ),
)
"""Of a host whose class of such drafts leaves windows out."""

WITHOUT_A_SIZE = (
    one(
        "dflash with windows of no size",
        "dflash",
        LLAMA,
        *spec("{endless-windows-head}", method="dflash"),
        says="of a size that its config.json does not say",
    ),
)
"""Of another host."""

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
        *spec("{dflash}", method="dflash"),
        *WINDOW,
        says="of their own config.json alone",
    ),
    *(WITHOUT_A_SIZE if hosts.ADAPTER.RULES.windows_in_blocks else IN_BLOCKS),
    one(
        "dflash with windows and without",
        "dflash",
        LLAMA,
        *spec("{mixed-head}", method="dflash"),
        says="have sliding windows",
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
        *("-tp", "2", "-pcp", "2"),
        says="attends to all keys that it has",
    ),
    one(
        "keys on each rank of none",
        "draft-shares",
        LLAMA,
        *spec(DRAFT),
        *REPLICATED,
        says="ranks do not share keys",
    ),
    one(
        "keys on each rank without a draft",
        "draft-shares",
        LLAMA,
        *("-tp", "2", "-dcp", "2"),
        *REPLICATED,
        says="no draft with a KV cache",
    ),
    one(
        "latents on each rank",
        "draft-shares",
        "{DeepSeek-V3}",
        *spec("{DeepSeek-V3}"),
        *("-tp", "2", "-dcp", "2"),
        *REPLICATED,
        says="are of MLA",
    ),
    Mistake(
        "keys on each rank by another backend",
        (
            LLAMA,
            *spec(DRAFT),
            *("-tp", "2", "-dcp", "2", "--enforce-eager"),
            *mkv(kv_cache={"replicate_draft": True}, attention={"draft": "flash_attention_3"}),
        ),
        ("draft-shares", "backend"),
        ("asks for flash_attention_3",),
    ),
    Mistake(
        "keys on each rank by another backend of some layers",
        (
            LLAMA,
            *spec(DRAFT),
            *("-tp", "2", "-dcp", "2", "--enforce-eager"),
            *mkv(
                kv_cache={"replicate_draft": True},
                attention={"layers": {r"draft_model.*\.[01]\..*": "flash_attention_3"}},
            ),
        ),
        ("draft-shares", "backend"),
        ("[01]", "asks for flash_attention_3", "leave attention.layers"),
    ),
    Mistake(
        "keys on each rank by a backend of vLLM's option",
        (
            LLAMA,
            *spec(DRAFT, attention_backend="FLASH_ATTN"),
            *("-tp", "2", "-dcp", "2", "--enforce-eager"),
            *REPLICATED,
        ),
        ("draft-shares", "backend"),
        ("--speculative-config attention_backend asks for flash_attention_3",),
    ),
    Mistake(
        "windows on too many ranks",
        (LLAMA, *spec("{window-head}"), *("-tp", "16", "-dcp", "16")),
        ("devices", "draft-shares"),
        ("2048 tokens, and the operator takes 1024",),
    ),
    one(
        "windows on each rank and a connector",
        "draft-shares",
        LLAMA,
        *spec("{window-head}"),
        *("-tp", "2", "-dcp", "2", "--kv-transfer-config"),
        '{"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both"}',
        says="connectors know blocks of one size",
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
        "graphs of whole steps and windows",
        "graph-mode",
        "{gemma-3-27b}",
        *spec("{gemma-draft}"),
        "--compilation-config",
        '{"cudagraph_mode": "FULL"}',
        says="write FULL_DECODE_ONLY",
    ),
    one(
        "graphs of whole steps and looked-up tokens",
        "graph-mode",
        "{gpt-oss-20b}",
        *spec(None, method="ngram"),
        "-cc.cudagraph_mode=full",
        says="/gpt-oss-20b have sliding windows",
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
