# SPDX-License-Identifier: Apache-2.0
"""Drafts twice, the second time in blocks full of NaN; prints both results as JSON."""

import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def main():
    from tests.support.probed_engine import ProbedEngine

    engine = ProbedEngine(json.loads(sys.argv[1]))
    result = {"clean": engine.generate()}
    for memory in engine.runner._cache_memory.raw:
        if memory is not None:
            memory.fill_(-1)  # of every type of floating point that is NaN
    result["stale"] = engine.generate()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
