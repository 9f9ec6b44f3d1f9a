# SPDX-License-Identifier: Apache-2.0
"""Tests, and what supports them (``tests.support``); never installed."""
