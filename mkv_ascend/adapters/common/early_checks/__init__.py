# SPDX-License-Identifier: Apache-2.0
"""Refusals in the process that the user started, before an engine starts."""
