# SPDX-License-Identifier: Apache-2.0
"""A demo of the plugin over HTTP: ``make demo``."""
