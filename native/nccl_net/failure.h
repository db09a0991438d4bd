#pragma once

#include <stdexcept>
#include <string>

#include "nccl_net/abi.h"

namespace bluecomm::nccl_net {

// The error of a call, with the result code that NCCL receives.
struct Failure : std::runtime_error {
  Failure(abi::Result code, const std::string& text)
      : std::runtime_error(text), result(code) {}

  abi::Result result;
};

}  // namespace bluecomm::nccl_net
