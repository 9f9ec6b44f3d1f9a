# SPDX-License-Identifier: Apache-2.0
"""Faults in what the scheduler and the batch know of steps with drafts."""

from __future__ import annotations

from fault import Fault

IN_FLIGHT = "common/patches/verify_steps_in_flight.py"
SAMPLED = "common/patches/sampled_rows.py"
COUNTS = "common/patches/acceptance_by_count.py"
GIVING_UP = "common/giving_up.py"
OF_IN_FLIGHT = ("tests/unit/adapters/test_verify_steps_in_flight.py",)
OF_SAMPLED = ("tests/unit/adapters/test_sampled_rows.py",)
OF_COUNTS = ("tests/unit/adapters/test_acceptance_by_count.py",)
OF_GIVING_UP = ("tests/unit/adapters/test_giving_up.py",)

FAULTS = (
    Fault(
        name="a token too many is held back of a verify step",
        file=IN_FLIGHT,
        text="request.num_computed_tokens - request.num_tokens\n",
        instead="request.num_computed_tokens - request.num_tokens + 1\n",
        wrong="A request of which a verify step runs is scheduled for a token more.",
        tests=OF_IN_FLIGHT,
    ),
    Fault(
        name="a resumed request keeps what was held back",
        file=IN_FLIGHT,
        text="        scheduler.requests[request_id].num_output_placeholders = 0\n    for",
        instead="        pass\n    for",
        wrong="Rejected tokens of a step before the preemption are taken off its tokens.",
        tests=OF_IN_FLIGHT,
    ),
    Fault(
        name="drafts behind a token that is not the newest are given",
        file=IN_FLIGHT,
        text="request.num_computed_tokens == request.num_tokens - 1",
        instead="request.num_computed_tokens <= request.num_tokens - 1",
        wrong="Drafts of a chunk of a prompt follow another token than they were made for.",
        tests=OF_IN_FLIGHT,
    ),
    Fault(
        name="drafts of a preempted request are given",
        file=IN_FLIGHT,
        text="        and request.status == RequestStatus.RUNNING\n",
        instead="",
        wrong="A request that waits is given drafts.",
        tests=OF_IN_FLIGHT,
    ),
    Fault(
        name="of two requests one's allowed tokens are both's",
        file=SAMPLED,
        text="masks[first].clone()",
        instead="masks[first]",
        wrong="The mask of the first row has been overwritten when it is read.",
        tests=("tests/emulated/drafting/test_drafting_parameters.py::test_allowed_tokens",),
    ),
    Fault(
        name="a stop token is let through one token early",
        file=SAMPLED,
        text="len(tokens) + drafts[row] < least",
        instead="len(tokens) + drafts[row] < least - 1",
        wrong="An answer ends one token before its min_tokens.",
        tests=OF_SAMPLED,
    ),
    Fault(
        name="the last row of a request is counted without its drafts",
        file=SAMPLED,
        text="len(tokens) + drafts[row] < least",
        instead="len(tokens) < least",
        wrong="A stop token comes K tokens late.",
        tests=OF_SAMPLED,
    ),
    Fault(
        name="drafts that a grammar forbids count as verified",
        file=COUNTS,
        text="num_draft_tokens - (num_invalid_spec_tokens or {}).get(request_id, 0)",
        instead="num_draft_tokens",
        wrong="Acceptance by number of drafts is that of other numbers.",
        tests=OF_COUNTS,
    ),
    Fault(
        name="an accepted token is counted one position later",
        file=COUNTS,
        text="for position in range(accepted):",
        instead="for position in range(1, accepted + 1):",
        wrong="The first position has no acceptance in the metrics.",
        tests=OF_COUNTS,
    ),
    Fault(
        name="steps under way lose their drafts with the list",
        file=COUNTS,
        text="scheduler._spec_token_placeholders = []",
        instead="scheduler._spec_token_placeholders.clear()",
        wrong="The list is part of steps under way, whose rows are then missing.",
        tests=OF_GIVING_UP,
    ),
    Fault(
        name="rows of a draft that is given up are kept in every mode",
        file=GIVING_UP,
        text="and mode.mixed_mode() == CUDAGraphMode.NONE",
        instead="or mode.mixed_mode() == CUDAGraphMode.NONE",
        wrong="Steps still verify tokens that nobody drafts.",
        tests=OF_GIVING_UP,
    ),
    Fault(
        name="every scheduler's draft is given up",
        file=GIVING_UP,
        text="return scheduler in _schedulers",
        instead="return bool(_schedulers)",
        wrong="Another engine of the process drafts no more.",
        tests=OF_GIVING_UP,
    ),
)
