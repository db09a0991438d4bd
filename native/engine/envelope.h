#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/dtype.h"
#include "common/status.h"
#include "engine/plan.h"
#include "engine/request.h"
#include "transport/channel.h"

// What the engine writes into the header of each message: which call the message
// belongs to, and what that call was, so that ranks that disagree notice and can say
// how.

namespace bluecomm {

// Names one call of an operation, alike on all ranks that take part in it. `sequence`
// counts the calls of (group, name); those of pair_gossip are counted per pair, which
// `name` covers then. Unnamed calls are counted per kind.
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

enum class MessageType : std::uint8_t {
  kData = 1,
  kAbort = 2,  // the operation `key` has failed at the sender; the payload is the text
};

struct Envelope {
  static constexpr std::size_t kMaxName = 76;
  static constexpr std::size_t kMaxDims = 6;

  std::uint64_t job = 0;
  Key key;
  MessageType type = MessageType::kData;

  // The call, as far as all ranks must agree: its fingerprint. What does not matter for
  // the kind is zero.
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  Algorithm algorithm = Algorithm::kFlat;
  std::uint8_t local_only = 0;

  // For texts only: `dims` holds the first of `ndim` dimensions.
  std::uint8_t ndim = 0;
  std::uint8_t name_length = 0;

  std::int32_t root = 0;         // fingerprint
  std::uint32_t phase = 0;       // of the message
  std::uint64_t shape_hash = 0;  // fingerprint
  std::uint64_t group_hash = 0;  // fingerprint: ranks of the group
  double prescale = 1.0;         // fingerprint
  double postscale = 1.0;        // fingerprint

  // The message.
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

// The envelope of all messages of `request`, less what belongs to one message.
Envelope make_envelope(const Request& request, Algorithm algorithm, std::uint64_t job,
                       std::uint32_t epoch, std::uint32_t sequence);

// Key::name of `request`.
std::uint64_t name_hash(const Request& request);

// True when both come from calls that fit together.
bool agree(const Envelope& a, const Envelope& b);

Header to_header(const Envelope& envelope, std::size_t nbytes);

// Nothing when no engine of this version can have written it.
std::optional<Envelope> read_envelope(const Header& header);

// FNV-1a; stable, because hashes are compared between processes.
std::uint64_t hash_bytes(std::string_view bytes, std::uint64_t seed = 0);

}  // namespace bluecomm
