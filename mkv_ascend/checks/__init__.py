# SPDX-License-Identifier: Apache-2.0
"""Sizes of models by the numbers of their config.json, for ``mkv-ascend advise``."""
