# SPDX-License-Identifier: Apache-2.0
"""A model checker: who wrote what where, in every step of a scheduler and a draft."""
