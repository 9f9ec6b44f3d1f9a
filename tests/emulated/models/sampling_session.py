# SPDX-License-Identifier: Apache-2.0
"""One engine that answers batches of requests, each with its own sampling parameters.

    python sampling_session.py REQUEST ANSWER

REQUEST is a JSON file ``{"model": folder, "engine": {...}, "batches": [[{"prompt": [ids],
"sampling": {...}}, ...], ...]}``. ANSWER gets, per batch and request, the tokens and the
log-probabilities that were asked for: ``{"tokens": [...], "logprobs": [{id: value}, ...],
"prompt_logprobs": [...]}``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def logprob_values(positions: Any) -> list[dict[str, float] | None]:
    """vLLM's Logprob objects as numbers; None where a position has none (the first of a prompt)."""
    return [
        None if position is None else {str(token): item.logprob for token, item in position.items()}
        for position in positions or []
    ]


def answer(output: Any) -> dict[str, Any]:
    completion = output.outputs[0]
    return {
        "tokens": list(completion.token_ids),
        "logprobs": logprob_values(completion.logprobs),
        "prompt_logprobs": logprob_values(output.prompt_logprobs),
    }


def main(request_file: str, answer_file: str) -> None:
    from vllm import LLM, SamplingParams

    from tests.support.engine import compared_dtype

    request = json.loads(Path(request_file).read_text())
    llm = LLM(
        model=request["model"],
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype=compared_dtype(),
        max_model_len=512,
        kv_cache_memory_bytes=64 << 20,
        **request["engine"],
    )
    answers = []
    for batch in request["batches"]:
        prompts = [{"prompt_token_ids": item["prompt"]} for item in batch]
        sampling = [
            SamplingParams(**{"ignore_eos": True, "detokenize": False, **item["sampling"]})
            for item in batch
        ]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        answers.append([answer(output) for output in outputs])
    Path(answer_file).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
