#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/hmac.h"

// How the two ends of a new connection show each other that they belong together.
//
//   acceptor -> dialer   Challenge: a nonce
//   dialer -> acceptor   Hello: who I am, whom I want, a nonce; keyed. With the link's
//                        memory and the dialer's doorbell
//   acceptor -> dialer   Answer: keyed. With the acceptor's doorbell, unless it refuses
//
// Keyed = HMAC-SHA256 with the job's secret over both nonces and all the rest. A
// stranger gets no answer. The user id is checked before, by the socket.

namespace bluecomm::shm {

using Nonce = std::array<std::byte, 16>;

inline constexpr std::array<char, 8> kMagic{'b', 'l', 'u', 'e', 's', 'h', 'm', '1'};

struct Challenge {
  std::array<char, 8> magic = kMagic;
  Nonce nonce{};
};

struct Hello {
  std::array<char, 8> magic = kMagic;
  std::int32_t from = 0;  // ranks
  std::int32_t to = 0;
  std::uint64_t epoch = 0;
  Digest job{};  // of the job's id
  Nonce nonce{};
  Digest mac{};
};

enum class Verdict : std::uint32_t {
  kAccepted,
  kCrossed,           // the acceptor dials itself, and its connection counts
  kAlreadyConnected,  // the dialer's rank has a link to another process already
};

struct Answer {
  std::array<char, 8> magic = kMagic;
  Verdict verdict = Verdict::kAccepted;
  std::int32_t pid = 0;  // kAlreadyConnected: that process
  Digest mac{};
};

Nonce make_nonce();

// Of `hello` without its own mac.
Digest hello_mac(std::span<const std::byte> secret, const Challenge& challenge,
                 const Hello& hello);
Digest answer_mac(std::span<const std::byte> secret, const Challenge& challenge,
                  const Hello& hello, const Answer& answer);

}  // namespace bluecomm::shm
