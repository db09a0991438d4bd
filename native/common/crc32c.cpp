#include "common/crc32c.h"

#include <array>
#include <cstring>

namespace bluecomm {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // bits reversed

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    }
    table[i] = value;
  }
  return table;
}

constexpr auto kTable = make_table();

std::uint32_t by_table(std::uint32_t crc, std::span<const std::byte> bytes) {
  for (const std::byte one : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint32_t>(one)) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(
    std::uint32_t crc, std::span<const std::byte> bytes) {
  std::uint64_t value = crc;
  while (bytes.size() >= sizeof value) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof word);
    value = __builtin_ia32_crc32di(value, word);
    bytes = bytes.subspan(sizeof word);
  }
  crc = static_cast<std::uint32_t>(value);
  for (const std::byte one : bytes) {
    crc = __builtin_ia32_crc32qi(crc, static_cast<std::uint8_t>(one));
  }
  return crc;
}

std::uint32_t update(std::uint32_t crc, std::span<const std::byte> bytes) {
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  return has_instruction ? by_instruction(crc, bytes) : by_table(crc, bytes);
}

#else

std::uint32_t update(std::uint32_t crc, std::span<const std::byte> bytes) {
  return by_table(crc, bytes);
}

#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  return ~update(~before, bytes);
}

}  // namespace bluecomm
