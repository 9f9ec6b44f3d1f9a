// SPDX-License-Identifier: Apache-2.0
// Of acl/acl.h what the binding and the stand-in's runtime call.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int aclError;
typedef void* aclrtStream;
#define ACL_SUCCESS 0
enum aclDeviceInfo { ACL_DEVICE_INFO_AI_CORE_NUM, ACL_DEVICE_INFO_VECTOR_CORE_NUM };

extern "C" {
const char* aclrtGetSocName();
const char* aclGetRecentErrMsg();
aclError aclrtGetDevice(int32_t* device);
aclError aclGetDeviceCapability(uint32_t device, aclDeviceInfo info, int64_t* value);
aclError aclrtMalloc(void** memory, size_t bytes, int policy);
aclError aclrtFree(void* memory);
}
