#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/hmac.h"

// The handshake in which both ends of a new connection prove that they belong to the
// same job.
//
//   acceptor -> dialer   Challenge: a nonce
//   dialer -> acceptor   Hello: both ranks, a nonce, keyed. Passes the shared memory of
//                        the connection and the dialer's doorbell
//   acceptor -> dialer   Answer: keyed. Passes the acceptor's doorbell unless the
//                        acceptor refuses the connection
//
// "Keyed" means an HMAC-SHA256 with the job's secret over both nonces and the rest of
// the message. A stranger gets no answer. The connector checks the user id of the
// socket's other end before the handshake.

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
  Digest job{};  // SHA-256 of the job's id
  Nonce nonce{};
  Digest mac{};
};

enum class AnswerKind : std::uint32_t {
  kAccepted,
  kCrossed,  // both ranks have dialed, and the acceptor's own connection is kept
  kAlreadyConnected,  // another process already has a connection as the dialer's rank
};

struct Answer {
  std::array<char, 8> magic = kMagic;
  AnswerKind kind = AnswerKind::kAccepted;
  std::int32_t pid = 0;  // of kAlreadyConnected: that process
  Digest mac{};
};

Nonce make_nonce();

// Returns the MAC of `hello`, computed as if its own `mac` were zero.
Digest hello_mac(std::span<const std::byte> secret, const Challenge& challenge,
                 const Hello& hello);
Digest answer_mac(std::span<const std::byte> secret, const Challenge& challenge,
                  const Hello& hello, const Answer& answer);

}  // namespace bluecomm::shm
