# SPDX-License-Identifier: Apache-2.0
"""Methods of speculative decoding that our speculators serve in model runner V2."""

from __future__ import annotations

METHODS = ("draft_model", "eagle", "eagle3", "mtp", "dflash")
