# SPDX-License-Identifier: Apache-2.0
"""Wrong draft tokens and acceptance, beside stock vllm-ascend.

    python -m benchmarks.acceptance [--json] [--pair llama+llama ...]

Pairs that stock vllm-ascend serves: its drafts lie in one KV group. Both run the same prompts
(texts and decks, whose continuation needs every key), greedily. A draft token is wrong where
Hugging Face's run of the draft in float32, on the accepted context, chooses another one by more
than a near tie. The tokens that come out are the target's with either and show nothing.

Acceptance is counted on the emulated NPU and does not depend on time. With all pairs this starts
two engines each and takes a few minutes.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import host
from benchmarks.progress import say
from tests.support import engine, prompts, reference, speculation
from tests.support.emulation import ON_EMULATOR
from tests.support.tiny_models import model_directory

MAX_TOKENS = 48
# Not strict: without Triton vllm-ascend hands an operator int64 where it documents int32.
STOCK = {"VLLM_PLUGINS": "ascend", "EMULATED_NPU_STRICT": "0"}


@dataclass(frozen=True)
class Pair:
    """A target and a draft by the names of tiny models, and how the one drafts for the other."""

    name: str
    target: str
    draft: str
    method: str
    k: int

    def drafter(self) -> speculation.Drafter:
        """What says which tokens are right."""
        directory = model_directory(self.draft)
        if self.method == "draft_model":
            return speculation.DraftModel(directory)
        # The MTP checkpoint holds this target's weights; transformers has no MTP layers.
        target = "deepseek_v2_target" if self.method == "mtp" else self.target
        return speculation.DraftHead(directory, model_directory(target))


PAIRS = (
    Pair("llama+llama", "llama_target", "llama_draft", "draft_model", 4),
    Pair("llama+window", "llama_target", "gemma3_window_draft", "draft_model", 4),
    Pair("mla+mla", "deepseek_v2_target", "deepseek_v2_draft", "draft_model", 3),
    Pair("llama+eagle", "llama_target", "llama_eagle", "eagle", 3),
    Pair("gpt_oss+eagle3", "gpt_oss", "gpt_oss_eagle3", "eagle3", 3),
    Pair("deepseek_v3+mtp", "deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", 3),
)


def scenario(pair: Pair) -> engine.Scenario:
    """What both run: texts of many lengths, and decks that begin with some of their letters."""
    target = model_directory(pair.target)
    texts = [*prompts.text_prompts(), *prompts.deck_prompts(11, letters=8)]
    return engine.Scenario(
        str(target),
        str(model_directory(pair.draft)),
        num_speculative_tokens=pair.k,
        prompts=[reference.token_ids(target, text) for text in texts],
        max_tokens=MAX_TOKENS,
        speculative={"method": pair.method},
        engine={"max_num_seqs": 8},
        record_drafts=True,
    )


def judged(pair: Pair, result: engine.Result) -> dict[str, Any]:
    """Wrong draft tokens, tokens that were proposed, and acceptance by position."""
    report = reference.judge(pair.drafter().rows, result.proposals)
    return {
        "wrong": len(report.wrong),
        "drafted": report.checked,
        "acceptance": [
            round(accepted / result.num_drafts, 3) for accepted in result.accepted_per_position
        ],
        "mean_length": round(result.mean_acceptance_length, 3),
    }


def measure(pair: Pair) -> dict[str, Any]:
    """One row: ours and stock's, of the same prompts."""
    case = scenario(pair)
    ours = engine.run(case)
    say(f"{pair.name}: ours")
    row = {"pair": pair.name, "method": pair.method, "k": pair.k, "ours": judged(pair, ours)}
    try:
        stock = engine.run(replace(case, environment=STOCK))
    except engine.EngineFailedError as refusal:
        say(f"{pair.name}: stock vllm-ascend ends with: {str(refusal).strip().splitlines()[-1]}")
        return {**row, "stock": None}
    say(f"{pair.name}: stock vllm-ascend")
    if "mkv_ascend" in stock.platform or "mkv_ascend" not in ours.platform:
        raise RuntimeError(f"platforms are {ours.platform} and {stock.platform}")
    if ours.tokens != stock.tokens:
        say(f"{pair.name}: the tokens that came out differ (near ties of the target, or a fault)")
    return {**row, "stock": judged(pair, stock)}


def as_table(rows: list[dict[str, Any]]) -> str:
    """The rows for a terminal."""
    lines = [f"{'pair':<17}{'method':<13}{'K':>2}  {'':<6}{'wrong':>6}{'of':>6}  acceptance"]
    for row in rows:
        for side in ("ours", "stock"):
            one = row[side]
            if one is None:
                lines.append(f"{row['pair']:<17}{row['method']:<13}{row['k']:>2}  {side}: refused")
                continue
            rates = "  ".join(f"{rate:.3f}" for rate in one["acceptance"])
            lines.append(
                f"{row['pair']:<17}{row['method']:<13}{row['k']:>2}  {side:<6}"
                f"{one['wrong']:>6}{one['drafted']:>6}  {rates}"
            )
    return "\n".join(lines)


def main() -> None:
    """Print the rows as a table, or with ``--json`` as JSON. Always on the emulated NPU."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.acceptance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [pair.name for pair in PAIRS]
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--pair", nargs="+", choices=names, default=names, help="only these")
    arguments = parser.parse_args()
    if not ON_EMULATOR:
        host.run_emulated("benchmarks.acceptance")
    rows = [measure(pair) for pair in PAIRS if pair.name in arguments.pair]
    print(json.dumps({"rows": rows}, indent=2) if arguments.json else as_table(rows))


if __name__ == "__main__":
    main()
