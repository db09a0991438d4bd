// Writes and reads the envelopes of messages. The dispatcher calls these functions: for
// its own calls on the thread that submits, for received headers under the progress
// lock. Headers come from peers, so read_envelope() checks every field that is used as
// an index or an enumerator.
#include "engine/envelope.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace bluecomm {
namespace {

static_assert(std::is_trivially_copyable_v<Envelope>);

template <typename T>
std::uint64_t mix(std::uint64_t hash, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return hash_bytes({reinterpret_cast<const char*>(&value), sizeof value}, hash);
}

std::uint64_t hash_shape(const Call& call) {
  const ShapeRule rule = kind_info(call.kind).shape;
  if (rule == ShapeRule::kNoTensor) return 0;
  std::uint64_t hash = mix(1, call.shape.size());
  const std::size_t first = rule == ShapeRule::kAllButFirst ? 1 : 0;
  for (std::size_t i = first; i < call.shape.size(); ++i) {
    hash = mix(hash, call.shape[i]);
  }
  return hash;
}

std::uint64_t hash_group(const Call& call) {
  std::uint64_t hash = 2;
  for (const int rank : call.group->ranks) hash = mix(hash, rank);
  return hash;
}

// Returns the length to which a name is cut, without splitting a UTF-8 character.
std::size_t shown_length(std::string_view name) {
  if (name.size() <= Envelope::kMaxName) return name.size();
  std::size_t length = Envelope::kMaxName;
  while (length > 0 && (static_cast<unsigned char>(name[length]) & 0xC0) == 0x80) {
    --length;
  }
  return length;
}

}  // namespace

std::size_t KeyHash::operator()(const Key& key) const noexcept {
  std::uint64_t hash = key.group * 0x9E3779B97F4A7C15ULL;
  hash ^= key.name + (static_cast<std::uint64_t>(key.sequence) << 17) + key.epoch;
  hash *= 0xBF58476D1CE4E5B9ULL;
  return static_cast<std::size_t>(hash ^ (hash >> 31));
}

std::uint64_t hash_bytes(std::string_view bytes, std::uint64_t seed) {
  std::uint64_t hash = 0xCBF29CE484222325ULL ^ (seed * 0x9E3779B97F4A7C15ULL);
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3ULL;
  }
  return hash;
}

std::uint64_t name_hash(const Call& call) {
  std::uint64_t hash = hash_bytes(call.name);
  if (call.name.empty()) hash = mix(hash, call.kind);
  if (kind_info(call.kind).is_pairwise && !call.sources.empty()) {
    const auto [low, high] = std::minmax(call.group->me, call.sources.front().first);
    hash = mix(mix(hash, low), high);
  }
  return hash;
}

Envelope make_envelope(const Call& call, Algorithm algorithm, std::uint64_t job,
                       std::uint32_t epoch, std::uint32_t sequence) {
  const KindInfo& kind = kind_info(call.kind);
  Envelope envelope;
  envelope.job = job;
  envelope.key = {call.group->id, name_hash(call), epoch, sequence};
  envelope.kind = call.kind;
  envelope.algorithm = algorithm;
  if (kind.shape != ShapeRule::kNoTensor) envelope.dtype = call.dtype;
  if (kind.is_reduction) {
    envelope.op = call.op;
    envelope.prescale = call.prescale;
    envelope.postscale = call.postscale;
  }
  if (kind.has_root) envelope.root = call.root;
  envelope.local_only = call.local_only ? 1 : 0;
  envelope.shape_hash = hash_shape(call);
  envelope.group_hash = hash_group(call);
  envelope.ndim =
      static_cast<std::uint8_t>(std::min<std::size_t>(call.shape.size(), 255));
  std::copy_n(call.shape.begin(), std::min(call.shape.size(), Envelope::kMaxDims),
              envelope.dims.begin());
  envelope.name_length = static_cast<std::uint8_t>(shown_length(call.name));
  std::copy_n(call.name.begin(), envelope.name_length, envelope.name.begin());
  return envelope;
}

bool agree(const Envelope& a, const Envelope& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op &&
         a.algorithm == b.algorithm && a.local_only == b.local_only &&
         a.root == b.root && a.shape_hash == b.shape_hash &&
         a.group_hash == b.group_hash && a.prescale == b.prescale &&
         a.postscale == b.postscale;
}

Header to_header(const Envelope& envelope, std::size_t nbytes) {
  Header header;
  header.nbytes = nbytes;
  std::memcpy(header.envelope.data(), &envelope, sizeof envelope);
  return header;
}

std::optional<Envelope> read_envelope(const Header& header) {
  Envelope envelope;
  std::memcpy(static_cast<void*>(&envelope), header.envelope.data(), sizeof envelope);
  if (!is_operation_message(envelope.type) || !is_kind(envelope.kind) ||
      !dtype_from_value(static_cast<std::uint8_t>(envelope.dtype)) ||
      envelope.op > ReduceOp::kBitXor || envelope.algorithm > Algorithm::kTicket ||
      envelope.local_only > 1 || envelope.name_length > Envelope::kMaxName ||
      envelope.code < static_cast<int>(Code::kOk) ||
      envelope.code > static_cast<int>(Code::kInternal)) {
    return std::nullopt;
  }
  const bool is_posted = envelope.type != MessageType::kData;
  if (is_posted && header.nbytes > Channel::kMaxPost) return std::nullopt;
  return envelope;
}

}  // namespace bluecomm
