// SPDX-License-Identifier: Apache-2.0
// The slots of a tile of expand_inputs, in several KV groups at once.
#ifndef MKV_ASCEND_ASCEND_EXPAND_SLOTS_H_
#define MKV_ASCEND_ASCEND_EXPAND_SLOTS_H_

#include "expand_tile.h"

namespace mkv {

// Groups that are worked on at once, and block ids that they have room for: those of any four.
constexpr int64_t kMostTogether = 8;
constexpr int64_t kIds = 4 * kTileRows * kTileLanes;

// Groups of one block size, side by side in the group table.
struct Batch {
  int64_t first;
  int64_t count;
  int64_t room;  // ids of a group
  Group groups[kMostTogether];
};

class TileSlots {
 public:
  __aicore__ inline void Init(Memory& memory) {
    ids_ = memory.Words(kIds);
    bases_ = memory.Words(kTileLanes);
    places_ = memory.Words(kTileLanes);
    offsets_ = memory.Words(kTileLanes);
    columns_ = memory.Words(kTileLanes);
    scratch_ = memory.Words(kTileLanes);
    valid_ = memory.Words(kTileLanes);
    slots_ = memory.Words(kMostTogether * kTileLanes);
  }

  // Loads the block ids that the tile's requests need in the groups from `first` on, each id once.
  // After V_S.
  __aicore__ inline void Fetch(
      const Expansion& all, const Tile& tile, const TileRequests& requests, int64_t first) {
    const auto table = GlobalAt<int64_t>(all.in.group_table);
    // A request has no more ids than rows, and begins on 32 bytes.
    batch_.room = RoundUp(tile.rows + tile.requests * (kTileRows - 1), kTileRows);
    batch_.first = first;
    batch_.count = 0;
    const int64_t most = Least(all.in.num_groups - first, Least(kMostTogether, kIds / batch_.room));
    while (batch_.count < most) {
      const Group group = ReadGroup(table, first + batch_.count);
      if (batch_.count > 0 && group.block_size != batch_.groups[0].block_size) {
        break;
      }
      batch_.groups[batch_.count++] = group;
    }
    int64_t begin = tile.begin;
    int64_t place = 0;
    for (int64_t lane = 0; lane < tile.requests; ++lane) {
      int64_t end = tile.rows;
      if (lane + 1 < tile.requests) {
        end = requests.StartOf(lane + 1) + (tile.request + lane + 1) * all.more - tile.row;
      }
      const int64_t from = requests.PositionOf(lane) - Least(begin, 0);
      place += FetchOf(all, tile.request + lane, lane, place, from, from + end - Most(begin, 0));
      begin = end;
    }
  }

  // Computes and stores the slots of the groups that were fetched. `positions` of the tile's rows,
  // `written` 1 where they are that of a token, `bytes` of their requests.
  __aicore__ inline void Write(
      const Expansion& all, const Tile& tile, const Vector& positions, const Vector& written,
      const Vector& bytes) {
    Sync<HardEvent::S_V>();
    Sync<HardEvent::MTE2_V>();
    const Lanes lanes(tile.lanes);
    FindIds(lanes, positions, written, bytes);
    for (int64_t index = 0; index < batch_.count; ++index) {
      const Group& group = batch_.groups[index];
      const Vector slots = slots_[static_cast<uint32_t>(index * kTileLanes)];
      Vector valid = written;
      if (group.columns * group.block_size < all.in.max_model_len ||
          tile.request + tile.requests > all.in.table_rows) {
        Restrict(all, tile, group, positions, bytes);
        lanes.Mul(valid_, valid_, written);
        valid = valid_;
      }
      lanes.Take(slots, ids_, columns_, index * batch_.room * 4);
      lanes.Muls(slots, slots, group.block_size);
      lanes.Add(slots, slots, offsets_);
      // -1 where there is none; what the ids hold there does not matter.
      lanes.Mul(slots, slots, valid);
      lanes.Add(slots, slots, valid);
      lanes.Adds(slots, slots, -1);
    }
    Sync<HardEvent::V_MTE3>();
    const int64_t rows = Least(tile.rows, all.in.num_out_tokens - tile.row);
    for (int64_t index = 0; index < batch_.count && rows > 0; ++index) {
      const int64_t to = (batch_.first + index) * all.in.slot_stride + tile.row;
      Store(all.in.slots + to * 4, slots_[static_cast<uint32_t>(index * kTileLanes)], rows * 4);
    }
  }

  // The group behind those that were written; what they used may be used anew.
  __aicore__ inline int64_t Next() const {
    Sync<HardEvent::V_S>();
    Sync<HardEvent::V_MTE2>();
    Sync<HardEvent::MTE3_V>();
    return batch_.first + batch_.count;
  }

 private:
  // The ids for positions from..to - 1 of one request, in all groups; how many words they take.
  __aicore__ inline int64_t FetchOf(
      const Expansion& all, int64_t request, int64_t lane, int64_t place, int64_t from,
      int64_t to) {
    const int64_t block_size = batch_.groups[0].block_size;
    const int64_t last = Least(to, all.in.max_model_len) - 1;
    const int64_t first = Between(from, 0, Most(last, 0));
    const int64_t column = first / block_size;
    const int64_t count = Most(last, 0) / block_size - column + 1;
    bases_.SetValue(static_cast<uint32_t>(lane), static_cast<int32_t>(column * block_size));
    places_.SetValue(static_cast<uint32_t>(lane), static_cast<int32_t>(place * 4));
    for (int64_t index = 0; index < batch_.count && request < all.in.table_rows; ++index) {
      const Group& group = batch_.groups[index];
      const int64_t inside = Least(count, group.columns - column);
      if (inside > 0 && from <= last) {
        const int64_t id = request * group.row_stride + column;
        Load(
            ids_[static_cast<uint32_t>(index * batch_.room + place)],
            reinterpret_cast<GM_ADDR>(group.table + id), inside * 4);
      }
    }
    return RoundUp(count, kTileRows);
  }

  // offsets_: of each row in its block; columns_: the byte of its id. 0 where nothing is written.
  __aicore__ inline void FindIds(
      const Lanes& lanes, const Vector& positions, const Vector& written, const Vector& bytes) {
    const int64_t block_size = batch_.groups[0].block_size;
    lanes.Take(offsets_, bases_, bytes);
    lanes.Sub(offsets_, positions, offsets_);
    lanes.Mul(offsets_, offsets_, written);
    // The block behind the request's first, counting from 0. A block as long as the tile has no
    // second one behind it.
    if (block_size >= kTileLanes) {
      lanes.Reached(columns_, offsets_, block_size);
    } else {
      lanes.Divide(columns_, offsets_, scratch_, block_size);
    }
    lanes.Muls(scratch_, columns_, block_size);
    lanes.Sub(offsets_, offsets_, scratch_);
    lanes.Muls(columns_, columns_, 4);
    lanes.Take(scratch_, places_, bytes);
    lanes.Add(columns_, columns_, scratch_);
    lanes.Mul(columns_, columns_, written);
  }

  // valid_: 1 where the group's table has a row and a column.
  __aicore__ inline void Restrict(
      const Expansion& all, const Tile& tile, const Group& group, const Vector& positions,
      const Vector& bytes) {
    const Lanes lanes(tile.lanes);
    const int64_t limit = Least(group.columns * group.block_size, all.in.max_model_len);
    lanes.Mins(valid_, positions, limit);
    lanes.Reached(valid_, valid_, limit);
    const int64_t rows = Between(all.in.table_rows - tile.request, 0, kTileLanes + 1);
    lanes.Reached(scratch_, bytes, rows * 4);
    lanes.Add(valid_, valid_, scratch_);
    lanes.Mins(valid_, valid_, 1);
    lanes.Muls(valid_, valid_, -1);
    lanes.Adds(valid_, valid_, 1);
  }

  Batch batch_;
  Vector ids_, bases_, places_, offsets_, columns_, scratch_, valid_, slots_;
};

}  // namespace mkv

#endif  // MKV_ASCEND_ASCEND_EXPAND_SLOTS_H_
