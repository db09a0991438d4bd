// The handle that NCCL's bootstrap passes to connect(): written by another rank's
// listen(), by another plugin, or random.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "fuzz/fuzz.h"
#include "nccl_net/failure.h"
#include "nccl_net/listen_handle.h"

using namespace bluecomm;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::array<std::byte, nccl_net::abi::kHandleSize> memory{};
  if (size > 0) std::memcpy(memory.data(), data, std::min(size, memory.size()));
  // A handle of another version stands for one of this version, so that read() does
  // not reject the whole corpus whenever the version is raised.
  constexpr std::string_view kPlugin = "bluenet";
  if (std::memcmp(memory.data(), kPlugin.data(), kPlugin.size()) == 0) {
    decltype(memory) own{};
    nccl_net::ListenHandle({}, stream::Address("127.0.0.1", 0), "").write(own.data());
    memory[kPlugin.size()] = own[kPlugin.size()];
  }
  try {
    const nccl_net::ListenHandle handle = nccl_net::ListenHandle::read(memory.data());
    const nccl_net::Device device{"eth0", "", 10'000, 7,
                                  stream::Address("127.0.0.1", 0)};
    const stream::Address address = handle.address(device);
    MUST(address.family() == AF_INET || address.family() == AF_INET6);
    MUST(!address.text().empty());
    // Writing the handle and reading it again gives the same handle.
    handle.write(memory.data());
    const nccl_net::ListenHandle again = nccl_net::ListenHandle::read(memory.data());
    MUST(again.name() == handle.name());
    MUST(again.connect_id == handle.connect_id);
    MUST(again.address(device).text() == address.text());
  } catch (const nccl_net::Failure& failure) {
    MUST(failure.result == nccl_net::abi::kInvalidUsage);
  }
  return 0;
}
