#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "common/sha256.h"
#include "nccl_net/abi.h"
#include "nccl_net/devices.h"
#include "nccl_net/settings.h"
#include "stream/address.h"
#include "stream/handshake.h"
#include "stream/options.h"

namespace bluecomm::nccl_net {

// The handle that listen() gives to NCCL, which carries it to the peer's connect(): the
// listener's address, a random name that serves as the key of the connection, and a
// check value of the listener's BLUECOMM_NET_KEY.
class ListenHandle {
 public:
  ListenHandle(const stream::Nonce& name, const stream::Address& address,
               std::string_view key);
  // Reads a handle from NCCL's memory. Throws Failure if another plugin or another
  // version of this one wrote it.
  static ListenHandle read(const void* memory);
  void write(void* memory) const;

  const stream::Nonce& name() const { return name_; }
  // Throws Failure if the listener has another key. Without the check, connect() would
  // dial until its timeout.
  void require_key(std::string_view key) const;
  // Returns the listener's address as seen from `device`.
  stream::Address address(const Device& device) const;

  // The pending connect that the handle belongs to, or 0. connect() stores it here,
  // because NCCL passes the same memory to each call.
  std::uint64_t connect_id = 0;

 private:
  using KeyCheck = std::array<std::byte, 2>;

  ListenHandle(const stream::Nonce& name, const stream::Address& address,
               KeyCheck key_check);
  static KeyCheck check_value(std::string_view key);

  stream::Nonce name_{};
  sockaddr_storage address_{};
  KeyCheck key_check_{};
};

// The options and identities that both ends derive from the name in the handle.
struct Identity {
  stream::Options options;  // with the key
  stream::Hello sender;
  stream::Hello receiver;
};
Identity identity_of(const stream::Nonce& name, const Settings& settings);

}  // namespace bluecomm::nccl_net
