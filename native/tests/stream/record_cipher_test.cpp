// The protection of one stream against an attacker on the path.
#include "stream/record_cipher.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tests/check.h"

namespace bluecomm::stream {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::array kModes{Encryption::kAuth, Encryption::kFull};

// Both ends of a stream, with the keys that a handshake would give them.
struct Pair {
  explicit Pair(Encryption mode)
      : here(mode, {.send = Digest{std::byte{1}}, .receive = Digest{std::byte{2}}}),
        there(mode, {.send = Digest{std::byte{2}}, .receive = Digest{std::byte{1}}}) {}

  RecordCipher here;
  RecordCipher there;
};

Bytes text(std::string_view words) {
  const auto bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

Bytes seal(DirectionCipher& sealer, const Bytes& record) {
  Bytes sealed(record.size() + kTagNbytes);
  const std::array parts{std::span<const std::byte>(record)};
  sealer.seal(parts, sealed.data());
  return sealed;
}

// Opens a copy; returns the record, or "refused".
Bytes open(DirectionCipher& opener, Bytes sealed) {
  const std::size_t nbytes = sealed.size() - kTagNbytes;
  const std::span all(sealed);
  if (!opener.open(all.first(nbytes), all.last(kTagNbytes))) return text("refused");
  sealed.resize(nbytes);
  return sealed;
}

TEST(record_cipher, records_arrive_as_they_were_sent) {
  for (const Encryption mode : kModes) {
    Pair pair(mode);
    for (const std::size_t nbytes : {1, 24, 63, 64, 65, 256 << 10}) {
      const Bytes record(nbytes, std::byte{42});
      const Bytes sealed = seal(pair.here.sealer, record);
      CHECK(open(pair.there.opener, sealed) == record);
      const bool readable = std::equal(record.begin(), record.end(), sealed.begin());
      CHECK_EQ(readable, mode == Encryption::kAuth);
    }
    // The other direction, and a record in parts.
    const Bytes head = text("head");
    const Bytes tail = text("tail");
    Bytes sealed(head.size() + tail.size() + kTagNbytes);
    const std::array<std::span<const std::byte>, 3> parts{head, {}, tail};
    pair.there.sealer.seal(parts, sealed.data());
    CHECK(open(pair.here.opener, sealed) == text("headtail"));
  }
}

TEST(record_cipher, one_changed_bit_is_refused_wherever_it_is) {
  for (const Encryption mode : kModes) {
    const Bytes record(30, std::byte{42});
    for (std::size_t bit = 0; bit < 8 * (record.size() + kTagNbytes); ++bit) {
      Pair pair(mode);
      Bytes sealed = seal(pair.here.sealer, record);
      sealed[bit / 8] ^= std::byte(1 << bit % 8);
      CHECK(open(pair.there.opener, sealed) == text("refused"));
    }
  }
}

TEST(record_cipher, repeated_omitted_and_reordered_records_are_refused) {
  for (const Encryption mode : kModes) {
    for (const auto& order :
         {std::vector{0, 0}, std::vector{1}, std::vector{1, 0}, std::vector{0, 2}}) {
      Pair pair(mode);
      const std::array sealed{seal(pair.here.sealer, text("a")),
                              seal(pair.here.sealer, text("b")),
                              seal(pair.here.sealer, text("c"))};
      Bytes last;
      for (const int i : order) {
        last = open(pair.there.opener, sealed[static_cast<std::size_t>(i)]);
      }
      CHECK(last == text("refused"));
    }
  }
}

TEST(record_cipher, records_of_other_directions_keys_and_modes_are_refused) {
  Pair pair(Encryption::kFull);
  // An attacker sends a record back to where it came from.
  CHECK(open(pair.here.opener, seal(pair.here.sealer, text("a"))) == text("refused"));
  DirectionCipher other(Encryption::kFull, DirectionCipher::Role::kOpen,
                        Digest{std::byte{3}});
  CHECK(open(other, seal(pair.here.sealer, text("a"))) == text("refused"));
  Pair auth(Encryption::kAuth);
  Pair full(Encryption::kFull);
  CHECK(open(full.there.opener, seal(auth.here.sealer, text("a"))) == text("refused"));
}

TEST(record_cipher, both_ends_change_their_keys_together) {
  Pair pair(Encryption::kFull);
  const Bytes early = seal(pair.here.sealer, text("a"));
  CHECK(open(pair.there.opener, early) == text("a"));
  // Records that nobody needs, on both sides of a change and between two.
  for (std::uint64_t i = 1; i < 2 * kRecordsPerKey + 1; ++i) pair.there.opener.skip();
  for (std::uint64_t i = 1; i < 2 * kRecordsPerKey; ++i) {
    pair.here.sealer.skip();
  }
  const Bytes sealed = seal(pair.here.sealer, text("b"));
  CHECK(sealed != early);
  CHECK(open(pair.there.opener, seal(pair.here.sealer, text("c"))) == text("c"));
}

TEST(record_cipher, a_missing_library_is_an_error_with_a_remedy) {
  // The second one exists, and has no ciphers.
  CHECK_THROWS(load_libcrypto(std::array{"libnowhere.so.9", "libc.so.6"}),
               std::runtime_error, "libc.so.6 has no AES-256-GCM); install it");
  CHECK_THROWS(load_libcrypto(std::array{"libnowhere.so.9"}), std::runtime_error,
               "was not found (libnowhere.so.9: cannot open");
}

TEST(record_cipher, modes_have_names) {
  CHECK(parse_encryption("full") == Encryption::kFull);
  CHECK_EQ(name_of(Encryption::kAuth), "auth");
  CHECK_THROWS(parse_encryption("tls"), std::invalid_argument,
               "encryption must be off, auth or full, got 'tls'");
}

}  // namespace
}  // namespace bluecomm::stream
