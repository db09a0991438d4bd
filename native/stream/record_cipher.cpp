#include "stream/record_cipher.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>

#include "common/hmac.h"

namespace bluecomm::stream {
namespace {

constexpr std::array<std::string_view, 3> kModes{"off", "auth", "full"};

const unsigned char* chars(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

unsigned char* chars(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}

void check(int result, const char* function) {
  if (result != 1) throw std::runtime_error(std::string("libcrypto: ") + function);
}

Digest next_key(const Digest& key) {
  constexpr std::string_view kLabel = "bluecomm stream next key";
  return hmac_sha256(key, std::as_bytes(std::span(kLabel)));
}

}  // namespace

std::string_view name_of(Encryption mode) {
  return kModes[static_cast<std::size_t>(mode)];
}

Encryption parse_encryption(std::string_view name) {
  const auto found = std::find(kModes.begin(), kModes.end(), name);
  if (found != kModes.end()) return static_cast<Encryption>(found - kModes.begin());
  throw std::invalid_argument("encryption must be off, auth or full, got '" +
                              std::string(name) + "'");
}

DirectionCipher::DirectionCipher(Encryption mode, Role role, const Digest& key)
    : library_(libcrypto()),
      mode_(mode),
      encrypt_(role == Role::kSeal ? 1 : 0),
      context_(library_.new_context()),
      key_(key) {
  if (!context_) throw std::runtime_error("libcrypto: EVP_CIPHER_CTX_new");
  check(library_.init(context_.get(), library_.aes_256_gcm(), nullptr, nullptr, nullptr,
                      encrypt_),
        "EVP_CipherInit_ex");
  set_key();
}

void DirectionCipher::set_key() {
  check(library_.init(context_.get(), nullptr, nullptr, chars(key_.data()), nullptr,
                      encrypt_),
        "EVP_CipherInit_ex");
}

void DirectionCipher::start_record() {
  if (const std::uint64_t number = records_ / kRecordsPerKey; key_number_ != number) {
    for (; key_number_ < number; ++key_number_) key_ = next_key(key_);
    set_key();
  }
  std::array<unsigned char, 12> nonce{};
  std::memcpy(nonce.data(), &records_, sizeof records_);
  ++records_;
  check(
      library_.init(context_.get(), nullptr, nullptr, nullptr, nonce.data(), encrypt_),
      "EVP_CipherInit_ex");
}

void DirectionCipher::seal(std::span<const std::span<const std::byte>> parts,
                           std::byte* out) {
  start_record();
  int written = 0;
  for (const auto part : parts) {
    if (part.empty()) continue;
    // In mode "auth" the bytes are copied as they are.
    const bool hides = mode_ == Encryption::kFull;
    check(library_.update(context_.get(), hides ? chars(out) : nullptr, &written,
                          chars(part.data()), static_cast<int>(part.size())),
          "EVP_CipherUpdate");
    if (!hides) std::memcpy(out, part.data(), part.size());
    out += part.size();
  }
  check(library_.final(context_.get(), chars(out), &written), "EVP_CipherFinal_ex");
  check(library_.control(context_.get(), Libcrypto::kGetTag, kTagNbytes, out),
        "EVP_CIPHER_CTX_ctrl");
}

bool DirectionCipher::open(std::span<std::byte> record,
                           std::span<const std::byte> tag) {
  start_record();
  int written = 0;
  unsigned char* const to = mode_ == Encryption::kFull ? chars(record.data()) : nullptr;
  check(library_.update(context_.get(), to, &written, chars(record.data()),
                        static_cast<int>(record.size())),
        "EVP_CipherUpdate");
  std::array<std::byte, kTagNbytes> expected;
  std::copy(tag.begin(), tag.end(), expected.begin());
  check(
      library_.control(context_.get(), Libcrypto::kSetTag, kTagNbytes, expected.data()),
      "EVP_CIPHER_CTX_ctrl");
  std::array<unsigned char, kTagNbytes> rest;
  return library_.final(context_.get(), rest.data(), &written) == 1;
}

}  // namespace bluecomm::stream
