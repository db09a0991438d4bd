#include "stream/libcrypto.h"

#include <dlfcn.h>

#include <array>
#include <stdexcept>

namespace bluecomm::stream {
namespace {

// Newest first.
constexpr std::array kNames{"libcrypto.so.3", "libcrypto.so.1.1"};

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool bind(void* library, Libcrypto& made) {
  return find(library, "EVP_CIPHER_CTX_new", made.new_context) &&
         find(library, "EVP_CIPHER_CTX_free", made.free_context) &&
         find(library, "EVP_aes_256_gcm", made.aes_256_gcm) &&
         find(library, "EVP_CipherInit_ex", made.init) &&
         find(library, "EVP_CipherUpdate", made.update) &&
         find(library, "EVP_CipherFinal_ex", made.final) &&
         find(library, "EVP_CIPHER_CTX_ctrl", made.control);
}

// Returns whether the library seals an empty record as in test case 13 of the
// specification of GCM. The test fails if the declarations do not match the library.
bool works(const Libcrypto& made) {
  constexpr std::array<unsigned char, 16> kExpected{0x53, 0x0f, 0x8a, 0xfb, 0xc7, 0x45,
                                                    0x36, 0xb9, 0xa9, 0x63, 0xb4, 0xf1,
                                                    0xc4, 0xcb, 0x73, 0x8b};
  const std::array<unsigned char, 32> key{};
  const std::array<unsigned char, 12> nonce{};
  std::array<unsigned char, 16> tag{};
  int written = 0;
  Libcrypto::Context* const context = made.new_context();
  if (context == nullptr) return false;
  const bool sealed =
      made.init(context, made.aes_256_gcm(), nullptr, key.data(), nonce.data(), 1) ==
          1 &&
      made.final(context, tag.data(), &written) == 1 &&
      made.control(context, Libcrypto::kGetTag, tag.size(), tag.data()) == 1;
  made.free_context(context);
  return sealed && tag == kExpected;
}

}  // namespace

Libcrypto load_libcrypto(std::span<const char* const> names) {
  std::string failures;
  for (const char* name : names) {
    // RTLD_LOCAL, because another library of the process may contain a libcrypto.
    void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const char* const error = library == nullptr ? dlerror() : nullptr;
    Libcrypto made;
    if (library != nullptr && bind(library, made) && works(made)) {
      made.name = name;
      return made;
    }
    if (library != nullptr) dlclose(library);
    failures += failures.empty() ? "" : "; ";
    failures += error != nullptr ? error : std::string(name) + " has no AES-256-GCM";
  }
  throw std::runtime_error(
      "OpenSSL's libcrypto 1.1 or 3 was not found (" + failures +
      "); install it on this host (package libssl3 or "
      "openssl-libs), or set BLUECOMM_ENCRYPTION=off on all ranks");
}

const Libcrypto& libcrypto() {
  static const Libcrypto loaded = load_libcrypto(kNames);
  return loaded;
}

}  // namespace bluecomm::stream
