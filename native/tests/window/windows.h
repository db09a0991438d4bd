#pragma once

#include <cstddef>
#include <new>
#include <span>
#include <vector>

#include "window/window.h"

namespace bluecomm::test {

inline Window::Memory allocate_aligned(std::size_t nbytes) {
  constexpr std::align_val_t kLine{64};
  auto* const data = static_cast<std::byte*>(::operator new(nbytes, kLine));
  return Window::Memory(new std::span<std::byte>(data, nbytes),
                        [](std::span<std::byte>* bytes) {
                          ::operator delete(bytes->data(), std::align_val_t{64});
                          delete bytes;
                        });
}

inline std::span<const std::byte> bytes_of(const std::vector<double>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace bluecomm::test
