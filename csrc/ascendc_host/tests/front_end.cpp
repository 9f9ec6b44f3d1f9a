// SPDX-License-Identifier: Apache-2.0
// For tools/check_kernels.py: each line that ends in "WRONG" and a rule must be a finding of that
// rule, and no other line may be one. An ordinary compiler takes most of it.
#include "kernel_operator.h"
#include "ascendc_launch.h"

using namespace AscendC;

inline int64_t OfTheHost(int64_t value) {
  return value + 1;
}

constexpr int64_t ConstantOfTheHost() {
  return 1;
}

__aicore__ inline int64_t OfTheCores(int64_t value) {
  return value + 1;
}

// Host and cores.

template <typename T>
__aicore__ inline T CallsTheHostWhenMade(T value) {
  return static_cast<T>(OfTheHost(value));  // WRONG device_calls_host
}

__aicore__ inline int64_t CallsTheHost(int64_t value) {
  const int64_t twice = OfTheHost(value) * 2;  // WRONG device_calls_host
  return twice + ConstantOfTheHost();          // WRONG device_calls_host
}

int64_t variable_of_the_host = 0;

__aicore__ inline int64_t ReadsAVariableOfTheHost() {
  return variable_of_the_host;  // WRONG device_calls_host
}

inline int64_t CallsTheCores(int64_t value) {
  return OfTheCores(value);  // WRONG host_calls_device
}

inline uint32_t HoldsATensor() {
  LocalTensor<int32_t> tensor;  // WRONG host_calls_device
  return 0;
}

// Memories.

__aicore__ inline int32_t OnTheStack(int32_t* value) {
  return *value;
}

__aicore__ inline void MixesMemories(GM_ADDR x, __ubuf__ int32_t* y) {
  int32_t* plain = reinterpret_cast<int32_t*>(x);    // WRONG address_space
  plain = (int32_t*)x;                               // WRONG address_space
  __gm__ int32_t* global = y;                        // WRONG address_space
  OnTheStack(reinterpret_cast<__gm__ int32_t*>(x));  // WRONG address_space
  GlobalTensor<int32_t> tensor;
  tensor.SetGlobalBuffer(y);  // WRONG address_space
  // An address from a table has no memory yet.
  global = reinterpret_cast<__gm__ int32_t*>(static_cast<int64_t>(*plain));
  *global = *y;
}

// Double.

__aicore__ inline float Scaled(float value) {
  return static_cast<float>(value * 0.5);  // WRONG double
}

template <typename T>
__aicore__ inline int64_t OfAnyType(int64_t value) {
  const T converted = static_cast<T>(value);  // WRONG double
  return static_cast<int64_t>(converted);     // WRONG double
}

__aicore__ inline int64_t ThroughAType(int64_t value) {
  const long double rows[2] = {};                                              // WRONG double
  return OfAnyType<int32_t>(value) + OfAnyType<double>(value) + sizeof(rows);  // WRONG double
}

class Scale {
 public:
  __aicore__ inline float Get() const {
    return factor_;
  }

 private:
  float factor_ = 0.5;    // WRONG double
  double unused_ = 0.0F;  // WRONG double
};

inline double HostMayHaveDouble(double value) {
  return value * 0.5;
}

// Recursion.

__aicore__ inline int64_t Factorial(int64_t value) {
  return value < 2 ? 1 : value * Factorial(value - 1);  // WRONG recursion
}

__aicore__ inline int64_t Odd(int64_t value);

__aicore__ inline int64_t Even(int64_t value) {
  return value == 0 ? 1 : Odd(value - 1);
}

__aicore__ inline int64_t Odd(int64_t value) {
  return value == 0 ? 0 : Even(value - 1);  // WRONG recursion
}

// Each of these is another function: no recursion.
template <int depth>
__aicore__ inline int64_t Nested(int64_t value) {
  if constexpr (depth > 0) {
    return Nested<depth - 1>(value) + 1;
  }
  return value;
}

class Tree {
 public:
  __aicore__ inline int64_t Depth(int64_t node) const {
    return node == 0 ? 0 : 1 + Depth(node / 2);  // WRONG recursion
  }
};

// The standard library.

__aicore__ inline void CallsTheLibrary(int64_t* to, const int64_t* from) {
  __builtin_memcpy(to, from, 64);      // WRONG standard_library
  to[1] = std::max(from[0], from[1]);  // WRONG standard_library
  memcpy(to + 2, from, 64);            // WRONG standard_library
}

// The language.

struct Base {
  __aicore__ virtual int64_t Get() const;
};

__aicore__ inline int64_t Virtual(const Base& base) {
  return base.Get();  // WRONG language
}

__aicore__ inline int64_t* Allocates() {
  return new int64_t;  // WRONG language
}

__aicore__ inline void Throws() {
  throw 1;  // WRONG language
}

// Stack.

template <int count>
__aicore__ inline int64_t Sum(int64_t value) {
  int64_t values[count];
  for (int i = 0; i < count; ++i) {
    values[i] = value + i;
  }
  return values[count - 1];
}

struct Kernel {
  LocalTensor<int32_t> noted[160];  // 15 KB

  __aicore__ inline int64_t Run(int64_t value) {
    return Sum<1024>(value);  // 8 KB
  }
  __aicore__ inline int64_t RunDeeper(int64_t value) {
    int64_t more[1536] = {};  // 12 KB
    return Sum<1024>(value) + more[0];
  }
};

extern "C" __global__ __aicore__ void fits_kernel(GM_ADDR x, const int64_t value) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  Kernel kernel;
  kernel.Run(Nested<3>(value));
  CallsTheHostWhenMade<int32_t>(1);
  static constexpr int64_t kTable[8192] = {};
  static_cast<void>(kTable);
}

extern "C" __global__ __aicore__ void too_deep_kernel(  // WRONG stack
    GM_ADDR x, const int64_t value) {
  Kernel kernel;
  kernel.RunDeeper(value);
}

extern "C" void launches(uint32_t cores, void* stream, uint8_t* x, int64_t value) {
  MKV_LAUNCH(fits_kernel, cores, stream, x, OfTheHost(value));
  MKV_LAUNCH(too_deep_kernel, cores, stream, x, OfTheCores(value));  // WRONG host_calls_device
  MKV_LAUNCH(fits_kernel, cores, stream, x);                         // WRONG syntax
  static_cast<void>(HostMayHaveDouble(1.0));
}
