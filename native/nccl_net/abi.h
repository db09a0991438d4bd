#pragma once

#include <cstddef>
#include <cstdint>

// The binary interface between NCCL and a network plugin (NCCL's net.h): for each
// version one struct of functions and one of device properties. NCCL never changes a
// layout once a version is released. The names are ours.

namespace bluecomm::nccl_net::abi {

enum Result : int {
  kSuccess = 0,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

enum LogLevel : int { kWarn = 2, kInfo = 3 };
// The subsystems of a line in the log. NCCL drops a line unless one of its subsystems
// is in NCCL_DEBUG_SUBSYS, which by default lacks the network. So warnings name all
// subsystems, as NCCL's own do, and the start of the network names the initialization.
inline constexpr unsigned long kLogAll = ~0UL;
inline constexpr unsigned long kLogInitAndNet = 0x1 | 0x10;

inline constexpr std::size_t kHandleSize = 128;
inline constexpr int kHostMemory = 1;
// NCCL stores this in *request of irecv to say that it does not need to know when the
// receive completes.
inline void* const kOptionalCompletion = reinterpret_cast<void*>(1);

using Logger = void(int level, unsigned long flags, const char* file, int line,
                    const char* format, ...);

struct Config {
  int traffic_class;
};

struct PropertiesV6 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int speed;  // Mbit/s
  int port;
  float latency;
  int max_comms;
  int max_recvs;
};

struct PropertiesV7 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int device_type;
  int device_version;
};

struct PropertiesV8 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int device_type;
  int device_version;
};

template <int kDevices>
struct VirtualDevice {
  int count;
  int devices[kDevices];
};

// Used by versions 9 and 10.
struct PropertiesV9 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int device_type;
  int device_version;
  VirtualDevice<4> virtual_device;
  std::size_t max_p2p_bytes;
  std::size_t max_coll_bytes;
};

struct PropertiesV11 : PropertiesV9 {
  int max_multi_request_size;
};

struct PropertiesV12 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int device_type;
  int device_version;
  VirtualDevice<8> virtual_device;
  std::size_t max_p2p_bytes;
  std::size_t max_coll_bytes;
  int max_multi_request_size;
  std::int16_t rail_id;
  std::int16_t plane_id;
};

static_assert(sizeof(PropertiesV6) == 48 && sizeof(PropertiesV7) == 56);
static_assert(sizeof(PropertiesV8) == 64 && sizeof(PropertiesV9) == 104);
static_assert(sizeof(PropertiesV11) == 112 && sizeof(PropertiesV12) == 128);

// The signatures that differ between versions. All functions return a Result.
struct SignaturesV6 {
  using Properties = PropertiesV6;
  using Init = int(Logger* logger);
  using Listen = int(int device, void* handle, void** listen_comm);
  using Connect = int(int device, void* handle, void** send_comm);
  using Accept = int(void* listen_comm, void** recv_comm);
  using RegMr = int(void* comm, void* data, int size, int type, void** mhandle);
  using Isend = int(void* send_comm, void* data, int size, int tag, void* mhandle,
                    void** request);
  using Irecv = int(void* recv_comm, int n, void** data, int* sizes, int* tags,
                    void** mhandles, void** request);
};

struct SignaturesV7 : SignaturesV6 {
  using Properties = PropertiesV7;
  using Connect = int(int device, void* handle, void** send_comm, void** device_comm);
  using Accept = int(void* listen_comm, void** recv_comm, void** device_comm);
};

struct SignaturesV8 : SignaturesV7 {
  using Properties = PropertiesV8;
  using RegMr = int(void* comm, void* data, std::size_t size, int type, void** mhandle);
};

struct SignaturesV9 : SignaturesV8 {
  using Properties = PropertiesV9;
  using Isend = int(void* send_comm, void* data, std::size_t size, int tag,
                    void* mhandle, void** request);
  using Irecv = int(void* recv_comm, int n, void** data, std::size_t* sizes, int* tags,
                    void** mhandles, void** request);
};

struct SignaturesV10 : SignaturesV9 {
  using Init = int(Logger* logger, void* profiler);
  using Connect = int(int device, Config* config, void* handle, void** send_comm,
                      void** device_comm);
  using Isend = int(void* send_comm, void* data, std::size_t size, int tag,
                    void* mhandle, void* phandle, void** request);
  using Irecv = int(void* recv_comm, int n, void** data, std::size_t* sizes, int* tags,
                    void** mhandles, void** phandles, void** request);
};

struct SignaturesV11 : SignaturesV10 {
  using Properties = PropertiesV11;
  using Init = int(void** context, std::uint64_t comm_id, Config* config,
                   Logger* logger, void* profiler);
  using Listen = int(void* context, int device, void* handle, void** listen_comm);
  using Connect = int(void* context, int device, void* handle, void** send_comm,
                      void** device_comm);
};

struct SignaturesV12 : SignaturesV11 {
  using Properties = PropertiesV12;
};

// The functions that all versions have, in their order.
template <typename Signatures>
struct NetFunctions {
  const char* name;
  typename Signatures::Init* init;
  int (*devices)(int* count);
  int (*get_properties)(int device, typename Signatures::Properties* properties);
  typename Signatures::Listen* listen;
  typename Signatures::Connect* connect;
  typename Signatures::Accept* accept;
  typename Signatures::RegMr* reg_mr;
  int (*reg_mr_dma_buf)(void* comm, void* data, std::size_t size, int type,
                        std::uint64_t offset, int fd, void** mhandle);
  int (*dereg_mr)(void* comm, void* mhandle);
  typename Signatures::Isend* isend;
  typename Signatures::Irecv* irecv;
  int (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles,
                void** request);
  int (*test)(void* request, int* done, int* sizes);
  int (*close_send)(void* send_comm);
  int (*close_recv)(void* recv_comm);
  int (*close_listen)(void* listen_comm);
};

// For devices that run code on the GPU; since version 7.
struct DeviceFunctions {
  int (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
  int (*irecv_consumed)(void* recv_comm, int n, void* request);
};

// Since version 9.
struct VirtualDeviceFunction {
  int (*make_virtual_device)(int* device, void* properties);
};

// Since version 11.
struct ContextFunctions {
  int (*finalize)(void* context);
  int (*set_attributes)(void* context, void* attributes);
};

struct NetV6 : NetFunctions<SignaturesV6> {};
struct NetV7 : NetFunctions<SignaturesV7>, DeviceFunctions {};
struct NetV8 : NetFunctions<SignaturesV8>, DeviceFunctions {};
struct NetV9 : NetFunctions<SignaturesV9>, DeviceFunctions, VirtualDeviceFunction {};
struct NetV10 : NetFunctions<SignaturesV10>, DeviceFunctions, VirtualDeviceFunction {};
struct NetV11 : NetFunctions<SignaturesV11>,
                DeviceFunctions,
                VirtualDeviceFunction,
                ContextFunctions {};
struct NetV12 : NetFunctions<SignaturesV12>,
                DeviceFunctions,
                VirtualDeviceFunction,
                ContextFunctions {};

static_assert(sizeof(NetV6) == 136 && sizeof(NetV7) == 152 && sizeof(NetV8) == 152);
static_assert(sizeof(NetV9) == 160 && sizeof(NetV10) == 160);
static_assert(sizeof(NetV11) == 176 && sizeof(NetV12) == 176);

}  // namespace bluecomm::nccl_net::abi
