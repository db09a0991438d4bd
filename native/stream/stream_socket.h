#pragma once

#include <memory>
#include <utility>

#include "common/fd.h"
#include "stream/record_cipher.h"

namespace bluecomm::stream {

// A connected socket whose handshake is done, and the cipher of its bytes, which is
// null if they are not protected.
struct StreamSocket {
  StreamSocket() = default;
  StreamSocket(UniqueFd made, std::unique_ptr<RecordCipher> protection = nullptr)
      : fd(std::move(made)), cipher(std::move(protection)) {}

  UniqueFd fd;
  std::unique_ptr<RecordCipher> cipher;
};

}  // namespace bluecomm::stream
