# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of ``advise`` beside plain loops, and what must hold of any prediction."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.advice.prediction import (
    Drafting,
    Run,
    Serving,
    acceptance_of,
    length_of,
    moved,
    predict,
)
from mkv_ascend.advice.work import (
    CHIPS,
    HOST_TERMS,
    Cache,
    Calibration,
    Device,
    Experts,
    LayerWork,
    ModelWork,
    Weights,
    forward,
    read_device,
)

DEVICE = Device(
    memory_bytes=2.0**36,
    bytes_per_second=1e12,
    flop_per_second=1e14,
    bandwidth_share=0.5,
    flop_share=0.5,
    cube_seconds=5e-6,
    vector_seconds=2e-6,
    communication_seconds=1e-5,
)
HOST = Calibration({"step": 0.01, "layer": 0.002, "request": 0.003, "speculation": 0.02}, 0.3, "-")
NO_HOST = Calibration(dict.fromkeys(HOST_TERMS, 0.0), 0.3, "-")
NONE = Weights()


def of(elements: int) -> Weights:
    """In 16 bits."""
    return Weights(elements, 2 * elements)


CACHE = Cache(4096, pair_flop=8192)
LAYER = LayerWork(of(10**8), (CACHE,), cube=5, vector=5, communication=2, number=4)
TARGET = ModelWork((LAYER,), head=of(10**8))
DRAFT = ModelWork((replace(LAYER, weights=of(10**6), number=2),), head=of(10**7))
SERVING = Serving(TARGET, DEVICE, NO_HOST, 1000)


def test_a_step_is_what_a_loop_over_layers_adds_up() -> None:
    read = 1e8 * 2.0
    flop = 2.0 * 6 * 1e8
    starts = 7e-6
    for _ in range(4):
        read += 1e8 * 2
        for _request in range(3):
            for _token in range(1000):
                read += 2048 * 2
        for _row in range(6):
            flop += 2 * 1e8 + 1000 * 8192
        starts += 5 * 5e-6 + 5 * 2e-6 + 2 * 1e-5
    cost = forward(TARGET, DEVICE, requests=3, tokens=2, context=1000)
    assert (cost.bytes, cost.flop) == (read, flop)
    assert cost.starts == pytest.approx(starts)
    assert cost.seconds(DEVICE) == pytest.approx(max(read / 5e11, flop / 5e13) + starts)


def test_a_window_bounds_what_is_read_and_a_state_is_read_and_written() -> None:
    windowed = replace(LAYER, caches=(replace(CACHE, window=128),))
    both = forward(ModelWork((windowed, LAYER), head=NONE), DEVICE, 1, 1, 1000)
    alone = [forward(ModelWork((LAYER,), head=NONE), DEVICE, 1, 1, seen) for seen in (128, 1000)]
    assert both.bytes == sum(cost.bytes for cost in alone)
    assert both.flop == sum(cost.flop for cost in alone)
    recurrent = ModelWork((LayerWork(NONE, state_bytes=128),), head=NONE)
    assert forward(recurrent, DEVICE, 3, 1, 1000).bytes == 3 * 2 * 128


def test_a_layer_reads_each_of_its_caches() -> None:
    crossed = replace(LAYER, caches=(CACHE, Cache(100, pair_flop=7, window=10)))
    found, plain = (
        forward(ModelWork((layer,), head=NONE), DEVICE, 2, 3, 1000) for layer in (crossed, LAYER)
    )
    assert found.bytes - plain.bytes == 4 * 2 * 10 * 100
    assert found.flop - plain.flop == 4 * 6 * 10 * 7


def test_weights_of_half_the_bytes_are_read_in_half_the_time() -> None:
    """As many operations: only what is read is less."""
    (whole,) = TARGET.layers
    halved = ModelWork((replace(whole, weights=Weights(10**8, 10**8), caches=()),), head=NONE)
    plain = ModelWork((replace(whole, caches=()),), head=NONE)
    costs = [forward(model, DEVICE, 1, 1, 1000) for model in (halved, plain)]
    assert costs[0].bytes * 2 == costs[1].bytes == 4 * 2 * 10**8
    assert costs[0].flop == costs[1].flop


def test_experts_touched_by_drawing_them() -> None:
    """Of 4 experts each token takes one: every draw of 3 tokens, counted."""
    draws = [{a, b, c} for a in range(4) for b in range(4) for c in range(4)]
    experts = Experts(4, 1, of(10))
    assert experts.touched(3) == pytest.approx(sum(map(len, draws)) / len(draws))
    sparse = ModelWork((LayerWork(NONE, experts=experts),), head=NONE)
    cost = forward(sparse, DEVICE, 1, 3, 0)
    assert cost.bytes == pytest.approx(2 * 10 * sum(map(len, draws)) / len(draws))
    assert cost.flop == 2 * 3 * 10


def test_passes_and_host_time_by_hand() -> None:
    drafting = Drafting(DRAFT, first_tokens=2, ahead=False)
    serving = replace(SERVING, calibration=HOST, full_graphs=False, ahead=False)
    found = predict(serving, drafting, requests=8, tokens=3, length=2.0)
    passes = [forward(DRAFT, DEVICE, 8, tokens, 1000).seconds(DEVICE) for tokens in (5, 1, 1)]
    assert found.draft == pytest.approx(sum(passes))
    assert found.host == pytest.approx(0.01 + 0.002 * (4 + 3 * 2) + 0.003 * 8 + 0.02)
    assert found.plain_host == pytest.approx(0.01 + 0.002 * 4 + 0.003 * 8)
    step = found.verify + found.draft + found.host
    assert found.speed_up == pytest.approx(2.0 * (found.plain + found.plain_host) / step)
    assert found.bounds == (
        pytest.approx(found.speed_up / 1.3),
        pytest.approx(found.speed_up / 0.7),
    )
    at_once = predict(serving, Drafting(DRAFT, at_once=True), 8, 3, 2.0)
    assert at_once.draft == forward(DRAFT, DEVICE, 8, 4, 1000).seconds(DEVICE)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("drafted", [False, True])
def test_steps_with_a_proposal_are_scheduled_by_themselves(plain: bool, drafted: bool) -> None:
    """Host time of scheduling is there where a step waits for the one before it, and only there."""
    serving = replace(SERVING, calibration=HOST, ahead=plain)
    found = predict(serving, Drafting(DRAFT, ahead=drafted), requests=2, tokens=3, length=2.0)
    assert found.plain_host == pytest.approx(0.006 + (0.0 if plain else 0.01))
    assert found.host == pytest.approx(0.006 + (0.0 if drafted else 0.01 + 0.02))


def test_length_by_enumerating_what_is_accepted() -> None:
    """Each outcome of three draft tokens with its chance."""
    expected = 0.0
    for accepted, chance in ((0, 0.3), (1, 0.7 * 0.3), (2, 0.49 * 0.3), (3, 0.343)):
        expected += (accepted + 1) * chance
    assert length_of(0.7, 3) == pytest.approx(expected)
    assert acceptance_of(expected, 3) == pytest.approx(0.7)
    with pytest.raises(ValueError, match="1 to 4 tokens"):
        acceptance_of(4.5, 3)


@given(
    requests=st.integers(1, 256),
    tokens=st.integers(1, 15),
    acceptance=st.floats(0, 1),
    context=st.integers(1, 131_072),
    more=st.floats(1, 100),
    chip=st.sampled_from(CHIPS),
)
def test_what_holds_of_every_prediction(
    requests: int, tokens: int, acceptance: float, context: int, more: float, chip: str
) -> None:
    serving = Serving(TARGET, read_device(chip), HOST, context, ahead=False)
    drafting = Drafting(DRAFT, ahead=False)
    found = predict(serving, drafting, requests, tokens, length_of(acceptance, tokens))
    assert predict(serving, drafting, requests, 0, 1.0).speed_up == 1
    assert predict(serving, drafting, requests, tokens, length_of(0, tokens)).speed_up < 1
    assert found.speed_up <= tokens + 1
    assert found.verify >= found.plain
    heavier = ModelWork((replace(LAYER, weights=of(round(10**8 * more))),), TARGET.head)
    slower = predict(replace(serving, target=heavier), drafting, requests, tokens, found.length)
    assert slower.verify >= found.verify
    assert slower.plain >= found.plain
    longer = replace(serving, context=context * 2)
    assert predict(longer, drafting, requests, tokens, found.length).verify >= found.verify
    assert found.bounds[0] <= found.speed_up <= found.bounds[1]


def test_host_time_is_moved_by_the_mean_of_runs_and_none_counts_for_less_than_no_host() -> None:
    serving = Serving(TARGET, DEVICE, HOST, 1000, ahead=False)
    step = predict(serving, Drafting(), 3, 0, 1.0)
    slow = Run(3, 1000, step.plain + step.plain_host + 0.25)
    too_fast = Run(3, 1000, step.plain / 2)
    shifted = moved(serving, [slow, too_fast])
    host = (step.plain_host + 0.25 + 0.0) / 2
    assert predict(shifted, Drafting(), 3, 0, 1.0).plain_host == pytest.approx(host)
