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

// The handle that listen() gives to NCCL, which carries it to the peer's connect(): the
// listener's address, and a random name that serves as the key of the connection.
class ListenHandle {
 public:
  ListenHandle(const stream::Nonce& name, const stream::Address& address);
  // Reads a handle from NCCL's memory. Throws Failure if another plugin or another
  // version of this one wrote it.
  static ListenHandle read(const void* memory);
  void write(void* memory) const;

  const stream::Nonce& name() const { return name_; }
  // Returns the listener's address as seen from `device`.
  stream::Address address(const Device& device) const;

  // The pending connect that the handle belongs to, or 0. connect() stores it here,
  // because NCCL passes the same memory to each call.
  std::uint64_t connect_id = 0;

 private:
  stream::Nonce name_{};
  sockaddr_storage address_{};
};

// The options and identities that both ends derive from the name in the handle.
struct Identity {
  stream::Options options;  // with the key
  stream::Hello sender;
  stream::Hello receiver;
};
Identity identity_of(const stream::Nonce& name, const Settings& settings);

}  // namespace bluecomm::nccl_net
