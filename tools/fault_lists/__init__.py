# SPDX-License-Identifier: Apache-2.0
"""Faults to plant in the adapters, and the tests that ought to notice each of them."""

from fault import Fault

from fault_lists import states, steps

FAULTS: tuple[Fault, ...] = (*states.FAULTS, *steps.FAULTS)
