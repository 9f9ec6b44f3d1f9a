# SPDX-License-Identifier: Apache-2.0
"""Proposals of draft tokens, independent of the host: plan, metadata, strategies and graphs."""
