# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding: the first pass of a draft, and drafts by n-gram lookup."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    require,
    require_dtype,
    require_range,
    require_rank,
    require_same_dtype,
    require_shape,
)


@dataclass(frozen=True)
class ExpandedRequest:
    """Where one request's tokens stand in the expanded input.

    In this order: `valid` tokens copied from `source` on (past `last_source`, that one again), the
    next token, `slots - 1` tokens to be drafted in parallel, `rejected` tokens that only pad.
    """

    source: int
    last_source: int
    start: int
    valid: int
    rejected: int
    slots: int

    @property
    def next_token(self) -> int:
        return self.start + self.valid

    @property
    def first_rejected(self) -> int:
        return self.next_token + self.slots

    @property
    def end(self) -> int:
        return self.first_rejected + self.rejected

    def copied(self) -> torch.Tensor:
        """Where the copied tokens stand in the input."""
        places = torch.arange(self.source, self.source + self.valid)
        return places.clamp(max=self.last_source)

    def lay_out(
        self, copied: torch.Tensor, next_token: torch.Tensor, masked: int, rejected: int
    ) -> torch.Tensor:
        """One output of this request's part, of the four kinds of token."""
        fillers = [masked] * (self.slots - 1) + [rejected] * self.rejected
        return torch.cat((copied, next_token, torch.tensor(fillers, dtype=copied.dtype)))


def _expanded_requests(
    query_start_loc: torch.Tensor,
    query_end_loc: torch.Tensor,
    slots: int,
    shift: bool,
    num_inputs: int,
) -> list[ExpandedRequest]:
    starts, ends = query_start_loc.tolist(), query_end_loc.tolist()
    requests = []
    for index, end in enumerate(ends):
        start, next_start = starts[index], starts[index + 1]
        # With shifted ids the first token of a request is dropped, and the next one appended.
        valid = max(end - start + (0 if shift else 1), 0)
        target = start + index * (slots - 1 if shift else slots)
        rejected = max(next_start - end - 1, 0)
        source, last_source = start, next_start - 1
        if shift:
            source, last_source = start + 1, num_inputs - 1
        requests.append(ExpandedRequest(source, last_source, target, valid, rejected, slots))
    return requests


@operator(
    "npu_copy_and_expand_eagle_inputs",
    namespace="_C_ascend",
    source="vllm-ascend tests: test_copy_and_expand_eagle_inputs",
    limits="int32 throughout.",
)
def npu_copy_and_expand_eagle_inputs(
    target_token_ids: torch.Tensor,
    target_positions: torch.Tensor,
    next_token_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    query_end_loc: torch.Tensor,
    padding_token_id: int,
    parallel_drafting_token_id: int,
    num_padding_slots_per_request: int,
    shift_input_ids: bool,
    total_draft_tokens: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lay out the draft's first pass: each request's tokens, its next token, and slots to draft.

    query_end_loc: the last accepted token of each request; those up to the next request's start
    were rejected.

    Returns token ids and positions, int32 (total_draft_tokens,); masks of rejected and of
    parallel-drafting tokens, int8; the slots whose logits are sampled, int32 (requests * slots,);
    and where each input token's hidden state goes, int32 (input tokens,), zero unless
    shift_input_ids.
    """
    num_inputs = target_token_ids.numel()
    slots, shift = num_padding_slots_per_request, shift_input_ids
    requests = _expanded_requests(query_start_loc, query_end_loc, slots, shift, num_inputs)
    token_ids, positions = (torch.zeros(total_draft_tokens, dtype=torch.int32) for _ in range(2))
    is_rejected, is_masked = (torch.zeros(total_draft_tokens, dtype=torch.int8) for _ in range(2))
    hidden_mapping = torch.zeros(num_inputs, dtype=torch.int32)
    starts = query_start_loc.tolist()
    for index, request in enumerate(requests):
        # Every output of a request's part is written, zeros too: where the end of a request lies
        # past its last token, the part of the next request overlaps it.
        part = slice(request.start, request.end)
        token_ids[part] = request.lay_out(
            target_token_ids[request.copied()],
            next_token_ids[index : index + 1],
            parallel_drafting_token_id,
            padding_token_id,
        )
        kept = request.first_rejected - request.start
        first_position = int(target_positions[starts[index]])
        positions[part] = 0
        positions[request.start : request.first_rejected] = first_position + torch.arange(kept)
        unmarked = torch.zeros(request.valid, dtype=torch.int8), torch.zeros(1, dtype=torch.int8)
        is_rejected[part] = request.lay_out(unmarked[0], unmarked[1], 0, 1)
        is_masked[part] = request.lay_out(unmarked[0], unmarked[1], 1, 0)
        if shift_input_ids:
            length = starts[index + 1] - starts[index]
            rows = torch.arange(request.start, request.start + length)
            hidden_mapping[starts[index] : starts[index + 1]] = rows.to(torch.int32)
    sampled = [torch.arange(request.next_token, request.first_rejected) for request in requests]
    new_tokens = torch.cat(sampled).to(torch.int32)
    return token_ids, positions, is_rejected, is_masked, new_tokens, hidden_mapping


@npu_copy_and_expand_eagle_inputs.check
def _check_copy_and_expand(given: Arguments) -> None:
    tensors = {
        "target_token_ids": given.target_token_ids,
        "target_positions": given.target_positions,
        "next_token_ids": given.next_token_ids,
        "query_start_loc": given.query_start_loc,
        "query_end_loc": given.query_end_loc,
    }
    for name, tensor in tensors.items():
        require_dtype(name, tensor, (torch.int32,))
        require_rank(name, tensor, 1)
    num_requests = given.next_token_ids.numel()
    require(num_requests > 0, "next_token_ids is empty; there must be one request or more")
    require_shape("target_positions", given.target_positions, given.target_token_ids.shape)
    require_shape("query_start_loc", given.query_start_loc, (num_requests + 1,))
    require_shape("query_end_loc", given.query_end_loc, (num_requests,))
    slots, shift = given.num_padding_slots_per_request, given.shift_input_ids
    require(slots >= 1, f"num_padding_slots_per_request is {slots}; it must be 1 or more")
    num_inputs = given.target_token_ids.numel()
    requests = _expanded_requests(
        given.query_start_loc, given.query_end_loc, slots, shift, num_inputs
    )
    needed = requests[-1].end
    require(
        given.total_draft_tokens >= needed,
        f"total_draft_tokens is {given.total_draft_tokens}; the requests need {needed}",
    )


@operator(
    "npu_ngram_spec_decode",
    namespace="_C_ascend",
    source="vllm-ascend tests: test_ngram_spec_decode",
    limits="int32 throughout; 1 <= min_n <= max_n.",
    writes=("token_ids", "sampled_token_ids"),
)
def npu_ngram_spec_decode(
    token_ids: torch.Tensor,
    num_tokens_no_spec: torch.Tensor,
    sampled_token_ids: torch.Tensor,
    discard_request_mask: torch.Tensor,
    vocab_size: int,
    min_n: int,
    max_n: int,
    k: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Append the sampled tokens to each request and draft what followed its last n-gram before.

    token_ids: (requests, capacity), written in place. sampled_token_ids: (requests, steps), -1
    where invalid; invalid ones are set to -1 in place. The shortest n-gram of min_n to max_n tokens
    that occurred before decides, at its first occurrence.

    Returns token_ids, the next tokens (requests,), draft tokens (requests, k) filled with -1, and
    how many of them are valid (requests,), int32.
    """
    num_requests = token_ids.shape[0]
    next_tokens = torch.zeros(num_requests, dtype=torch.int32)
    drafts = torch.full((num_requests, k), -1, dtype=torch.int32)
    valid_drafts = torch.zeros(num_requests, dtype=torch.int32)
    for request in range(num_requests):
        row, sampled = token_ids[request], sampled_token_ids[request]
        length = int(num_tokens_no_spec[request])
        invalid = (sampled == -1) | (sampled >= vocab_size)
        if int(discard_request_mask[request]):
            invalid = torch.ones_like(invalid)
        sampled[invalid] = -1
        accepted = min(int((~invalid).sum()), max(row.numel() - length, 0))
        next_tokens[request] = sampled[accepted - 1] if accepted else row[max(length - 1, 0)]
        row[length : length + accepted] = sampled[:accepted]
        if not accepted:
            continue
        followers = _after_earlier_ngram(row[: length + accepted].tolist(), min_n, max_n)[:k]
        drafts[request, : len(followers)] = torch.tensor(followers, dtype=torch.int32)
        # A row may hold -1 where sampled tokens were invalid: what follows one is no draft.
        valid_drafts[request] = followers.index(-1) if -1 in followers else len(followers)
    return token_ids, next_tokens, drafts, valid_drafts


def _after_earlier_ngram(tokens: list[int], min_n: int, max_n: int) -> list[int]:
    for size in range(min_n, min(max_n, len(tokens) - 1) + 1):
        suffix = tokens[-size:]
        for start in range(len(tokens) - size):
            if tokens[start : start + size] == suffix:
                return tokens[start + size :]
    return []


@npu_ngram_spec_decode.check
def _check_ngram_spec_decode(given: Arguments) -> None:
    require_dtype("token_ids", given.token_ids, (torch.int32,))
    require_same_dtype(
        token_ids=given.token_ids,
        num_tokens_no_spec=given.num_tokens_no_spec,
        sampled_token_ids=given.sampled_token_ids,
        discard_request_mask=given.discard_request_mask,
    )
    require_rank("token_ids", given.token_ids, 2)
    num_requests = given.token_ids.shape[0]
    require_shape("num_tokens_no_spec", given.num_tokens_no_spec, (num_requests,))
    require_shape("sampled_token_ids", given.sampled_token_ids, (num_requests, None))
    require_shape("discard_request_mask", given.discard_request_mask, (num_requests,))
    require_range("min_n", given.min_n, 1, given.max_n)
    require(given.k > 0, f"k is {given.k}; it must be 1 or more")
