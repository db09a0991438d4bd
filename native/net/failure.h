#pragma once

#include <stdexcept>
#include <string>

#include "net/abi.h"

namespace bluecomm::net {

// Why a call fails, and with which result.
struct Failure : std::runtime_error {
  Failure(abi::Result code, const std::string& text)
      : std::runtime_error(text), result(code) {}

  abi::Result result;
};

}  // namespace bluecomm::net
