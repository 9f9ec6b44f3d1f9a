# SPDX-License-Identifier: Apache-2.0
"""Replacements of foreign code that model runner V2 needs."""
