#include "common/sha256.h"

#include <string>
#include <string_view>

#include "tests/check.h"

namespace bluecomm {
namespace {

Digest digest_of(std::string_view text) {
  return sha256(std::as_bytes(std::span(text)));
}

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) {
    text += "0123456789abcdef"[std::to_integer<int>(byte >> 4)];
    text += "0123456789abcdef"[std::to_integer<int>(byte & std::byte{15})];
  }
  return text;
}

// NIST, "SHA-2 Additional" and FIPS 180-4 examples.
TEST(sha256, matches_the_published_vectors) {
  CHECK_EQ(hex(digest_of("")),
           "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(hex(digest_of("abc")),
           "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(hex(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_EQ(hex(digest_of(std::string(1'000'000, 'a'))),
           "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(sha256, does_not_depend_on_how_the_bytes_are_cut) {
  const std::string text(200, 'x');
  for (std::size_t length = 0; length <= text.size(); ++length) {
    const auto data = std::as_bytes(std::span(text)).first(length);
    Sha256 hash;
    hash.update(data.first(length / 3));
    hash.update(data.subspan(length / 3, 0));
    hash.update(data.subspan(length / 3));
    CHECK_EQ(hex(hash.finish()), hex(sha256(data)));
  }
}

}  // namespace
}  // namespace bluecomm
