# SPDX-License-Identifier: Apache-2.0
"""Which keys of a sequence each rank of decode context parallelism keeps, and where.

Ranks keep stretches of ``interleave`` tokens in turn. One block id stands for a block on each rank,
so that a column of a block table holds ``ranks`` times a block's tokens. Positions and lengths of a
plan are those of whole sequences. Only slots, and the lengths that attention reads, are a rank's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ContextShares:
    """The shares of all ranks, as one of them sees them.

    Attributes:
        ranks: number of ranks that share a sequence.
        rank: this one's number among them.
        interleave: tokens in a row that one rank keeps; a divisor of each block's.
    """

    ranks: int
    rank: int
    interleave: int

    def lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """Keys of each rank, [B, ranks], for sequences of ``lengths`` [B] tokens."""
        first = torch.arange(self.ranks, dtype=lengths.dtype, device=lengths.device)
        return self._kept(lengths[:, None], first * self.interleave)

    def own_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """Keys of this rank, of the shape of ``lengths``."""
        return self._kept(lengths, self.rank * self.interleave)

    def _kept(self, lengths: torch.Tensor, first: torch.Tensor | int) -> torch.Tensor:
        """Keys of ranks whose stretch in each round of all ranks begins at ``first``."""
        of_round = self.ranks * self.interleave
        rest = lengths % of_round - first
        return lengths // of_round * self.interleave + rest.clamp(0, self.interleave)

    def shared_block_size(self, block_size: int) -> int:
        """Tokens of a sequence in one column of a block table.

        Raises:
            ValueError: a stretch of one rank does not end with a block.
        """
        if block_size % self.interleave:
            raise ValueError(
                f"ranks keep stretches of {self.interleave} tokens in turn, which do not divide "
                f"blocks of {block_size} tokens; let them be a divisor"
            )
        return block_size * self.ranks

    def own_slots(self, slots: torch.Tensor, block_size: int) -> torch.Tensor:
        """Slots on this rank; -1 where another one keeps the token, or none.

        Args:
            slots: slots in blocks of ``shared_block_size`` tokens, or -1.
            block_size: tokens in a block of one rank.
        """
        shared, of_round = self.shared_block_size(block_size), self.ranks * self.interleave
        inside = slots % shared
        offset = inside // of_round * self.interleave + inside % self.interleave
        kept = (slots >= 0) & (inside % of_round // self.interleave == self.rank)
        return torch.where(kept, slots // shared * block_size + offset, -1)

    def hidden_keys(self, positions: torch.Tensor, keys: int) -> torch.Tensor:
        """Where a token must not see a key of this rank: bool [*positions' shape, keys].

        A token at ``positions`` sees the keys up to its own.
        """
        seen = self.own_lengths(positions + 1)
        return torch.arange(keys, device=positions.device) >= seen[..., None]
