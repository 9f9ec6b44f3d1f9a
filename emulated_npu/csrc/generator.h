// SPDX-License-Identifier: Apache-2.0
// Random numbers of the emulated device: an npu generator whose engine is a CPU generator.
//
// So a seeded sample on npu equals the CPU sample of the same seed, bit for bit. A real NPU draws
// other numbers (Philox); what carries over is that a seed determines the sample.
#pragma once

#include <ATen/core/Generator.h>

namespace emulated_npu {

at::Generator make_generator(c10::DeviceIndex device);

// The generator that operators of this device use when they are given none.
const at::Generator& default_generator(c10::DeviceIndex device);

// The CPU generator inside an npu generator, for one operator to draw from; any other generator
// comes back unchanged. Moves the offset of the npu generator, so that set_offset can take the draw
// back.
at::Generator cpu_engine_for_draw(const at::Generator& generator);

}  // namespace emulated_npu
