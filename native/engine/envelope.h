#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/dtype.h"
#include "common/status.h"
#include "engine/call.h"
#include "engine/plan.h"
#include "request/message_prefix.h"
#include "transport/channel.h"

// The envelope, which the engine writes into the header of each message. It identifies
// the call that the message belongs to and carries a fingerprint of its arguments, so
// that ranks whose calls do not match notice it and can describe the difference.

namespace bluecomm {

// Identifies one call of an operation; all ranks that take part compute the same key.
// `sequence` counts the calls with this (group, name). The hash `name` includes the
// kind if the call has no name, and the pair of ranks for pair_gossip, so these are
// counted separately.
struct Key {
  std::uint64_t group = 0;
  std::uint64_t name = 0;
  std::uint32_t epoch = 0;
  std::uint32_t sequence = 0;

  bool operator==(const Key&) const = default;
};

struct KeyHash {
  std::size_t operator()(const Key& key) const noexcept;
};

// The contents of a message header. Fields marked as fingerprint must be equal on all
// ranks; a field that does not matter for the kind is zero.
struct Envelope : MessagePrefix {
  static constexpr std::size_t kMaxName = 76;
  static constexpr std::size_t kMaxDims = 6;

  Key key;

  // Fingerprint.
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  Algorithm algorithm = Algorithm::kFlat;
  std::uint8_t local_only = 0;

  // For error texts only: `dims` holds the first of `ndim` dimensions.
  std::uint8_t ndim = 0;
  std::uint8_t name_length = 0;

  std::int32_t root = 0;         // fingerprint
  std::uint32_t phase = 0;       // number of the message's phase
  std::uint64_t shape_hash = 0;  // fingerprint
  std::uint64_t group_hash = 0;  // fingerprint: ranks of the group
  double prescale = 1.0;         // fingerprint
  double postscale = 1.0;        // fingerprint

  // Per message.
  std::uint32_t slot = 0;
  std::int32_t code = 0;  // kAbort: a Code
  double scale = 1.0;
  std::int64_t first_dim = 0;

  std::array<std::int64_t, kMaxDims> dims{};
  std::int32_t blamed = -1;  // kAbort: Status::rank
  std::array<char, kMaxName> name{};

  std::string_view name_text() const { return {name.data(), name_length}; }
};
static_assert(sizeof(Envelope) <= sizeof(Header::envelope));

// Returns the envelope of all messages of `call`, without the fields of single
// messages.
Envelope make_envelope(const Call& call, Algorithm algorithm, std::uint64_t job,
                       std::uint32_t epoch, std::uint32_t sequence);

// Returns Key::name for `call`.
std::uint64_t name_hash(const Call& call);

// Returns whether the fingerprints of two calls match.
bool agree(const Envelope& a, const Envelope& b);

Header to_header(const Envelope& envelope, std::size_t nbytes);

// Returns the envelope in `header`, or nothing if an engine of this version cannot have
// written it.
std::optional<Envelope> read_envelope(const Header& header);

// Returns the FNV-1a hash. It is stable, because hashes are compared between processes.
std::uint64_t hash_bytes(std::string_view bytes, std::uint64_t seed = 0);

}  // namespace bluecomm
