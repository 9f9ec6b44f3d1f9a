# SPDX-License-Identifier: Apache-2.0
"""Drafts in model runner V2."""
