#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>

#include "transport/shm/options.h"

namespace bluecomm::test {

// A directory below /tmp that is removed with all its contents.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string path = "/tmp/bluecomm-native-test-XXXXXX";
    if (!mkdtemp(path.data())) throw std::runtime_error("mkdtemp failed");
    path_ = path;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline ShmOptions shm_options(int rank, const std::string& directory) {
  ShmOptions options;
  options.rank = rank;
  options.job = "test";
  options.epoch = 3;
  options.machine = "here";
  options.secret.resize(32, std::byte{7});
  options.socket_dir = directory;
  options.memory = std::make_shared<SharedMemory>();
  return options;
}

}  // namespace bluecomm::test
