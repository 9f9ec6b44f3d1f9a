// SPDX-License-Identifier: Apache-2.0
// paged_scatter: rows go through UB as bytes, whatever their type. Tokens are split over the cores;
// with fewer tokens than cores, tokens of all components are. Neighbouring tokens with a slot are
// loaded together, and those of them with neighbouring slots in one block are stored together.
#include "common.h"
#include "launchers.h"
#include "ascendc_launch.h"

namespace mkv {

constexpr int64_t kBufferBytes = 32 * 1024;
constexpr int64_t kSlotTile = 512;
constexpr int64_t kMostRows = 4095;  // blockCount of a copy
constexpr int kMostComponents = 4;

struct ScatterComponent {
  GM_ADDR rows;
  GM_ADDR cache;
  int64_t row_stride;
  int64_t block_stride;
  int64_t token_stride;
  int64_t bytes;
  int64_t block_size;
  int64_t num_blocks;
};

class PagedScatter {
 public:
  __aicore__ inline explicit PagedScatter(GM_ADDR slots) : slots_(GlobalAt<int32_t>(slots)) {
    pipe_.InitBuffer(queue_, 2, kBufferBytes);
    pipe_.InitBuffer(slot_buffer_, kSlotTile * sizeof(int32_t));
    tile_ = slot_buffer_.Get<int32_t>();
  }

  // Tokens [begin, end) of one component.
  __aicore__ inline void Scatter(const ScatterComponent& component, int64_t begin, int64_t end) {
    for (int64_t start = begin; start < end; start += kSlotTile) {
      LoadSlots(start, Least(kSlotTile, end - start));
      ScatterTile(component);
    }
  }

 private:
  __aicore__ inline void LoadSlots(int64_t start, int64_t count) {
    if (start == tile_start_ && count == tile_count_) {
      return;
    }
    // The scalar unit may still be reading the tile before.
    Sync<HardEvent::S_MTE2>();
    const DataCopyExtParams copy{1, static_cast<uint32_t>(count * sizeof(int32_t)), 0, 0, 0};
    DataCopyPad(tile_, slots_[start], copy, DataCopyPadExtParams<int32_t>{false, 0, 0, 0});
    Sync<HardEvent::MTE2_S>();
    tile_start_ = start;
    tile_count_ = count;
  }

  __aicore__ inline bool HasSlot(const ScatterComponent& component, int64_t place) const {
    const int64_t slot = tile_.GetValue(place);
    return slot >= 0 && slot < component.num_blocks * component.block_size;
  }

  __aicore__ inline void ScatterTile(const ScatterComponent& component) {
    const int64_t padded = RoundUp(component.bytes, kBlockBytes);
    // A stride that is no gap after a row (an expanded tensor) leaves one row per load.
    const bool together = component.row_stride >= component.bytes &&
                          component.row_stride - component.bytes <= UINT32_MAX;
    const int64_t most =
        together ? Most(1, Least(kMostRows, kBufferBytes / Most(padded, kBlockBytes))) : 1;
    for (int64_t place = 0; place < tile_count_;) {
      int64_t count = 0;
      while (place + count < tile_count_ && count < most && HasSlot(component, place + count)) {
        ++count;
      }
      if (count == 0) {
        ++place;
        continue;
      }
      for (int64_t at = 0; at < component.bytes; at += kBufferBytes) {
        MoveRows(component, place, count, at, Least(kBufferBytes, component.bytes - at));
      }
      place += count;
    }
  }

  // Bytes [at, at + bytes) of `count` rows; more than one row only if they are whole.
  __aicore__ inline void MoveRows(
      const ScatterComponent& component, int64_t place, int64_t count, int64_t at, int64_t bytes) {
    const auto rows = GlobalAt<uint8_t>(component.rows);
    auto buffer = queue_.AllocTensor<uint8_t>();
    const auto gap = count > 1 ? static_cast<uint32_t>(component.row_stride - bytes) : 0;
    const DataCopyExtParams load{
        static_cast<uint16_t>(count), static_cast<uint32_t>(bytes), gap, 0, 0};
    DataCopyPad(
        buffer, rows[(tile_start_ + place) * component.row_stride + at], load,
        DataCopyPadExtParams<uint8_t>{false, 0, 0, 0});
    queue_.EnQue(buffer);
    buffer = queue_.DeQue<uint8_t>();
    for (int64_t stored = 0; stored < count;) {
      stored += StoreRun(component, buffer, place, stored, count, at, bytes);
    }
    queue_.FreeTensor(buffer);
  }

  // Stores the rows from `first` on whose slots follow each other in one block; returns how many.
  __aicore__ inline int64_t StoreRun(
      const ScatterComponent& component, const LocalTensor<uint8_t>& buffer, int64_t place,
      int64_t first, int64_t count, int64_t at, int64_t bytes) {
    const int64_t slot = tile_.GetValue(place + first);
    const int64_t block = slot / component.block_size;
    const int64_t offset = slot - block * component.block_size;
    const bool together = component.token_stride >= bytes;
    const int64_t most = together ? Least(count - first, component.block_size - offset) : 1;
    int64_t run = 1;
    while (run < most && tile_.GetValue(place + first + run) == slot + run) {
      ++run;
    }
    const auto gap = run > 1 ? static_cast<uint32_t>(component.token_stride - bytes) : 0;
    const DataCopyExtParams store{
        static_cast<uint16_t>(run), static_cast<uint32_t>(bytes), 0, gap, 0};
    const auto cache = GlobalAt<uint8_t>(component.cache);
    DataCopyPad(
        cache[block * component.block_stride + offset * component.token_stride + at],
        buffer[first * RoundUp(bytes, kBlockBytes)], store);
    return run;
  }

  TPipe pipe_;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> queue_;
  TBuf<TPosition::VECIN> slot_buffer_;
  LocalTensor<int32_t> tile_;
  GlobalTensor<int32_t> slots_;
  int64_t tile_start_ = -1;
  int64_t tile_count_ = 0;
};

__aicore__ inline void ScatterAll(
    GM_ADDR slots, int64_t num_tokens, int32_t num_components, const ScatterComponent* components) {
  const int64_t cores = GetBlockNum();
  const int64_t core = GetBlockIdx();
  PagedScatter op(slots);
  if (num_tokens >= cores) {
    const int64_t share = CeilDivide(num_tokens, cores);
    const int64_t begin = Least(core * share, num_tokens);
    const int64_t end = Least(begin + share, num_tokens);
    for (int32_t index = 0; index < num_components; ++index) {
      op.Scatter(components[index], begin, end);
    }
    return;
  }
  for (int64_t task = core; task < num_tokens * num_components; task += cores) {
    const int64_t token = task / num_components;
    op.Scatter(components[task % num_components], token, token + 1);
  }
}

}  // namespace mkv

// The signature is written out: the build finds it in the text to make the launch from it.
extern "C" __global__ __aicore__ void mkv_paged_scatter_kernel(
    GM_ADDR slots, const int64_t num_tokens, const int32_t num_components,  //
    GM_ADDR rows_0, GM_ADDR cache_0, const int64_t row_stride_0, const int64_t block_stride_0,
    const int64_t token_stride_0, const int64_t bytes_0, const int64_t block_size_0,
    const int64_t num_blocks_0,  //
    GM_ADDR rows_1, GM_ADDR cache_1, const int64_t row_stride_1, const int64_t block_stride_1,
    const int64_t token_stride_1, const int64_t bytes_1, const int64_t block_size_1,
    const int64_t num_blocks_1,  //
    GM_ADDR rows_2, GM_ADDR cache_2, const int64_t row_stride_2, const int64_t block_stride_2,
    const int64_t token_stride_2, const int64_t bytes_2, const int64_t block_size_2,
    const int64_t num_blocks_2,  //
    GM_ADDR rows_3, GM_ADDR cache_3, const int64_t row_stride_3, const int64_t block_stride_3,
    const int64_t token_stride_3, const int64_t bytes_3, const int64_t block_size_3,
    const int64_t num_blocks_3) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  const mkv::ScatterComponent components[mkv::kMostComponents] = {
      {rows_0, cache_0, row_stride_0, block_stride_0, token_stride_0, bytes_0, block_size_0,
       num_blocks_0},
      {rows_1, cache_1, row_stride_1, block_stride_1, token_stride_1, bytes_1, block_size_1,
       num_blocks_1},
      {rows_2, cache_2, row_stride_2, block_stride_2, token_stride_2, bytes_2, block_size_2,
       num_blocks_2},
      {rows_3, cache_3, row_stride_3, block_stride_3, token_stride_3, bytes_3, block_size_3,
       num_blocks_3},
  };
  mkv::ScatterAll(slots, num_tokens, num_components, components);
}

#define MKV_COMPONENT(c)                                                              \
  (c).rows, (c).cache, (c).row_stride, (c).block_stride, (c).token_stride, (c).bytes, \
      (c).block_size, (c).num_blocks

extern "C" void mkv_ascend_paged_scatter(
    uint32_t cores, void* stream, uint8_t* slots, int64_t num_tokens, int32_t num_components,
    const MkvScatterComponent* components) {
  MKV_LAUNCH(
      mkv_paged_scatter_kernel, cores, stream, slots, num_tokens, num_components,
      MKV_COMPONENT(components[0]), MKV_COMPONENT(components[1]), MKV_COMPONENT(components[2]),
      MKV_COMPONENT(components[3]));
}
