# SPDX-License-Identifier: Apache-2.0
"""One module a backend: metadata of a draft's passes, and their captured launches.

A new backend is a class in a module of its own and a line in ``table.py``.
"""
