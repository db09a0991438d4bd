#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "nccl_net/abi.h"

namespace bluecomm::test {

// The properties of a device.
struct DeviceProperties {
  std::string name;
  std::string pci_path;
  int speed = 0;
  int max_recvs = 0;
  int ptr_support = 0;
  std::size_t max_p2p_bytes = 0;  // 0 if the version has no such property
};

// The last warning of the plugin that NCCL would show with NCCL_DEBUG=WARN.
const std::string& logged_warning();

using HandleBytes = std::array<std::byte, nccl_net::abi::kHandleSize>;

// NCCL's side of one version of the interface: calls the plugin's functions with that
// version's arguments.
class PluginClient {
 public:
  virtual ~PluginClient() = default;

  // Loads the library as NCCL does, from this program's folder unless `path` is given.
  // Throws std::runtime_error.
  static std::unique_ptr<PluginClient> load(int version, const std::string& path = {});

  virtual const char* name() const = 0;
  virtual int version() const = 0;
  virtual int init() = 0;
  virtual int finalize() = 0;
  virtual int devices(int* count) = 0;
  virtual int properties(int device, DeviceProperties* properties) = 0;
  virtual int listen(int device, HandleBytes& handle, void** comm) = 0;
  virtual int connect(int device, HandleBytes& handle, void** comm) = 0;
  virtual int accept(void* listen_comm, void** comm) = 0;
  virtual int reg_mr(void* comm, void* data, std::size_t size, int type,
                     void** mhandle) = 0;
  virtual int dereg_mr(void* comm, void* mhandle) = 0;
  virtual int isend(void* comm, std::span<const std::byte> data, int tag,
                    void** request) = 0;
  // Passes `*request` on unchanged.
  virtual int irecv(void* comm, std::span<std::byte> into, int tag, void** request) = 0;
  virtual int iflush(void* comm, void** request) = 0;
  virtual int test(void* request, int* done, int* sizes) = 0;
  virtual int close_send(void* comm) = 0;
  virtual int close_recv(void* comm) = 0;
  virtual int close_listen(void* comm) = 0;
  // Returns JSON.
  virtual std::string counters() = 0;
};

}  // namespace bluecomm::test
