# SPDX-License-Identifier: Apache-2.0
"""What adapters of several hosts share. It imports no adapter of one host.

What differs between hosts comes from the adapter: as an argument, a subclass, or a function that
the adapter registers.
"""
