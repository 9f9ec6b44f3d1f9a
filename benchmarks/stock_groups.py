# SPDX-License-Identifier: Apache-2.0
"""KV groups by vLLM's own functions, with vllm-ascend's patches, for pairs of models.

Run in a process of the emulated NPU, because vllm-ascend cannot be imported without torch_npu;
``VLLM_PLUGINS=ascend`` keeps mkv_ascend out of it. No engine and no model is built: the specs come
from the numbers of the configs, as vllm-ascend's ``NPUModelRunner.get_kv_cache_spec`` makes them.
It runs on each host; on vllm-ascend 0.30.0rc2 it counts requests (``benchmarks.stock_requests``).

    VLLM_PLUGINS=ascend mkv-ascend emulate -- python -m benchmarks.stock_groups RESULT.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.models import ModelLayer, load_pair, load_pair_of_pages
from benchmarks.rows import REQUEST, ROWS, whole_mib
from benchmarks.stock_requests import PRIVATE_BUFFERS, complete, requests_at_once

ROOT = Path(__file__).resolve().parents[1]


def run_stock(python: str = sys.executable) -> dict[str, dict[str, Any]]:
    """``{row name: {"groups", "mib", "error"}}``, computed by ``python`` in a process of its own.

    Where layers have buffers of their own (0.30.0rc2), ``"requests"`` and ``"equal_groups"`` stand
    in place of ``"mib"``; see ``requests_at_once``.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "stock.json"
        command = [python, "-m", "mkv_ascend.cli", "emulate", "--"]
        command += [python, "-m", "benchmarks.stock_groups", str(result)]
        environment = {**os.environ, "VLLM_PLUGINS": "ascend", "VLLM_LOGGING_LEVEL": "ERROR"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode or not result.exists():
            raise RuntimeError(
                f"vLLM's grouping could not be run (exit code {done.returncode}); the emulated NPU "
                f"must be built (make setup). Its last words:\n{done.stderr[-2000:]}"
            )
        figures: dict[str, dict[str, Any]] = json.loads(result.read_text())
        return figures


def vllm_config() -> Any:
    """The few fields that vLLM's grouping and its memory estimate read."""
    return SimpleNamespace(
        max_concurrent_batches=1,
        model_config=SimpleNamespace(max_model_len=REQUEST.tokens),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        max_in_flight_tokens=REQUEST.tokens_per_step,
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=False,
            max_num_batched_tokens=REQUEST.tokens_per_step,
        ),
        cache_config=SimpleNamespace(mamba_cache_mode="none"),
        speculative_config=None,
    )


def spec_of(layer: ModelLayer) -> Any:
    """vLLM's spec of one layer, bfloat16, padded where vllm-ascend pads it."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec
    from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec

    padded = layer.padded_page_bytes or None
    if layer.states:
        return MambaSpec(
            block_size=REQUEST.tokens,
            shapes=layer.states,
            dtypes=(torch.bfloat16,) * len(layer.states),
            page_size_padded=padded,
        )
    common: dict[str, Any] = {
        "block_size": layer.block_size,
        "num_kv_heads": layer.heads,
        "head_size": layer.dim,
        "dtype": torch.bfloat16,
        "page_size_padded": padded,
    }
    if layer.kind == "mla":
        return AscendMLAAttentionSpec(**common)
    if layer.window:
        return SlidingWindowSpec(**common, sliding_window=layer.window)
    return FullAttentionSpec(**common)


def stock_row(target: str, draft: str, private_buffers: bool) -> dict[str, Any]:
    """Groups and MiB of one request, or requests at once, or the error that vLLM raises instead."""
    from vllm.v1.core import kv_cache_utils

    config = vllm_config()
    if private_buffers:
        complete(config)
    pair = (load_pair_of_pages if private_buffers else load_pair)(target, draft)
    specs = {layer.name: spec_of(layer) for layer in pair.layers}
    try:
        groups = kv_cache_utils.get_kv_cache_groups(config, dict(specs))
    except (NotImplementedError, AssertionError, ValueError) as error:
        return {"groups": None, "mib": None, "error": _describe(error)}
    if private_buffers:
        return {"groups": len(groups), **requests_at_once(config, specs, groups), "error": None}
    held = kv_cache_utils._max_memory_usage_bytes_from_groups(config, groups)
    return {"groups": len(groups), "mib": whole_mib(held), "error": None}


def _describe(error: Exception) -> str:
    """Class, message and place of ``error``: some of vLLM's assertions have no message."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({Path(place.filename).name}:{place.lineno})"


def main(result: str) -> None:
    """Write the figures of every row to the file ``result``."""
    import vllm_ascend.ops  # noqa: F401  First of vllm_ascend, or its imports go in a circle.
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm_ascend.utils import adapt_patch

    adapt_patch(is_global_patch=True)
    register_all_kvcache_specs(vllm_config())
    private_buffers = metadata.version("vllm-ascend") in PRIVATE_BUFFERS
    figures = {row.name: stock_row(row.target, row.draft, private_buffers) for row in ROWS}
    Path(result).write_text(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1])
