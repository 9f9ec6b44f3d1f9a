# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of the plugin: what there is, and the way from workers to ``/metrics``."""
