# SPDX-License-Identifier: Apache-2.0
"""What a proposal costs outside the draft's own work, beside stock vllm-ascend.

    python -m benchmarks.drafting [--json] [--k 1 4 8] [--g 1 2 4 8] [--b 1 8 64] [--repeats 5]
                                [--host 0.30] [--runner v2]

K draft tokens, a draft with layers in G KV groups, batches of B requests. Launches, metadata builds
and host reads of device memory (including copies that are waited for later) are counts of the
emulated NPU, the same on every run. Host microseconds are of this machine and mean nothing by
themselves. Ratios are medians of repeats that take turns between the engines of one K, which run
side by side. Stock vllm-ascend serves drafts of one KV group only, and no draft model with model
runner V2. With the defaults this starts 16 engines and takes about ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import host
from benchmarks.progress import say

ROOT = Path(__file__).resolve().parents[1]
STOCK = 0
"""In place of a number of groups: vllm-ascend without this plugin, one KV group."""


class Engine:
    """One engine in a process of its own, asked for one measurement at a time."""

    def __init__(
        self,
        scenario: dict[str, Any],
        plugins: str,
        program: str = "benchmarks.drafting_engine",
    ) -> None:
        command = [sys.executable, "-m", "mkv_ascend", "emulate", "--"]
        command += [sys.executable, "-m", program, json.dumps(scenario)]
        environment = {
            **os.environ,
            "VLLM_PLUGINS": plugins,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "OMP_NUM_THREADS": "1",
            **scenario.get("environment", {}),
        }
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the engine)
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.facts: dict[str, Any] = {}

    def wait(self) -> None:
        """Until the engine has started."""
        self.facts = self._answer()

    def measure(self, batch: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{batch}\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        self._log.seek(0)
        raise RuntimeError(f"an engine ended; its last words:\n{self._log.read()[-3000:]}")


def save_models(folder: Path) -> tuple[str, str]:
    """Two small random Llamas, a target and a draft of eight layers, with equal KV pages."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    paths = []
    for name, layers in (("target", 2), ("draft", 8)):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=260,
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=layers,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=64,
            max_position_embeddings=512,
        )
        path = folder / name
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
        paths.append(str(path))
    return paths[0], paths[1]


Key = tuple[int, int]
"""(groups or STOCK, batch)."""


def measure_k(
    k: int, groups: list[int], batches: list[int], repeats: int, models: dict[str, Any]
) -> tuple[dict[Key, list[dict[str, Any]]], dict[int, int]]:
    """Repeats of every engine and batch for one K, in turns; and distinct needs by groups."""
    engines: dict[int, Engine] = {}
    beside = [] if models["environment"] else [STOCK]
    for count in [*beside, *groups]:
        scenario = {**models, "k": k, "g": count or 1}
        engines[count] = Engine(scenario, "ascend" if count == STOCK else "ascend,mkv_ascend")
    for count, engine in engines.items():
        engine.wait()
        say(f"K={k}: engine {'of stock vllm-ascend' if count == STOCK else f'with G={count}'}")
    for count in groups:
        if engines[count].facts["groups"] != count:
            raise RuntimeError(f"the draft lies in {engines[count].facts['groups']}, not {count}")
    found: dict[Key, list[dict[str, Any]]] = {}
    for batch in batches:
        for repeat in range(repeats + 1):
            for count, engine in engines.items():
                measured = engine.measure(batch)
                if repeat:  # the first round warms up
                    found.setdefault((count, batch), []).append(measured)
        say(f"K={k}: batches of {batch}")
    for engine in engines.values():
        engine.stop()
    return found, {count: engines[count].facts["distinct"] for count in groups}


def row(k: int, key: Key, distinct: int, found: dict[Key, list[dict[str, Any]]]) -> dict[str, Any]:
    """One row of the result; ratios are of the same repeat, then the median."""
    groups, batch = key
    ours, stock = found[key], found.get((STOCK, batch)) if groups == 1 else None
    one = found.get((1, batch), ours)
    return {
        "k": k,
        "g": groups,
        "b": batch,
        **costs(ours),
        "distinct": distinct,
        "stock": costs(stock) if stock else None,
        "host_ratio_to_stock": ratio(ours, stock) if stock else None,
        "host_ratio_to_one_group": ratio(ours, one),
    }


def costs(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts, and the median of the host's microseconds."""
    names = ("launches", "builds", "host_reads")
    counted = {name: int(statistics.median(one[name] for one in repeats)) for name in names}
    return {**counted, "host_us": round(statistics.median(one["host_us"] for one in repeats), 1)}


def ratio(over: list[dict[str, Any]], under: list[dict[str, Any]]) -> float:
    pairs = zip(over, under, strict=True)
    middle: float = statistics.median(one["host_us"] / other["host_us"] for one, other in pairs)
    return round(middle, 3)


def target_pass(
    found: dict[Key, list[dict[str, Any]]], batches: list[int], models: dict[str, Any]
) -> dict[str, int]:
    """Launches and builds of the target's pass beyond those without a draft; the most of any."""
    engine = Engine({**models, "k": 0, "g": 1}, "ascend,mkv_ascend")
    engine.wait()
    alone = {batch: engine.measure(batch) for batch in batches}
    engine.stop()
    extra = [
        {name: one[f"target_{name}"] - alone[batch][f"target_{name}"] for name in EXTRA}
        for (groups, batch), repeats in found.items()
        if groups != STOCK
        for one in repeats
    ]
    return {f"extra_{name}": int(max(one[name] for one in extra)) for name in EXTRA}


EXTRA = ("launches", "builds")


def run(
    ks: list[int], groups: list[int], batches: list[int], repeats: int, runner: str
) -> dict[str, Any]:
    """``{"host": ..., "runner": ..., "rows": [...], "target_pass": {...}}``."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        target, draft = save_models(Path(folder))
        models = {"target": target, "draft": draft, "environment": host.RUNNERS[runner]}
        for k in ks:
            found, distinct = measure_k(k, groups, batches, repeats, models)
            rows += [
                row(k, (count, batch), distinct[count], found)
                for count in groups
                for batch in batches
            ]
        passes = target_pass(found, batches, models)
    return {"host": host.installed(), "runner": runner, "rows": rows, "target_pass": passes}


def as_table(result: dict[str, Any]) -> str:
    """The result for a terminal."""
    lines = [
        f"On vllm-ascend {result['host']}, model runner {result['runner']}, per proposal, outside "
        "the draft's forward, logits, sampling and feeding back",
        "",
        f"{'K':>3}{'G':>3}{'B':>4}{'launches':>10}{'builds':>8}{'distinct':>10}{'host reads':>12}"
        f"{'stock launches, builds, reads':>31}{'host / stock':>14}{'host / own G=1':>16}",
    ]
    for one in result["rows"]:
        stock = one["stock"]
        beside = "-"
        if stock:
            beside = f"{stock['launches']}, {stock['builds']}, {stock['host_reads']}"
        to_stock = one["host_ratio_to_stock"]
        lines.append(
            f"{one['k']:>3}{one['g']:>3}{one['b']:>4}{one['launches']:>10}{one['builds']:>8}"
            f"{one['distinct']:>10}{one['host_reads']:>12}{beside:>31}"
            f"{'-' if to_stock is None else to_stock:>14}{one['host_ratio_to_one_group']:>16}"
        )
    extra = result["target_pass"]
    lines += [
        "",
        f"The target's pass with a draft: {extra['extra_launches']} launches and "
        f"{extra['extra_builds']} metadata builds more than without one.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the result as a table, or with ``--json`` as JSON."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.drafting",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 4, 8], help="draft tokens")
    parser.add_argument("--g", type=int, nargs="+", default=[1, 2, 4, 8], help="KV groups")
    parser.add_argument("--b", type=int, nargs="+", default=[1, 8, 64], help="requests")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each")
    host.add_option(parser)
    host.add_runner_option(parser)
    arguments = parser.parse_args()
    try:
        host.go_on_with(arguments.host, "benchmarks.drafting", sys.argv[1:])
        host.require_runner(arguments.runner)
    except LookupError as error:
        parser.error(str(error))
    result = run(arguments.k, arguments.g, arguments.b, arguments.repeats, arguments.runner)
    print(json.dumps(result, indent=2) if arguments.json else as_table(result))


if __name__ == "__main__":
    main()
