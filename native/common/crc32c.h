#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bluecomm {

// Returns the CRC-32C (Castagnoli) of the bytes, with the processor's CRC instruction
// if it has one. To checksum data in pieces, pass the checksum of the preceding pieces
// as `before`. Source: RFC 3720, section 12.1.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace bluecomm
