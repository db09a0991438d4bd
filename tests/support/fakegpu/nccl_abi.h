// The types and values of the NCCL API that the fake implements, spelled as nccl.h
// spells them.
#pragma once

#include <cstddef>
#include <cstdint>

struct FakeComm;
struct FakeWindow;

extern "C" {

using ncclResult_t = int;
using ncclDataType_t = int;
using ncclRedOp_t = int;
using ncclComm_t = FakeComm*;
using ncclWindow_t = FakeWindow*;
struct ncclWaitSignalDesc_t {
  int opCnt;
  int peer;
  int sigIdx;
  int ctx;
};
struct ncclUniqueId {
  char internal[128];
};
// The fields of NCCL 2.14; later versions append more, and `size` tells how many.
struct ncclConfig_t {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

}  // extern "C"

namespace fakegpu {

inline constexpr ncclResult_t kNcclSuccess = 0;
inline constexpr ncclResult_t kNcclUnhandledCuda = 1;
inline constexpr ncclResult_t kNcclSystem = 2;
inline constexpr ncclResult_t kNcclInternal = 3;
inline constexpr ncclResult_t kNcclInvalidArgument = 4;
inline constexpr ncclResult_t kNcclInvalidUsage = 5;
inline constexpr ncclResult_t kNcclRemote = 6;
inline constexpr ncclResult_t kNcclInProgress = 7;

inline constexpr unsigned kConfigMagic = 0xcafebeef;

enum DataType {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8E4m3 = 10,
  kFloat8E5m2 = 11,
};

enum Reduction { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

}  // namespace fakegpu
