# SPDX-License-Identifier: Apache-2.0
"""Runs a scenario and prints as JSON its result and the hidden states that the target gave.

The pass that prefills the first prompt gives them: ``[depths, its tokens, width]``.
"""

import dataclasses
import json
import sys

from tests.support import engine, hosts


def main():
    runner = hosts.module("runner").MkvModelRunner

    case = engine.Scenario(**json.loads(sys.argv[1]))
    states, run = [], runner._model_forward

    def recording(runner, *args, **kwargs):
        output, gathered = run(runner, *args, **kwargs)
        if not states and runner.input_batch.num_reqs:  # no dummy run
            states.extend(one[: len(case.prompts[0])].tolist() for one in gathered)
        return output, gathered

    runner._model_forward = recording
    result = dataclasses.asdict(engine._execute(case))
    print(json.dumps({"states": states, "result": result}))


if __name__ == "__main__":
    main()
