#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/hmac.h"
#include "stream/record_cipher.h"

// The handshake by which the two ends of a new connection prove to each other that they
// know the job's key.
//
//   dialer -> acceptor   Hello: own rank, wanted rank, a nonce; MAC of the Hello
//   acceptor -> dialer   Reply: another nonce; MAC of the Hello and the Reply
//   dialer -> acceptor   Proof: MAC of the Hello and the Reply
//
// Each MAC is an HMAC-SHA256 with the job's key and a label of its own. The acceptor
// sends nothing before the Hello is verified. A replayed Hello does not help: its
// sender cannot compute the Proof for the new Reply. Anything unexpected fails the
// handshake, and the connection is closed without an explanation.

namespace bluecomm::stream {

using Nonce = std::array<std::byte, 16>;

inline constexpr std::array<char, 8> kMagic{'b', 'l', 'u', 'e', 't', 'c', 'p', '3'};

// The first message of the dialer, in its wire format.
struct Hello {
  std::array<char, 8> magic = kMagic;
  std::uint32_t stream = 0;  // 0 for a new link, otherwise a further stream of `group`
  Encryption encryption = Encryption::kOff;  // of the connection, once it is open
  std::int32_t from = 0;                     // the ranks of the dialer ...
  std::int32_t to = 0;                       // ... and of the acceptor
  std::uint64_t epoch = 0;
  Digest job{};   // SHA-256 of the job's id
  Nonce group{};  // the name of the link, chosen by the dialer of stream 0
  Nonce nonce{};  // fresh for each connection
};
static_assert(sizeof(Hello) == 96);

// One end of a handshake. It uses no socket, no clock and no random numbers of its own:
// the owner moves the bytes (see drive() in socket.h).
class Handshake {
 public:
  enum class State { kRunning, kDone, kFailed };

  static Handshake dial(std::span<const std::byte> key, const Hello& hello);
  // Accepts a hello whose `to`, `epoch`, `job` and `encryption` are those of `me`.
  static Handshake accept(std::span<const std::byte> key, const Hello& me,
                          const Nonce& nonce);

  State state() const { return state_; }

  // The bytes to send now. sent() removes those that were sent.
  std::span<const std::byte> output() const;
  void sent(std::size_t nbytes);

  // Where to receive the next bytes. It is no longer than this end expects, so that the
  // bytes after the handshake stay in the socket. Empty if nothing is expected now.
  std::span<std::byte> space();
  void received(std::size_t nbytes);

  // Whether the peer's first message was verified. hello() of an acceptor is then the
  // peer's hello.
  bool greeted() const { return greeted_; }
  const Hello& hello() const { return hello_; }

  // In state kDone: the cipher of the connection, as both ends make it from the job's
  // key and both nonces; null if the hello asks for none.
  std::unique_ptr<RecordCipher> make_cipher() const;

 private:
  enum class Step { kAwaitHello, kAwaitReply, kAwaitProof, kSend };

  Handshake(std::span<const std::byte> key, const Hello& hello, const Nonce& nonce,
            Step step);

  void expect(Step step);
  void check_hello();
  void check_reply();
  void check_proof();
  Digest keyed(const char* label) const;
  Digest derive(const char* label) const;
  void put(std::span<const std::byte> bytes);

  std::vector<std::byte> key_;
  Hello hello_;  // until greeted_, an acceptor's expectations
  Nonce nonce_;  // of the acceptor
  const bool dials_;
  Step step_;
  State state_ = State::kRunning;
  bool greeted_ = false;
  std::vector<std::byte> input_;
  std::size_t received_ = 0;
  std::vector<std::byte> output_;
  std::size_t sent_ = 0;
};

}  // namespace bluecomm::stream
