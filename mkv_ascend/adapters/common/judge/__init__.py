# SPDX-License-Identifier: Apache-2.0
"""Judging a configuration that vLLM made: in the process that the user started, and in checks."""
