#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/hmac.h"

// How the two ends of a new connection prove to each other that they belong together.
//
//   dialer -> acceptor   Hello: who I am, whom I want, a nonce; keyed
//   acceptor -> dialer   Reply: another nonce; keyed over Hello and itself
//   dialer -> acceptor   Proof: keyed over Hello and Reply
//
// Keyed = HMAC-SHA256 with the job's secret, each with a label of its own. The acceptor
// says nothing to a stranger; a replayed Hello gets a Reply to which its sender has no
// Proof. Anything unexpected fails, and what failed is closed without a word.

namespace bluecomm::stream {

using Nonce = std::array<std::byte, 16>;

inline constexpr std::array<char, 8> kMagic{'b', 'l', 'u', 'e', 't', 'c', 'p', '3'};

// Who wants what; sent as it is.
struct Hello {
  std::array<char, 8> magic = kMagic;
  std::uint32_t stream = 0;    // 0: a new link; else one more stream of `group`
  std::uint32_t reserved = 0;  // always 0
  std::int32_t from = 0;       // ranks
  std::int32_t to = 0;
  std::uint64_t epoch = 0;
  Digest job{};   // of the job's id
  Nonce group{};  // chosen by the dialer for stream 0: names the link
  Nonce nonce{};  // a fresh one for each connection
};
static_assert(sizeof(Hello) == 96);

// One end's part. Pure: no socket, no clock, no random numbers of its own.
class Handshake {
 public:
  enum class State { kRunning, kDone, kFailed };

  static Handshake dial(std::span<const std::byte> key, const Hello& hello);
  // `me`: the hello's `to`, `epoch` and `job` must be these.
  static Handshake accept(std::span<const std::byte> key, const Hello& me,
                          const Nonce& nonce);

  State state() const { return state_; }

  // Bytes to be sent now; sent() takes them off.
  std::span<const std::byte> output() const;
  void sent(std::size_t nbytes);

  // Where the next bytes go. Never longer than what this end still expects: what
  // follows on the connection stays in the socket. Empty: nothing is expected now.
  std::span<std::byte> space();
  void received(std::size_t nbytes);

  // The peer has shown that it knows the key. An acceptor now has the peer's hello.
  bool greeted() const { return greeted_; }
  const Hello& hello() const { return hello_; }

 private:
  enum class Step { kAwaitHello, kAwaitReply, kAwaitProof, kSend };

  Handshake(std::span<const std::byte> key, const Hello& hello, const Nonce& nonce,
            Step step);

  void expect(Step step);
  void check_hello();
  void check_reply();
  void check_proof();
  Digest keyed(const char* label) const;
  void put(std::span<const std::byte> bytes);

  std::vector<std::byte> key_;
  Hello hello_;  // an acceptor's own expectations until greeted
  Nonce nonce_;  // the acceptor's
  Step step_;
  State state_ = State::kRunning;
  bool greeted_ = false;
  std::vector<std::byte> input_;
  std::size_t received_ = 0;
  std::vector<std::byte> output_;
  std::size_t sent_ = 0;
};

}  // namespace bluecomm::stream
