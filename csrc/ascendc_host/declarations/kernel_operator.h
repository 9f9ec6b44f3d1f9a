// SPDX-License-Identifier: Apache-2.0
// The subset of AscendC that csrc/ascendc_host models, as declarations: tools/check_kernels.py
// parses kernels with them. Functions are of the device, as CANN's are, and objects have the sizes
// that they have in CANN 9.1 on arch 2201, so that stack frames can be added up.
#ifndef MKV_ASCENDC_HOST_DECLARATIONS_H_
#define MKV_ASCENDC_HOST_DECLARATIONS_H_

#include <cstdint>

#include "ascendc_host/platform.h"
#include "ascendc_host/parameters.h"

// What <<<blocks, l2, stream>>> is given. clang looks for this name.
extern "C" unsigned __cudaPushCallConfiguration(uint32_t blocks, void* l2, void* stream);

namespace AscendC {

template <typename T>
class LocalTensor {
 public:
  using PrimType = T;

  __aicore__ LocalTensor();
  __aicore__ T GetValue(const uint32_t index) const;
  template <typename S>
  __aicore__ void SetValue(const uint32_t index, const S value) const;
  __aicore__ LocalTensor operator[](const uint32_t offset) const;
  template <typename U>
  __aicore__ LocalTensor<U> ReinterpretCast() const;
  __aicore__ uint32_t GetSize() const;
  __aicore__ void SetSize(const uint32_t size);

 private:
  // Address, length and position; and the shape, of K_MAX_SHAPE_DIM = 8 dimensions.
  uint64_t members_[12];
};

template <typename T>
class GlobalTensor {
 public:
  using PrimType = T;

  __aicore__ GlobalTensor();
  __aicore__ void SetGlobalBuffer(__gm__ T* buffer, uint64_t bufferSize);
  __aicore__ void SetGlobalBuffer(__gm__ T* buffer);
  __aicore__ const __gm__ T* GetPhyAddr() const;
  __aicore__ __gm__ T* GetPhyAddr(const uint64_t offset) const;
  __aicore__ uint64_t GetSize() const;
  __aicore__ GlobalTensor operator[](const uint64_t offset) const;
  __aicore__ T GetValue(const uint64_t offset) const;
  __aicore__ void SetValue(const uint64_t offset, T value);

 private:
  uint64_t members_[13];
};

template <typename T, CacheLine entireType, DcciDst dcciDst>
__aicore__ void DataCacheCleanAndInvalid(const GlobalTensor<T>& dst);

template <HardEvent event>
__aicore__ void SetFlag(int32_t eventID);
template <HardEvent event>
__aicore__ void WaitFlag(int32_t eventID);
template <pipe_t pipe>
__aicore__ void PipeBarrier();

__aicore__ int64_t GetBlockIdx();
__aicore__ int64_t GetBlockNum();

template <TPosition src, TPosition dst, int32_t depth, auto mask = 0>
class TQueBind {
 public:
  __aicore__ TQueBind();
  template <typename T>
  __aicore__ LocalTensor<T> AllocTensor();
  template <typename T>
  __aicore__ bool EnQue(const LocalTensor<T>& tensor);
  template <typename T>
  __aicore__ LocalTensor<T> DeQue();
  template <typename T>
  __aicore__ void FreeTensor(LocalTensor<T>& tensor);

 private:
  uint64_t members_[2 + depth];
};

template <TPosition pos, int32_t depth, auto mask = 0>
class TQue : public TQueBind<pos, TPosition::GM, depth, mask> {};

template <TPosition pos = TPosition::VECCALC>
class TBuf {
 public:
  __aicore__ TBuf();
  template <typename T>
  __aicore__ LocalTensor<T> Get();
  template <typename T>
  __aicore__ LocalTensor<T> Get(uint32_t len);
  template <typename T>
  __aicore__ LocalTensor<T> GetWithOffset(uint32_t size, uint32_t bufOffset);

 private:
  uint64_t members_[4];
};

class TPipe {
 public:
  __aicore__ TPipe();
  __aicore__ ~TPipe();
  TPipe(const TPipe&) = delete;
  TPipe& operator=(const TPipe&) = delete;

  template <class T>
  __aicore__ bool InitBuffer(T& que, uint8_t num, uint32_t len);
  template <TPosition pos>
  __aicore__ bool InitBuffer(TBuf<pos>& buf, uint32_t len);
  template <HardEvent evt>
  __aicore__ TEventID AllocEventID();
  template <HardEvent evt>
  __aicore__ void ReleaseEventID(TEventID id);
  template <HardEvent evt>
  __aicore__ TEventID FetchEventID();
  __aicore__ TEventID FetchEventID(HardEvent evt);

 private:
  // 1,208 bytes in asc-devkit 9.1.
  uint64_t members_[151];
};

template <typename T>
__aicore__ void DataCopy(
    const LocalTensor<T>& dst, const GlobalTensor<T>& src, const uint32_t count);
template <typename T>
__aicore__ void DataCopy(
    const GlobalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count);
template <typename T>
__aicore__ void DataCopy(
    const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count);
template <typename T>
__aicore__ void DataCopyPad(
    const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyExtParams& dataCopyParams,
    const DataCopyPadExtParams<T>& padParams);
template <typename T>
__aicore__ void DataCopyPad(
    const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& dataCopyParams);

#define MKV_BINARY(NAME)                                                                 \
  template <typename T>                                                                  \
  __aicore__ void NAME(                                                                  \
      const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, \
      const int32_t& count);
MKV_BINARY(Add)
MKV_BINARY(Sub)
MKV_BINARY(Mul)
MKV_BINARY(Max)
MKV_BINARY(Min)
MKV_BINARY(And)
MKV_BINARY(Or)
#undef MKV_BINARY

#define MKV_SCALAR(NAME)                                                          \
  template <typename T, bool isSetMask = true>                                    \
  __aicore__ void NAME(                                                           \
      const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue, \
      const int32_t& count);
MKV_SCALAR(Adds)
MKV_SCALAR(Muls)
MKV_SCALAR(Maxs)
MKV_SCALAR(Mins)
MKV_SCALAR(ShiftLeft)
MKV_SCALAR(ShiftRight)
#undef MKV_SCALAR

template <typename T>
__aicore__ void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, const int32_t& count);
template <typename T>
__aicore__ void CreateVecIndex(LocalTensor<T> dst, const T& firstValue, uint32_t count);
template <typename T>
__aicore__ void Gather(
    const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& srcOffset,
    const uint32_t srcBaseOffset, const uint32_t count);
template <typename T, typename U>
__aicore__ void Cast(
    const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode,
    const uint32_t count);

}  // namespace AscendC

__aicore__ AscendC::TPipe* GetTPipePtr();

#endif  // MKV_ASCENDC_HOST_DECLARATIONS_H_
