// SPDX-License-Identifier: Apache-2.0
// KV groups as the kernels for CPU tensors read them. No torch here: plain memory and integers.
#pragma once

#include <stddef.h>

#include <cstdint>
#include <vector>

namespace mkv::ops {

constexpr int32_t kPaddingSlot = -1;

// One KV group's block table, and its block size with the shift that divides by it, if any.
struct Group {
  const int32_t* table;
  int64_t rows;
  int64_t row_stride;
  int64_t columns;
  int64_t block_size;
  int shift;  // -1: the block size is not a power of two

  int64_t column(int64_t position) const {
    return shift >= 0 ? position >> shift : position / block_size;
  }
};

// Runs are short as often as long: plain loops, which a compiler turns into no call.
template <typename T>
inline void fill(T* to, int64_t count, T value) {
  for (int64_t place = 0; place < count; ++place) {
    to[place] = value;
  }
}

template <typename T>
inline void count_up(T* to, int64_t count, int64_t first) {
  for (int64_t place = 0; place < count; ++place) {
    to[place] = static_cast<T>(first + place);
  }
}

// How a group's block table gives slots, with what is looked at once for many of them.
template <bool kShifts>
class SlotRule {
 public:
  explicit SlotRule(const Group& group)
      : table_(group.table),
        row_stride_(group.row_stride),
        block_size_(group.block_size),
        shift_(group.shift),
        limit_(static_cast<uint64_t>(group.columns * group.block_size)) {}

  const int32_t* row(int64_t request) const {
    return table_ + request * row_stride_;
  }

  // The slot of a position by a request's row, -1 behind the table and before 0.
  int32_t slot(const int32_t* row, int64_t position) const {
    if (static_cast<uint64_t>(position) >= limit_) {
      return kPaddingSlot;
    }
    const int64_t column = kShifts ? position >> shift_ : position / block_size_;
    return static_cast<int32_t>((row[column] - column) * block_size_ + position);
  }

 private:
  const int32_t* table_;
  int64_t row_stride_;
  int64_t block_size_;
  int shift_;
  uint64_t limit_;
};

// Calls `use` with the group's rule: which kind it is, is then asked once.
template <typename Use>
void with_rule(const Group& group, const Use& use) {
  if (group.shift >= 0) {
    use(SlotRule<true>(group));
  } else {
    use(SlotRule<false>(group));
  }
}

inline int shift_of(int64_t block_size) {
  if (block_size <= 0 || (block_size & (block_size - 1)) != 0) {
    return -1;
  }
  int shift = 0;
  while ((int64_t{1} << shift) < block_size) {
    ++shift;
  }
  return shift;
}

// A vector of int32 or int64 elements, read as int64.
class Indices {
 public:
  Indices(const void* data, bool wide) : data_(data), wide_(wide) {}

  int64_t operator[](int64_t place) const {
    return wide_ ? static_cast<const int64_t*>(data_)[place]
                 : static_cast<const int32_t*>(data_)[place];
  }

  // Calls `use` with the elements: which width they have is then asked once.
  template <typename Use>
  void with_elements(const Use& use) const {
    if (wide_) {
      use(static_cast<const int64_t*>(data_));
    } else {
      use(static_cast<const int32_t*>(data_));
    }
  }

  explicit operator bool() const {
    return data_ != nullptr;
  }

 private:
  const void* data_;
  bool wide_;
};

// A vector of int32 or int64 elements, written from int64.
class OutIndices {
 public:
  OutIndices(void* data, bool wide) : data_(data), wide_(wide) {}

  void set(int64_t place, int64_t value) const {
    if (wide_) {
      static_cast<int64_t*>(data_)[place] = value;
    } else {
      static_cast<int32_t*>(data_)[place] = static_cast<int32_t>(value);
    }
  }

  void fill(int64_t place, int64_t count, int64_t value) const {
    if (wide_) {
      ops::fill(static_cast<int64_t*>(data_) + place, count, value);
    } else {
      ops::fill(static_cast<int32_t*>(data_) + place, count, static_cast<int32_t>(value));
    }
  }

  // first, first + 1, ...
  void count_up(int64_t place, int64_t count, int64_t first) const {
    if (wide_) {
      ops::count_up(static_cast<int64_t*>(data_) + place, count, first);
    } else {
      ops::count_up(static_cast<int32_t*>(data_) + place, count, first);
    }
  }

  explicit operator bool() const {
    return data_ != nullptr;
  }

 private:
  void* data_;
  bool wide_;
};

}  // namespace mkv::ops
