// SPDX-License-Identifier: Apache-2.0
// DataCopy and DataCopyPad. Semantics: "DataCopyPad" of the public AscendC API pages, CANN 9.1.
#ifndef MKV_ASCENDC_HOST_COPY_H_
#define MKV_ASCENDC_HOST_COPY_H_

#include <algorithm>
#include <cstring>
#include <string>

#include "parameters.h"
#include "pipe.h"

namespace ascendc_host {

template <typename T>
constexpr bool kCopies = sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8;

constexpr uint64_t RoundedUp(uint64_t bytes) {
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

// A copy meets VECIN or VECOUT buffers; that VECCALC works too is documented for later chips only.
inline void NeedCopyPosition(Instruction& instruction, const UbPlace& place) {
  const auto& buffer = instruction.core().buffer(place.buffer);
  if (buffer.position == AscendC::TPosition::VECCALC) {
    instruction.Add(
        "copy_position", "copies take VECIN or VECOUT buffers, not VECCALC", buffer.name);
  }
}

// Global memory moves in sectors of 32 bytes: what a copy touches in part moves whole.
inline int64_t SectorBytes(uint64_t at, uint64_t bytes) {
  const uint64_t first = at / kBlockBytes * kBlockBytes;
  return bytes == 0 ? 0 : static_cast<int64_t>(RoundedUp(at + bytes - first));
}

inline void CountRead(Core& core, uint64_t at, uint64_t bytes) {
  core.counters().read_bytes += static_cast<int64_t>(bytes);
  core.counters().read_cost += SectorBytes(at, bytes);
}

inline void CountWrite(Core& core, uint64_t at, uint64_t bytes) {
  core.counters().write_bytes += static_cast<int64_t>(bytes);
  core.counters().write_cost += SectorBytes(at, bytes);
}

// A copy sees memory, not what the data cache of its own core holds.
inline void NeedClean(Instruction& instruction, const GmPlace& from, uint64_t bytes) {
  ForEachLine(from.at, bytes, [&](uint64_t line) {
    const auto* state = instruction.core().cache().Find(line);
    if (state != nullptr && (state->dirty & BytesOfLine(line, from.at, bytes)) != 0) {
      instruction.Add(
          "cache", "copies what GlobalTensor::SetValue wrote at " + Text(state->dirty_where) +
                       " and the data cache still holds; DataCacheCleanAndInvalid is missing");
    }
  });
}

// What a copy wrote, the scalar unit of its core reads only after an invalidation. A line that it
// wrote to itself goes back whole, over what a copy brought there.
inline void NoteCopied(
    Instruction& instruction, const GmPlace& to, uint64_t bytes, const Where& where) {
  ForEachLine(to.at, bytes, [&](uint64_t line) {
    auto& state = instruction.core().cache().At(line);
    state.copied |= BytesOfLine(line, to.at, bytes);
    state.copied_where = where;
    if (state.dirty != 0) {
      instruction.Add(
          "cache", "copies into a 64-byte line that GlobalTensor::SetValue wrote to at " +
                       Text(state.dirty_where) +
                       "; the line goes back over it. DataCacheCleanAndInvalid is missing");
    }
  });
}

// One block from global memory into UB; `left` and `right` are bytes.
inline void LoadBlock(
    Instruction& instruction, const UbPlace& to, const GmPlace& from, uint64_t bytes, uint64_t left,
    uint64_t right, const void* pad, uint64_t pad_bytes) {
  auto& core = instruction.core();
  const uint64_t whole = RoundedUp(left + bytes + right);
  instruction.Read(from, bytes);
  NeedClean(instruction, from, bytes);
  instruction.Write(to, whole);
  uint8_t* target = core.ub(to.at);
  for (uint64_t i = 0; i < whole; ++i) {
    if (i == left) {
      i += bytes;
    }
    if (i < whole) {
      target[i] = static_cast<uint8_t>(core.random().Next());
    }
  }
  instruction.SetUndefined(to, whole, true);
  if (pad != nullptr) {
    for (uint64_t i = 0; i < left; i += pad_bytes) {
      std::memcpy(target + i, pad, pad_bytes);
    }
    for (uint64_t i = 0; i < right; i += pad_bytes) {
      std::memcpy(target + left + bytes + i, pad, pad_bytes);
    }
    instruction.SetUndefined(to, left + bytes + right, false);
  }
  std::memcpy(target + left, reinterpret_cast<const void*>(from.at), bytes);
  std::memset(core.undefined(to.at + static_cast<uint32_t>(left)), 0, bytes);
  CountRead(core, from.at, bytes);
}

inline void StoreBlock(
    Instruction& instruction, const GmPlace& to, const UbPlace& from, uint64_t bytes) {
  auto& core = instruction.core();
  instruction.Read(from, bytes);
  instruction.NeedDefined(from, bytes, "stores");
  instruction.Write(to, bytes);
  std::memcpy(reinterpret_cast<void*>(to.at), core.ub(from.at), bytes);
  CountWrite(core, to.at, bytes);
  NoteCopied(instruction, to, bytes, instruction.where());
}

inline void NeedCopyParameters(
    Instruction& instruction, const AscendC::DataCopyExtParams& copy, uint64_t element_bytes) {
  if (copy.blockCount > 4095 || copy.blockLen > 2097151) {
    instruction.Fail(
        "argument", "blockCount " + std::to_string(copy.blockCount) + " and blockLen " +
                        std::to_string(copy.blockLen) + "; at most 4095 and 2097151");
  }
  if (copy.blockLen % element_bytes != 0) {
    instruction.Fail(
        "argument", "blockLen of " + std::to_string(copy.blockLen) +
                        " bytes is not a multiple of the element's " +
                        std::to_string(element_bytes));
  }
}

inline uint64_t NeedWholeBlocks(Instruction& instruction, uint64_t bytes) {
  if (bytes % kBlockBytes != 0 || bytes == 0) {
    instruction.Fail(
        "argument", "DataCopy moves whole 32-byte blocks, asked for " + std::to_string(bytes) +
                        " bytes; take DataCopyPad");
  }
  return bytes;
}

// UB places are 32-bit; one past the end of a buffer is enough to be refused.
inline UbPlace Moved(const UbPlace& place, uint64_t bytes) {
  auto moved = place;
  moved.at = static_cast<uint32_t>(std::min<uint64_t>(place.at + bytes, UINT32_MAX));
  return moved;
}

}  // namespace ascendc_host

namespace AscendC {

template <typename T>
void DataCopy(
    const LocalTensor<T>& dst, const GlobalTensor<T>& src, const uint32_t count,
    Where where = Where::Here()) {
  static_assert(ascendc_host::kCopies<T>, "DataCopy takes types of 1, 2, 4 or 8 bytes");
  ascendc_host::Instruction instruction(PIPE_MTE2, "DataCopy", where);
  const auto bytes = ascendc_host::NeedWholeBlocks(instruction, uint64_t{count} * sizeof(T));
  instruction.NeedAligned(dst.place());
  ascendc_host::NeedCopyPosition(instruction, dst.place());
  ascendc_host::LoadBlock(instruction, dst.place(), src.place(), bytes, 0, 0, nullptr, 1);
}

template <typename T>
void DataCopy(
    const GlobalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count,
    Where where = Where::Here()) {
  static_assert(ascendc_host::kCopies<T>, "DataCopy takes types of 1, 2, 4 or 8 bytes");
  ascendc_host::Instruction instruction(PIPE_MTE3, "DataCopy", where);
  const auto bytes = ascendc_host::NeedWholeBlocks(instruction, uint64_t{count} * sizeof(T));
  instruction.NeedAligned(src.place());
  ascendc_host::NeedCopyPosition(instruction, src.place());
  ascendc_host::StoreBlock(instruction, dst.place(), src.place(), bytes);
}

template <typename T>
void DataCopyPad(
    const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyExtParams& dataCopyParams,
    const DataCopyPadExtParams<T>& padParams, Where where = Where::Here()) {
  static_assert(ascendc_host::kCopies<T>, "DataCopyPad takes types of 1, 2, 4 or 8 bytes");
  ascendc_host::Instruction instruction(PIPE_MTE2, "DataCopyPad", where);
  ascendc_host::NeedCopyParameters(instruction, dataCopyParams, sizeof(T));
  instruction.NeedAligned(dst.place());
  ascendc_host::NeedCopyPosition(instruction, dst.place());
  const uint64_t left = uint64_t{padParams.leftPadding} * sizeof(T);
  const uint64_t right = uint64_t{padParams.rightPadding} * sizeof(T);
  if (left > ascendc_host::kBlockBytes || right > ascendc_host::kBlockBytes) {
    instruction.Fail("argument", "padding of more than 32 bytes");
  }
  const T zero = {};
  if (sizeof(T) == 8 && std::memcmp(&padParams.paddingValue, &zero, sizeof(T)) != 0) {
    instruction.Fail("argument", "the padding value of an 8-byte type must be 0");
  }
  // A count or length of 0 copies nothing.
  const int blocks = dataCopyParams.blockLen == 0 ? 0 : dataCopyParams.blockCount;
  auto to = dst.place();
  auto from = src.place();
  for (int block = 0; block < blocks; ++block) {
    ascendc_host::LoadBlock(
        instruction, to, from, dataCopyParams.blockLen, left, right,
        padParams.isPad ? &padParams.paddingValue : nullptr, sizeof(T));
    to = ascendc_host::Moved(
        to, ascendc_host::RoundedUp(left + dataCopyParams.blockLen + right) +
                uint64_t{dataCopyParams.dstStride} * ascendc_host::kBlockBytes);
    from.at += uint64_t{dataCopyParams.blockLen} + dataCopyParams.srcStride;
  }
}

template <typename T>
void DataCopyPad(
    const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& dataCopyParams,
    Where where = Where::Here()) {
  static_assert(ascendc_host::kCopies<T>, "DataCopyPad takes types of 1, 2, 4 or 8 bytes");
  ascendc_host::Instruction instruction(PIPE_MTE3, "DataCopyPad", where);
  ascendc_host::NeedCopyParameters(instruction, dataCopyParams, sizeof(T));
  instruction.NeedAligned(src.place());
  ascendc_host::NeedCopyPosition(instruction, src.place());
  const int blocks = dataCopyParams.blockLen == 0 ? 0 : dataCopyParams.blockCount;
  auto to = dst.place();
  auto from = src.place();
  for (int block = 0; block < blocks; ++block) {
    ascendc_host::StoreBlock(instruction, to, from, dataCopyParams.blockLen);
    to.at += uint64_t{dataCopyParams.blockLen} + dataCopyParams.dstStride;
    from = ascendc_host::Moved(
        from, ascendc_host::RoundedUp(dataCopyParams.blockLen) +
                  uint64_t{dataCopyParams.srcStride} * ascendc_host::kBlockBytes);
  }
}

}  // namespace AscendC

#endif  // MKV_ASCENDC_HOST_COPY_H_
