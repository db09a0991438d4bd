#pragma once

#include <array>
#include <cstdint>

#include "common/sha256.h"
#include "nccl_net/abi.h"
#include "nccl_net/devices.h"
#include "nccl_net/settings.h"
#include "stream/address.h"
#include "stream/handshake.h"
#include "stream/options.h"

namespace bluecomm::nccl_net {

// What listen() gives NCCL to carry to the peer's connect(): where the listener is, and
// a random name that admits to it.
class ListenHandle {
 public:
  ListenHandle(const stream::Nonce& name, const stream::Address& address);
  // From NCCL's memory. Throws Failure if another version or something else wrote it.
  static ListenHandle read(const void* memory);
  void write(void* memory) const;

  const stream::Nonce& name() const { return name_; }
  // As the card `device` reaches it.
  stream::Address address(const Device& device) const;

  // NCCL keeps the memory between the calls of connect(): which attempt it is of, or 0.
  std::uint64_t connect_id = 0;

 private:
  stream::Nonce name_{};
  sockaddr_storage address_{};
};

// What both ends of a connection derive from the listener's name.
struct Identity {
  stream::Options options;  // key and limits
  stream::Hello sender;
  stream::Hello receiver;
};
Identity identity_of(const stream::Nonce& name, const Settings& settings);

}  // namespace bluecomm::nccl_net
