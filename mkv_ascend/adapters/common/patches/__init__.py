# SPDX-License-Identifier: Apache-2.0
"""Replacements of foreign code: one file for each feature, with its records."""
