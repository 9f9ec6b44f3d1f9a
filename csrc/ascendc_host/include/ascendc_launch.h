// SPDX-License-Identifier: Apache-2.0
// The launch of a kernel, behind one macro: on an NPU the compiler's <<<>>>, on the host a call of
// the checker. Include it after kernel_operator.h, in the file that holds the kernel.
//   MKV_LAUNCH(kernel, blocks, stream, arguments...)
#ifndef MKV_ASCENDC_LAUNCH_H_
#define MKV_ASCENDC_LAUNCH_H_

#ifdef MKV_ASCENDC_CHECKER
#define MKV_LAUNCH(kernel, blocks, stream, ...) \
  (static_cast<void>(stream),                   \
   ::ascendc_host::Launch(#kernel, static_cast<int64_t>(blocks), [&] { kernel(__VA_ARGS__); }))
#else
#define MKV_LAUNCH(kernel, blocks, stream, ...) kernel<<<(blocks), nullptr, (stream)>>>(__VA_ARGS__)
#endif

#endif  // MKV_ASCENDC_LAUNCH_H_
