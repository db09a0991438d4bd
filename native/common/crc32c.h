#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bluecomm {

// CRC-32C (Castagnoli) of the bytes; by the processor's own instruction where there is
// one. Source: RFC 3720, section 12.1.
// `before`: that of the bytes before these, if they are the rest of something.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace bluecomm
