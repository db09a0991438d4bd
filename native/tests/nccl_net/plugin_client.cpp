#include "tests/nccl_net/plugin_client.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace bluecomm::test {
namespace {

namespace abi = nccl_net::abi;

// The subsystems that NCCL logs by default: INIT, BOOTSTRAP and ENV.
constexpr unsigned long kDefaultSubsystems = 0x1 | 0x1000 | 0x8;

std::string last_warning;

// Like NCCL's logger: drops lines of other subsystems. Prints the others if
// PLUGIN_VERBOSE is set, as NCCL does with NCCL_DEBUG.
void log(int level, unsigned long subsystems, const char*, int, const char* format,
         ...) {
  if ((subsystems & kDefaultSubsystems) == 0) return;
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (level == abi::kWarn) last_warning = text;
  static const bool verbose = std::getenv("PLUGIN_VERBOSE") != nullptr;
  if (verbose) std::fprintf(stderr, "[%d] %s\n", static_cast<int>(getpid()), text);
}

struct PluginLibrary {
  explicit PluginLibrary(const std::string& path)
      : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) throw std::runtime_error(dlerror());
  }
  PluginLibrary(const PluginLibrary&) = delete;
  PluginLibrary& operator=(const PluginLibrary&) = delete;
  ~PluginLibrary() { dlclose(handle); }

  void* find(const std::string& name) const {
    void* const found = dlsym(handle, name.c_str());
    if (found == nullptr) throw std::runtime_error(dlerror());
    return found;
  }

  void* handle;
};

template <typename Net, typename Signatures, int kVersion>
class VersionPlayer final : public PluginClient {
 public:
  explicit VersionPlayer(const std::string& path)
      : library_(path),
        net_(static_cast<const Net*>(
            library_.find("ncclNetPlugin_v" + std::to_string(kVersion)))) {}

  const char* name() const override { return net_->name; }
  int version() const override { return kVersion; }

  int init() override {
    if constexpr (kVersion >= 11) {
      abi::Config config{-1};
      return net_->init(&context_, 7, &config, log, nullptr);
    } else if constexpr (kVersion == 10) {
      return net_->init(log, nullptr);
    } else {
      return net_->init(log);
    }
  }

  int finalize() override {
    if constexpr (kVersion >= 11) return net_->finalize(context_);
    return abi::kSuccess;
  }

  int devices(int* count) override { return net_->devices(count); }

  int properties(int device, DeviceProperties* device_properties) override {
    typename Signatures::Properties got{};
    const int result = net_->get_properties(device, &got);
    if (result != abi::kSuccess) return result;
    *device_properties = {got.name,        got.pci_path == nullptr ? "" : got.pci_path,
                          got.speed,       got.max_recvs,
                          got.ptr_support, 0};
    if constexpr (requires { got.max_p2p_bytes; }) {
      device_properties->max_p2p_bytes = got.max_p2p_bytes;
    }
    return result;
  }

  int listen(int device, HandleBytes& handle, void** comm) override {
    if constexpr (kVersion >= 11) {
      return net_->listen(context_, device, handle.data(), comm);
    } else {
      return net_->listen(device, handle.data(), comm);
    }
  }

  int connect(int device, HandleBytes& handle, void** comm) override {
    void* device_comm = nullptr;
    if constexpr (kVersion >= 11) {
      return net_->connect(context_, device, handle.data(), comm, &device_comm);
    } else if constexpr (kVersion == 10) {
      abi::Config config{-1};
      return net_->connect(device, &config, handle.data(), comm, &device_comm);
    } else if constexpr (kVersion >= 7) {
      return net_->connect(device, handle.data(), comm, &device_comm);
    } else {
      return net_->connect(device, handle.data(), comm);
    }
  }

  int accept(void* listen_comm, void** comm) override {
    void* device_comm = nullptr;
    if constexpr (kVersion >= 7) {
      return net_->accept(listen_comm, comm, &device_comm);
    } else {
      return net_->accept(listen_comm, comm);
    }
  }

  int reg_mr(void* comm, void* data, std::size_t size, int type,
             void** mhandle) override {
    if constexpr (kVersion >= 8) {
      return net_->reg_mr(comm, data, size, type, mhandle);
    } else {
      return net_->reg_mr(comm, data, static_cast<int>(size), type, mhandle);
    }
  }
  int dereg_mr(void* comm, void* mhandle) override {
    return net_->dereg_mr(comm, mhandle);
  }

  int isend(void* comm, std::span<const std::byte> data, int tag,
            void** request) override {
    void* const memory = const_cast<std::byte*>(data.data());
    if constexpr (kVersion >= 10) {
      return net_->isend(comm, memory, data.size(), tag, nullptr, nullptr, request);
    } else if constexpr (kVersion == 9) {
      return net_->isend(comm, memory, data.size(), tag, nullptr, request);
    } else {
      return net_->isend(comm, memory, static_cast<int>(data.size()), tag, nullptr,
                         request);
    }
  }

  int irecv(void* comm, std::span<std::byte> into, int tag, void** request) override {
    void* data = into.data();
    void* mhandle = nullptr;
    if constexpr (kVersion >= 10) {
      void* phandle = nullptr;
      std::size_t size = into.size();
      return net_->irecv(comm, 1, &data, &size, &tag, &mhandle, &phandle, request);
    } else if constexpr (kVersion == 9) {
      std::size_t size = into.size();
      return net_->irecv(comm, 1, &data, &size, &tag, &mhandle, request);
    } else {
      int size = static_cast<int>(into.size());
      return net_->irecv(comm, 1, &data, &size, &tag, &mhandle, request);
    }
  }

  int iflush(void* comm, void** request) override {
    return net_->iflush(comm, 0, nullptr, nullptr, nullptr, request);
  }
  int test(void* request, int* done, int* sizes) override {
    return net_->test(request, done, sizes);
  }
  int close_send(void* comm) override { return net_->close_send(comm); }
  int close_recv(void* comm) override { return net_->close_recv(comm); }
  int close_listen(void* comm) override { return net_->close_listen(comm); }

  std::string counters() override {
    const auto get = reinterpret_cast<long (*)(char*, std::size_t)>(
        library_.find("bluecomm_net_counters"));
    std::string text(static_cast<std::size_t>(get(nullptr, 0)) + 1, '\0');
    text.resize(std::min<std::size_t>(
        static_cast<std::size_t>(get(text.data(), text.size())), text.size() - 1));
    return text;
  }

 private:
  const PluginLibrary library_;
  const Net* const net_;
  void* context_ = nullptr;
};

std::string default_path() {
  char program[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program);
  if (length <= 0) throw std::runtime_error("readlink of /proc/self/exe failed");
  std::string folder(program, static_cast<std::size_t>(length));
  // In the tests' folder, which is the parent of the benchmarks' folder.
  for (int up = 0; up < 2; ++up) {
    folder.resize(folder.find_last_of('/'));
    const std::string path = folder + "/libnccl-net-bluecomm.so";
    if (access(path.c_str(), R_OK) == 0) return path;
  }
  throw std::runtime_error(
      "libnccl-net-bluecomm.so does not exist; run make build/native/tests");
}

}  // namespace

std::unique_ptr<PluginClient> PluginClient::load(int version,
                                                 const std::string& given) {
  const std::string path = given.empty() ? default_path() : given;
  switch (version) {
    case 6:
      return std::make_unique<VersionPlayer<abi::NetV6, abi::SignaturesV6, 6>>(path);
    case 7:
      return std::make_unique<VersionPlayer<abi::NetV7, abi::SignaturesV7, 7>>(path);
    case 8:
      return std::make_unique<VersionPlayer<abi::NetV8, abi::SignaturesV8, 8>>(path);
    case 9:
      return std::make_unique<VersionPlayer<abi::NetV9, abi::SignaturesV9, 9>>(path);
    case 10:
      return std::make_unique<VersionPlayer<abi::NetV10, abi::SignaturesV10, 10>>(path);
    case 11:
      return std::make_unique<VersionPlayer<abi::NetV11, abi::SignaturesV11, 11>>(path);
    case 12:
      return std::make_unique<VersionPlayer<abi::NetV12, abi::SignaturesV12, 12>>(path);
    default:
      throw std::runtime_error("no version " + std::to_string(version));
  }
}

const std::string& logged_warning() { return last_warning; }

}  // namespace bluecomm::test
