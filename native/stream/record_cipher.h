#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "common/sha256.h"
#include "stream/libcrypto.h"

// The protection of one stream. Each direction of each stream has a key of its own,
// derived by the handshake, and numbers its records from 0; the number is the nonce of
// AES-256-GCM. So a record that was changed, repeated, left out, moved or taken from
// another stream does not match its tag.
//
// A frame is one record, or two if it has a payload: the frame, its tag, the payload,
// its tag. So the length of the payload is authentic before the payload is read.

namespace bluecomm::stream {

enum class Encryption : std::uint32_t {
  kOff,
  kAuth,  // records are authenticated, and readable by anybody
  kFull,  // records are encrypted and authenticated
};

// Returns "off", "auth" or "full".
std::string_view name_of(Encryption mode);
// Throws std::invalid_argument for any other name.
Encryption parse_encryption(std::string_view name);

// Bytes that follow each record.
inline constexpr std::size_t kTagNbytes = 16;

// After this many records a direction derives a new key from its old one. So one key
// protects at most 2^36 bytes, and old keys cannot be found from new ones.
inline constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 18;

struct StreamKeys {
  Digest send{};
  Digest receive{};
};

// One direction of a stream. Throws std::runtime_error if libcrypto fails.
class DirectionCipher {
 public:
  enum class Role { kSeal, kOpen };

  DirectionCipher(Encryption mode, Role role, const Digest& key);

  // Seals the record that consists of `parts`: writes as many bytes as they have, then
  // the tag, to `out`.
  void seal(std::span<const std::span<const std::byte>> parts, std::byte* out);
  // Opens a record in place. Returns false if it does not match its tag; its bytes are
  // then undefined.
  [[nodiscard]] bool open(std::span<std::byte> record, std::span<const std::byte> tag);
  // Advances past a record without opening it.
  void skip() { ++records_; }

 private:
  struct Free {
    void operator()(Libcrypto::Context* context) const {
      libcrypto().free_context(context);
    }
  };

  void start_record();
  void set_key();

  const Libcrypto& library_;
  const Encryption mode_;
  const int encrypt_;
  std::unique_ptr<Libcrypto::Context, Free> context_;
  Digest key_;
  std::uint64_t key_number_ = 0;
  std::uint64_t records_ = 0;
};

// Both directions of a stream.
struct RecordCipher {
  RecordCipher(Encryption mode, const StreamKeys& keys)
      : sealer(mode, DirectionCipher::Role::kSeal, keys.send),
        opener(mode, DirectionCipher::Role::kOpen, keys.receive) {}

  DirectionCipher sealer;
  DirectionCipher opener;
};

}  // namespace bluecomm::stream
