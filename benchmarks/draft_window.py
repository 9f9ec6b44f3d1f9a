# SPDX-License-Identifier: Apache-2.0
"""Acceptance at long contexts with a window for the draft's keys, beside no window.

    python -m benchmarks.draft_window [--json] [--tokens 1024 32768] [--windows 128 512]

The target has windows of 64 tokens alone, so it says as much of a text at any length. The draft, a
Llama, attends to all tokens and was trained on rows of 512 at most, as published drafts are trained
on shorter texts than are served. Both are tiny models; prompts are real text. Beside acceptance
stand the bytes that a request keeps of the draft's keys and values while it decodes.

Acceptance is counted on the emulated NPU and does not depend on time. Draft tokens are not judged
here, but in the tests. Each row starts an engine; of 32768 tokens one takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from benchmarks import host
from benchmarks.progress import say
from mkv_ascend.commands import host_process
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.planning import PlanInputs, ServingPlan, plan
from tests.support import engine
from tests.support.emulation import ON_EMULATOR
from tests.support.tiny_models import model_directory
from tests.support.tiny_models.corpus import load_corpus
from tests.support.tiny_models.tokenizer import BOS_TOKEN_ID

TARGET, DRAFT = "gemma3_window_draft", "llama_draft"
K = 4
MAX_TOKENS = 192
"""Tokens that each request generates."""
PROMPTS = 2
STEP = 2048
"""Tokens of a step: prompts come in chunks of so many."""
LENGTHS, WINDOWS = (1024, 8192, 32768), (128, 512)


def prompts(tokens: int) -> list[list[int]]:
    """Prompts of so many tokens, which end in different places of text that nobody trained on."""
    corpus = load_corpus()
    held_out = b"".join(corpus.held_out)
    text = b"".join(corpus.training)
    while len(text) < tokens:
        text += text
    ends = [len(held_out) * (place + 1) // (PROMPTS + 1) for place in range(PROMPTS)]
    return [[BOS_TOKEN_ID, *(text + held_out[:end])[-(tokens - 1) :]] for end in ends]


def copied(name: str, folder: Path, tokens: int) -> str:
    """A copy of a tiny model whose configuration allows so many tokens."""
    copy = folder / name
    shutil.copytree(model_directory(name), copy)
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = tokens
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(copy)


def scenario(target: str, draft: str, tokens: int, window: int | None) -> engine.Scenario:
    """What one row runs, from folders of both models."""
    return engine.Scenario(
        target,
        draft,
        num_speculative_tokens=K,
        prompts=prompts(tokens),
        max_tokens=MAX_TOKENS,
        mkv_ascend={} if window is None else {"drafting": {"window": window}},
        engine={
            "max_model_len": longest(tokens),
            "max_num_seqs": PROMPTS,
            "max_num_batched_tokens": STEP,
            "kv_cache_memory_bytes": 768 << 20,
        },
    )


def longest(tokens: int) -> int:
    """Tokens of a request with its answer, and room for drafts behind it."""
    return tokens + MAX_TOKENS + 2 * K


def bytes_of_draft(planned: ServingPlan) -> int:
    """Bytes that a request keeps in the draft's layers while it decodes."""
    layouts = {layer.layout.layer: layer.layout for layer in planned.inputs.layers}
    total = 0
    for group in planned.grouping.groups:
        held = group.retention.blocks(group.block_size, planned.inputs.request)
        for layout in (layouts[name] for name in group.layers):
            if layout.role is Role.DRAFT:
                a_token = layout.page_bytes // layout.tokens_per_block
                total += held * group.block_size * a_token
    return total


def planned_of(engine: dict[str, Any]) -> ServingPlan:
    """The plan of an engine with these arguments, as ``mkv-ascend check`` has it."""
    answer = host_process.ask(
        {"engine": engine, "device": host_process.THIS, "plan": False}, {}, "check"
    )
    return plan(TypeAdapter(PlanInputs).validate_python(answer["inputs"]))


def measure(tokens: int, window: int | None) -> dict[str, Any]:
    """One row: an engine's acceptance, and what the plan keeps of the draft."""
    with tempfile.TemporaryDirectory() as folder:
        models = [copied(name, Path(folder), longest(tokens)) for name in (TARGET, DRAFT)]
        case = scenario(models[0], models[1], tokens, window)
        result = engine.run(case, timeout=3600)
        arguments = {**case.engine_arguments(), "dtype": "bfloat16"}
        planned = planned_of(arguments)
    say(f"{tokens} tokens, window {window}: {result.mean_acceptance_length:.2f} tokens per step")
    return {
        "tokens": tokens,
        "window": window,
        "proposals": result.num_drafts,
        "acceptance": [
            round(accepted / result.num_drafts, 3) for accepted in result.accepted_per_position
        ],
        "mean_length": round(result.mean_acceptance_length, 3),
        "draft_bytes": bytes_of_draft(planned),
    }


def as_table(rows: list[dict[str, Any]]) -> str:
    """The rows for a terminal."""
    lines = ["tokens  window  tokens per step  draft's KiB  acceptance by position"]
    for row in rows:
        rates = "  ".join(f"{rate:.3f}" for rate in row["acceptance"])
        lines.append(
            f"{row['tokens']:>6}  {row['window'] or 'none':>6}  {row['mean_length']:>15.2f}  "
            f"{row['draft_bytes'] // 1024:>11}  {rates}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the rows as a table, or with ``--json`` as JSON. Always on the emulated NPU."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.draft_window",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--tokens", type=int, nargs="+", default=LENGTHS, help="of each prompt")
    parser.add_argument("--windows", type=int, nargs="*", default=WINDOWS, help="beside no window")
    arguments = parser.parse_args()
    if not ON_EMULATOR:
        host.run_emulated("benchmarks.draft_window")
    windows = (None, *arguments.windows)
    rows = [measure(tokens, window) for tokens in arguments.tokens for window in windows]
    print(json.dumps({"rows": rows}, indent=2) if arguments.json else as_table(rows))


if __name__ == "__main__":
    main()
