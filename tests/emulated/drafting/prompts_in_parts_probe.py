# SPDX-License-Identifier: Apache-2.0
"""Runs an asynchronous engine on whole prompts beside one that comes in parts; prints JSON."""

import asyncio
import json
import sys


async def answer(engine, name, prompt, max_tokens):
    """Tokens of an answer to a prompt, or to a list of such that come one after the other."""
    from vllm import SamplingParams
    from vllm.engine.protocol import StreamingInput
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    async def parts():
        for part in prompt:
            yield StreamingInput(prompt=TokensPrompt(prompt_token_ids=part))

    given = parts() if isinstance(prompt[0], list) else TokensPrompt(prompt_token_ids=prompt)
    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=max_tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    tokens = []
    async for output in engine.generate(given, sampling, name):
        tokens += output.outputs[0].token_ids
    return tokens


async def run(asked):
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**asked["engine"]))
    try:
        rounds = []
        for number, prompts in enumerate(asked["rounds"]):
            answers = await asyncio.gather(
                *(
                    answer(engine, f"{number}-{index}", prompt, asked["max_tokens"])
                    for index, prompt in enumerate(prompts)
                ),
                return_exceptions=True,
            )
            rounds.append(
                [
                    given if isinstance(given, list) else f"{type(given).__name__}: {given}"
                    for given in answers
                ]
            )
    finally:
        engine.shutdown()
    print(json.dumps(rounds))


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.argv[1])))
