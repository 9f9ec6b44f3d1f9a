# SPDX-License-Identifier: Apache-2.0
"""The answer of ``mkv-ascend advise`` as lines of text."""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.installed import rules
from mkv_ascend.rules.verdict import of_waiting


def lines(answer: dict[str, Any]) -> list[str]:
    """Of one candidate, or of several with the best of each batch size."""
    return _alone(answer) if "batches" in answer else _compared(answer)


def _compared(answer: dict[str, Any]) -> list[str]:
    """Each candidate as if alone, and then the best of each batch size."""
    told: list[str] = []
    for one in answer["candidates"]:
        refused = one.get("refused")
        told += [f"not predicted: {one['name']}: {refused}"] if refused else _alone(one)
    for best in answer["best"]:
        found = (
            f"{best['name']} with K = {best['tokens']}, {best['speed_up']:.2f} times as fast"
            if best["name"]
            else "no draft: each is predicted to lose"
        )
        told.append(f"best at batch {best['requests']}: {found}")
    return told


def _line_of_scheduling(answer: dict[str, Any]) -> list[str]:
    """That vLLM schedules steps with this draft one after the other, and what changes that."""
    method = answer["method"]
    if answer["async_scheduling"] or not answer["async_scheduling_without"]:
        return []
    note = list(of_waiting(rules(), method, waits=True))
    return [f"  {line}" for line in note or [f"vLLM does not schedule method {method} ahead"]]


def _alone(answer: dict[str, Any]) -> list[str]:
    who = answer["target"] + (f" + {answer['draft']}" if answer["draft"] else "")
    told = [
        f"predicted, not measured: {who}, method {answer['method']}, {answer['ranks']} x "
        f"{answer['chip']}, context {answer['context']}, acceptance {answer['acceptance']}",
        f"  {'batch':>5} {'K':>3} {'tokens':>7} {'plain ms':>9} {'verify':>7} {'draft':>7} "
        f"{'host':>7} {'ms/token':>9} {'speed-up':>9}  band         best K",
    ]
    for batch in answer["batches"]:
        shown = batch["shown"]
        told.append(
            f"  {batch['requests']:>5} {shown['tokens']:>3} {shown['length']:>7.2f} "
            f"{shown['plain_ms'] + shown['plain_host_ms']:>9.2f} {shown['verify_ms']:>7.2f} "
            f"{shown['draft_ms']:>7.2f} {shown['host_ms']:>7.2f} {shown['ms_per_token']:>9.2f} "
            f"{shown['speed_up']:>9.2f}  {shown['speed_up_from']:.2f} to "
            f"{shown['speed_up_to']:.2f} {batch['best_tokens']:>5}"
        )
    told += [f"  {batch['verdict']}" for batch in answer["batches"]]
    told += _line_of_scheduling(answer)
    memory = answer["memory"]
    text = f"  weights {memory['weight_bytes'] / 2**30:.1f} GiB on each device"
    if "unplanned" in memory:
        return [*told, f"{text}; requests at once not told: {memory['unplanned']}"]
    return [
        *told,
        f"{text}; {memory['requests_at_once']} requests of {answer['context']} tokens at once in "
        f"{memory['cache_bytes'] / 2**30:.1f} GiB of KV caches",
    ]
