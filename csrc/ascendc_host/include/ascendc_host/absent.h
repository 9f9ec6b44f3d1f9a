// SPDX-License-Identifier: Apache-2.0
// Operations that arch 2201 lacks for integers, or has with a trap, and that kernels therefore do
// without. Each is an error at compile time that says what to write instead.
#ifndef MKV_ASCENDC_HOST_ABSENT_H_
#define MKV_ASCENDC_HOST_ABSENT_H_

#include <cstddef>

#include "platform.h"

#define MKV_ABSENT(NAME, REASON)                                    \
  namespace AscendC {                                               \
  template <typename... Arguments>                                  \
  void NAME(const Arguments&...) {                                  \
    static_assert(sizeof...(Arguments) == ~std::size_t{0}, REASON); \
  }                                                                 \
  }

MKV_ABSENT(
    Compare,
    "Compare of int32 knows EQ only and does every other mode as EQ, silently; with "
    "a count it drops what is left of 256 bytes. Take masks: Mins(Maxs(x, 0), 1)")
MKV_ABSENT(
    Compares,
    "Compares of int32 knows EQ only and does every other mode as EQ, silently. "
    "Take masks: Mins(Maxs(x, 0), 1)")
MKV_ABSENT(
    CompareScalar,
    "CompareScalar of int32 knows EQ only and does every other mode as EQ, "
    "silently. Take masks: Mins(Maxs(x, 0), 1)")
MKV_ABSENT(Select, "Select takes half and float only on arch 2201. Take masks: a * (1 - m) + b * m")
MKV_ABSENT(Scatter, "arch 2201 has no Scatter")
MKV_ABSENT(Div, "arch 2201 divides half and float only; shift, or multiply as float")
MKV_ABSENT(Divs, "arch 2201 divides half and float only; shift, or multiply as float")
MKV_ABSENT(Not, "Not is for int16 and uint16 only and not in the subset of ascendc_host")

#undef MKV_ABSENT

#endif  // MKV_ASCENDC_HOST_ABSENT_H_
