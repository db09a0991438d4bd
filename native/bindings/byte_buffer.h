#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace bluecomm::bindings {

// Returns the description of writable bytes for Python's buffer protocol.
inline pybind11::buffer_info byte_buffer(std::span<std::byte> bytes) {
  return {bytes.data(),
          1,
          pybind11::format_descriptor<std::uint8_t>::format(),
          1,
          {static_cast<pybind11::ssize_t>(bytes.size())},
          {1}};
}

}  // namespace bluecomm::bindings
