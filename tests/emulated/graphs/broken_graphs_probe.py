# SPDX-License-Identifier: Apache-2.0
"""Runs an engine in graphs, then breaks those of its draft, and prints the result as JSON."""

import json
import os
import sys
from dataclasses import replace
from unittest import mock

from tests.support import hosts

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def lengths_frozen():
    """While inside, each captured launch has the same lengths in every replay: of one token."""
    updates = hosts.module("drafting.launches").Updates

    run = updates.run

    def frozen(updates, stream, context, config, lengths):
        one_token_lengths = [
            [min(length, 1) for length in pass_lengths] for pass_lengths in lengths
        ]
        run(updates, stream, context, config, one_token_lengths)

    return mock.patch.object(updates, "run", frozen)


def move_token_ids(drafter):
    """Give the draft's token ids another place than its graphs know, and free the old one."""
    draft = drafter.assembly.draft
    draft.buffers = replace(draft.buffers, token_ids=draft.buffers.token_ids.clone())
    drafter.input_ids = draft.buffers.token_ids


def main():
    from tests.support.probed_engine import ProbedEngine

    engine = ProbedEngine(json.loads(sys.argv[1]))
    drafter = engine.runner.drafter

    def generate():
        replays = drafter.assembly.graphs.replays
        generated = engine.generate()
        return {**generated, "replays": drafter.assembly.graphs.replays - replays}

    result = {"whole": generate()}
    with lengths_frozen():
        result["frozen"] = generate()
    move_token_ids(drafter)
    try:
        result["moved"] = generate()
    except RuntimeError as error:
        result["moved"] = str(error)
    print(json.dumps(result), flush=True)
    # The stream of the replay that failed never ends.
    os._exit(0)


if __name__ == "__main__":
    main()
