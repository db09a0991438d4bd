#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "trace/recorder.h"

namespace bluecomm::test {

// A trace file of a test, and access to its contents.
class TraceFile {
 public:
  TraceFile()
      : path_(std::filesystem::temp_directory_path() /
              ("trace_file_" + std::to_string(::getpid()) + "_" +
               std::to_string(count_++))) {}
  ~TraceFile() { std::filesystem::remove(path_); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  std::string path() const { return path_.string(); }

  TraceHeader header() const {
    const std::string bytes = read();
    TraceHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    return header;
  }

  std::vector<Event> slots() const {
    const std::string bytes = read();
    const std::size_t start = kHeaderBytes + header().names_capacity;
    std::vector<Event> events((bytes.size() - start) / sizeof(Event));
    std::memcpy(static_cast<void*>(events.data()), bytes.data() + start,
                events.size() * sizeof(Event));
    return events;
  }

  // The events in the order of their slots.
  std::vector<Event> events(EventType type) const {
    std::vector<Event> found = slots();
    std::erase_if(found, [&](const Event& event) { return event.type != type; });
    return found;
  }

  std::string name(std::uint32_t offset) const {
    const std::string bytes = read();
    std::uint16_t length = 0;
    std::memcpy(&length, bytes.data() + kHeaderBytes + offset, sizeof length);
    return bytes.substr(kHeaderBytes + offset + sizeof length, length);
  }

 private:
  std::string read() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static inline int count_ = 0;
  const std::filesystem::path path_;
};

}  // namespace bluecomm::test
