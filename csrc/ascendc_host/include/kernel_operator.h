// SPDX-License-Identifier: Apache-2.0
// The header that AscendC kernels include. With this folder on the include path in place of CANN's,
// they compile with an ordinary C++17 compiler, run on the CPU and are checked.
#ifndef MKV_ASCENDC_HOST_KERNEL_OPERATOR_H_
#define MKV_ASCENDC_HOST_KERNEL_OPERATOR_H_

// Tells a source that it is compiled for this checker and not for an NPU.
#define MKV_ASCENDC_CHECKER 1

#include "ascendc_host/platform.h"
#include "ascendc_host/parameters.h"
#include "ascendc_host/records.h"
#include "ascendc_host/shadow.h"
#include "ascendc_host/device.h"
#include "ascendc_host/core.h"
#include "ascendc_host/instruction.h"
#include "ascendc_host/tensor.h"
#include "ascendc_host/queue.h"
#include "ascendc_host/pipe.h"
#include "ascendc_host/copy.h"
#include "ascendc_host/vector.h"
#include "ascendc_host/vector_more.h"
#include "ascendc_host/absent.h"
#include "ascendc_host/launch.h"

#endif  // MKV_ASCENDC_HOST_KERNEL_OPERATOR_H_
