#include "nccl_net/listen_handle.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include "common/hmac.h"
#include "nccl_net/failure.h"

namespace bluecomm::nccl_net {
namespace {

constexpr std::array<char, 8> kMagic{'b', 'l', 'u', 'e', 'n', 'e', 't', '4'};
constexpr std::chrono::milliseconds kMaxHandshake{5000};
constexpr std::chrono::milliseconds kMaxRefused{5000};
// Copying a message up to this size costs less than a chunk of its own.
constexpr std::size_t kEagerBytes = 32 << 10;
// As much as the kernel's buffers hold for NCCL's sockets. If the two ends seldom have
// a core at the same time, this limits what the sender can send in its turn.
constexpr std::size_t kEagerCredit = 32 << 20;
// Messages of up to this size are unsolicited. Longer ones wait until their irecv has
// been announced, which costs little in relation to their size.
constexpr std::size_t kUnsolicitedBytes = 4 << 20;

// The bytes of a handle.
struct HandleLayout {
  std::array<char, 8> magic;
  std::uint64_t connect_id;
  stream::Nonce name;
  sockaddr_in6 address;  // or a sockaddr_in
  std::array<std::byte, 2> key_check;
  std::array<std::byte, 2> unused;
};
static_assert(sizeof(HandleLayout) <= abi::kHandleSize);

}  // namespace

ListenHandle::ListenHandle(const stream::Nonce& name, const stream::Address& address,
                           std::string_view key)
    : ListenHandle(name, address, check_value(key)) {}

ListenHandle::ListenHandle(const stream::Nonce& name, const stream::Address& address,
                           KeyCheck key_check)
    : name_(name), key_check_(key_check) {
  std::memcpy(&address_, address.data(), address.size());
}

// The value does not depend on the name. So all handles of a job together reveal only
// these 16 bits of the key's digest to a reader of NCCL's bootstrap.
ListenHandle::KeyCheck ListenHandle::check_value(std::string_view key) {
  constexpr std::string_view kLabel = "bluecomm key check";
  const Digest digest =
      hmac_sha256(std::as_bytes(std::span(key)), std::as_bytes(std::span(kLabel)));
  return {digest[0], digest[1]};
}

void ListenHandle::require_key(std::string_view key) const {
  if (key_check_ == check_value(key)) return;
  throw Failure(
      abi::kInvalidUsage,
      std::string("BLUECOMM_NET_KEY differs from the receiver's: this process ") +
          (key.empty() ? "has none" : "has another key") +
          "; set the same key on all ranks, or on none");
}

ListenHandle ListenHandle::read(const void* memory) {
  HandleLayout layout;
  std::memcpy(&layout, memory, sizeof layout);
  sockaddr_storage storage{};
  std::memcpy(&storage, &layout.address, sizeof layout.address);
  const int family = storage.ss_family;
  if (layout.magic != kMagic || (family != AF_INET && family != AF_INET6)) {
    throw Failure(abi::kInvalidUsage,
                  "the peer listens with another network plugin or another "
                  "version of bluecomm; use the same on all ranks");
  }
  ListenHandle handle(layout.name,
                      stream::Address(storage, stream::address_length(family)),
                      layout.key_check);
  handle.connect_id = layout.connect_id;
  return handle;
}

void ListenHandle::write(void* memory) const {
  HandleLayout layout{kMagic, connect_id, name_, {}, key_check_, {}};
  std::memcpy(&layout.address, &address_, sizeof layout.address);
  std::memcpy(memory, &layout, sizeof layout);
}

stream::Address ListenHandle::address(const Device& device) const {
  sockaddr_storage storage = address_;
  if (storage.ss_family == AF_INET6) {
    auto* six = reinterpret_cast<sockaddr_in6*>(&storage);
    // The index of an interface is valid on its own host only.
    const bool local = IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr);
    six->sin6_scope_id = local ? device.index : 0;
  }
  return stream::Address(storage, stream::address_length(storage.ss_family));
}

Identity identity_of(const stream::Nonce& name, const Settings& settings) {
  Identity identity;
  stream::Options& options = identity.options;
  const Digest key = hmac_sha256(std::as_bytes(std::span(settings.key)), name);
  options.key.assign(key.begin(), key.end());
  options.streams = settings.streams;
  options.eager_bytes = kEagerBytes;
  options.eager_credit = kEagerCredit;
  options.unsolicited_bytes = kUnsolicitedBytes;
  // NCCL wants the messages in their order.
  options.in_order = true;
  options.limit_unsent = false;
  options.checksum = settings.checksum;
  options.connect_timeout = options.silence_timeout = settings.timeout;
  options.handshake_timeout = std::min(kMaxHandshake, settings.timeout);
  options.refused_timeout = std::min(kMaxRefused, settings.timeout);
  // The lower number chooses the streams. The sender dials, so it gets number 0.
  identity.sender.from = identity.receiver.to = 0;
  identity.sender.to = identity.receiver.from = 1;
  identity.sender.job = identity.receiver.job = sha256(name);
  return identity;
}

}  // namespace bluecomm::nccl_net
