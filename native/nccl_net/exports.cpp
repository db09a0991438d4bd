// The plugin's C interface: one struct of functions per version of NCCL's net interface
// (ncclNet_v6_t to ncclNet_v12_t), all built from the same few functions.
//
// NCCL loads this library and calls these functions from its proxy and init threads. No
// exception leaves them: guard() turns it into a result code and a line in NCCL's log.
#include <algorithm>
#include <climits>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "nccl_net/plugin.h"

namespace bluecomm::nccl_net {
namespace {

// The limit that NCCL's socket transport reports. Lengths have 64 bits.
constexpr std::size_t kMaxMessage = std::size_t{1} << 40;
constexpr int kMaxComms = 1 << 16;

template <typename Body>
int guard(const char* call, Body&& body) noexcept {
  abi::Result result = abi::kInternalError;
  std::string text;
  try {
    body();
    return abi::kSuccess;
  } catch (const Failure& error) {
    result = error.result;
    text = error.what();
  } catch (const std::runtime_error& error) {
    result = abi::kSystemError;
    text = error.what();
  } catch (const std::invalid_argument& error) {
    result = abi::kInvalidArgument;
    text = error.what();
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
    text = "an unknown exception was thrown";
  }
  Plugin::get().log(abi::kWarn, std::string(call) + ": " + text);
  return result;
}

// The functions, common to all versions.

int devices(int* count) noexcept {
  *count = static_cast<int>(Plugin::get().devices().size());
  return abi::kSuccess;
}

template <typename Properties>
int get_properties(int number, Properties* properties) noexcept {
  return guard("getProperties", [&] {
    Device& device = Plugin::get().device(number);
    *properties = {};
    properties->name = device.name.data();
    properties->pci_path = device.pci_path.empty() ? nullptr : device.pci_path.data();
    properties->guid = static_cast<std::uint64_t>(number);
    properties->ptr_support = abi::kHostMemory;
    properties->speed = device.speed_mbps;
    properties->max_comms = kMaxComms;
    properties->max_recvs = 1;
    if constexpr (requires { properties->virtual_device; }) {
      properties->virtual_device.count = 1;
      properties->virtual_device.devices[0] = number;
      properties->max_p2p_bytes = kMaxMessage;
      properties->max_coll_bytes = kMaxMessage;
    }
    if constexpr (requires { properties->max_multi_request_size; }) {
      properties->max_multi_request_size = 1;
    }
    if constexpr (requires { properties->rail_id; }) {
      properties->rail_id = properties->plane_id = -1;
    }
  });
}

int open_listen(int device, void* handle, void** listen_comm) noexcept {
  *listen_comm = nullptr;
  return guard("listen",
               [&] { *listen_comm = Plugin::get().listen(device, handle).release(); });
}

int open_send(int device, void* handle, void** send_comm) noexcept {
  *send_comm = nullptr;
  return guard("connect", [&] { *send_comm = Plugin::get().connect(device, handle); });
}

int open_recv(void* listen_comm, void** recv_comm) noexcept {
  *recv_comm = nullptr;
  return guard("accept", [&] {
    *recv_comm = Plugin::get().accept(*static_cast<ListenComm*>(listen_comm));
  });
}

int register_memory(int type, void** mhandle) noexcept {
  *mhandle = nullptr;
  return guard("regMr", [&] {
    if (type == abi::kHostMemory) return;
    throw Failure(
        abi::kInvalidArgument,
        "only host memory can be registered, got type " + std::to_string(type));
  });
}

int register_dma_buf(void*, void*, std::size_t, int, std::uint64_t, int,
                     void** mhandle) noexcept {
  *mhandle = nullptr;
  return abi::kInvalidUsage;
}

int deregister(void*, void*) noexcept { return abi::kSuccess; }

int start_send(void* comm, void* data, std::size_t size, int tag,
               void** request) noexcept {
  *request = nullptr;
  return guard("isend", [&] {
    *request = static_cast<SendComm*>(comm)->isend(
        {static_cast<const std::byte*>(data), size}, tag);
  });
}

int start_recv(void* comm, int n, void** data, std::size_t size,
               void** request) noexcept {
  // NCCL may have stored a mark there (abi::kOptionalCompletion), which must not be
  // taken for a request.
  *request = nullptr;
  return guard("irecv", [&] {
    if (n != 1) {
      throw Failure(abi::kInvalidArgument,
                    "expected one receive at a time, got " + std::to_string(n));
    }
    *request =
        static_cast<RecvComm*>(comm)->irecv({static_cast<std::byte*>(data[0]), size});
  });
}

// GPU memory is never registered, so a flush is always an error.
int iflush(void*, int, void**, int*, void**, void** request) noexcept {
  *request = nullptr;
  return abi::kInternalError;
}

int test(void* request, int* done, int* sizes) noexcept {
  *done = 0;
  return guard("test", [&] {
    auto& one = *static_cast<CommRequest*>(request);
    if (one.comm == nullptr) {
      throw Failure(abi::kInvalidUsage,
                    "called with a request that had completed before");
    }
    const auto nbytes = one.comm->test(one);
    if (!nbytes) return;
    *done = 1;
    if (sizes != nullptr) {
      *sizes = static_cast<int>(std::min<std::size_t>(*nbytes, INT_MAX));
    }
  });
}

int close_comm(void* comm) noexcept {
  return guard("close", [&] {
    if (comm != nullptr) Plugin::get().close(static_cast<Comm*>(comm));
  });
}

int close_send(void* comm) noexcept {
  return close_comm(static_cast<Comm*>(static_cast<SendComm*>(comm)));
}

int close_recv(void* comm) noexcept {
  return close_comm(static_cast<Comm*>(static_cast<RecvComm*>(comm)));
}

int close_listen(void* comm) noexcept {
  return guard("closeListen", [&] {
    const MaintainedPtr<ListenComm> owner(static_cast<ListenComm*>(comm));
  });
}

// Adapters for the versions, which differ in the order of arguments.

int open(abi::Logger* logger) noexcept {
  return guard("init", [&] { Plugin::get().open(logger); });
}

struct Init {
  static int call(abi::Logger* logger) noexcept { return open(logger); }
  static int call(abi::Logger* logger, void*) noexcept { return open(logger); }
  static int call(void** context, std::uint64_t, abi::Config*, abi::Logger* logger,
                  void*) noexcept {
    // The plugin has no state per communicator, but NCCL expects a context.
    *context = &Plugin::get();
    return open(logger);
  }
};

struct Listen {
  static int call(int device, void* handle, void** comm) noexcept {
    return open_listen(device, handle, comm);
  }
  static int call(void*, int device, void* handle, void** comm) noexcept {
    return open_listen(device, handle, comm);
  }
};

struct Connect {
  static int call(int device, void* handle, void** comm) noexcept {
    return open_send(device, handle, comm);
  }
  static int call(int device, void* handle, void** comm, void**) noexcept {
    return open_send(device, handle, comm);
  }
  static int call(int device, abi::Config*, void* handle, void** comm,
                  void**) noexcept {
    return open_send(device, handle, comm);
  }
  static int call(void*, int device, void* handle, void** comm, void**) noexcept {
    return open_send(device, handle, comm);
  }
};

struct Accept {
  static int call(void* listen_comm, void** comm) noexcept {
    return open_recv(listen_comm, comm);
  }
  static int call(void* listen_comm, void** comm, void**) noexcept {
    return open_recv(listen_comm, comm);
  }
};

struct RegMr {
  static int call(void*, void*, int, int type, void** mhandle) noexcept {
    return register_memory(type, mhandle);
  }
  static int call(void*, void*, std::size_t, int type, void** mhandle) noexcept {
    return register_memory(type, mhandle);
  }
};

struct Isend {
  static int call(void* comm, void* data, int size, int tag, void*,
                  void** request) noexcept {
    return start_send(comm, data, static_cast<std::size_t>(size), tag, request);
  }
  static int call(void* comm, void* data, std::size_t size, int tag, void*,
                  void** request) noexcept {
    return start_send(comm, data, size, tag, request);
  }
  static int call(void* comm, void* data, std::size_t size, int tag, void*, void*,
                  void** request) noexcept {
    return start_send(comm, data, size, tag, request);
  }
};

struct Irecv {
  static int call(void* comm, int n, void** data, int* sizes, int*, void**,
                  void** request) noexcept {
    return start_recv(comm, n, data, static_cast<std::size_t>(sizes[0]), request);
  }
  static int call(void* comm, int n, void** data, std::size_t* sizes, int*, void**,
                  void** request) noexcept {
    return start_recv(comm, n, data, sizes[0], request);
  }
  static int call(void* comm, int n, void** data, std::size_t* sizes, int*, void**,
                  void**, void** request) noexcept {
    return start_recv(comm, n, data, sizes[0], request);
  }
};

int finalize(void*) noexcept { return abi::kSuccess; }

template <typename Net, typename Signatures>
constexpr Net make() {
  Net net{};
  net.name = "BlueComm";
  net.init = Init::call;
  net.devices = devices;
  net.get_properties = get_properties<typename Signatures::Properties>;
  net.listen = Listen::call;
  net.connect = Connect::call;
  net.accept = Accept::call;
  net.reg_mr = RegMr::call;
  net.reg_mr_dma_buf = register_dma_buf;
  net.dereg_mr = deregister;
  net.isend = Isend::call;
  net.irecv = Irecv::call;
  net.iflush = iflush;
  net.test = test;
  net.close_send = close_send;
  net.close_recv = close_recv;
  net.close_listen = close_listen;
  if constexpr (requires { net.finalize; }) net.finalize = finalize;
  return net;
}

}  // namespace
}  // namespace bluecomm::nccl_net

#define BLUECOMM_EXPORT __attribute__((visibility("default")))

using namespace bluecomm::nccl_net;  // NOLINT: exports.map exports the names below only

extern "C" {

BLUECOMM_EXPORT extern const abi::NetV6 ncclNetPlugin_v6 =
    make<abi::NetV6, abi::SignaturesV6>();
BLUECOMM_EXPORT extern const abi::NetV7 ncclNetPlugin_v7 =
    make<abi::NetV7, abi::SignaturesV7>();
BLUECOMM_EXPORT extern const abi::NetV8 ncclNetPlugin_v8 =
    make<abi::NetV8, abi::SignaturesV8>();
BLUECOMM_EXPORT extern const abi::NetV9 ncclNetPlugin_v9 =
    make<abi::NetV9, abi::SignaturesV9>();
BLUECOMM_EXPORT extern const abi::NetV10 ncclNetPlugin_v10 =
    make<abi::NetV10, abi::SignaturesV10>();
BLUECOMM_EXPORT extern const abi::NetV11 ncclNetPlugin_v11 =
    make<abi::NetV11, abi::SignaturesV11>();
BLUECOMM_EXPORT extern const abi::NetV12 ncclNetPlugin_v12 =
    make<abi::NetV12, abi::SignaturesV12>();

// Writes the traffic of each connection and stream as JSON, truncated to `capacity`
// bytes including a terminating 0. Returns the full length without the 0, or -1 on an
// error. Safe to call at any time from any thread.
BLUECOMM_EXPORT long bluecomm_net_counters(char* text, std::size_t capacity) {
  long length = -1;
  guard("counters", [&] {
    const std::string all = Plugin::get().counters();
    if (capacity > 0) {
      const std::size_t count = std::min(all.size(), capacity - 1);
      std::memcpy(text, all.data(), count);
      text[count] = '\0';
    }
    length = static_cast<long>(all.size());
  });
  return length;
}
}
