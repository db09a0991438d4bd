#include "window/published_value.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

struct PublishedMemory {
  PublishedMemory(std::size_t nbytes, std::size_t readers)
      : storage(PublishedValue::nbytes_for(nbytes, readers) + 64) {
    void* start = storage.data();
    std::size_t room = storage.size();
    std::align(64, storage.size() - 64, start, room);
    bytes = {static_cast<std::byte*>(start), room};
    PublishedValue::initialize(bytes, readers);
  }

  std::vector<std::byte> storage;
  std::span<std::byte> bytes;
};

TEST(published_value, a_value_stays_unchanged_while_it_is_read) {
  PublishedMemory memory(3, 2);
  PublishedValue value(memory.bytes, 3, 2);
  const auto publish = [&](int byte) {
    value.publish(std::vector<std::byte>(3, std::byte(byte)), byte);
  };
  publish(1);
  const PublishedValue::View first = value.begin_read(0);
  publish(2);
  const PublishedValue::View second = value.begin_read(1);
  for (int i = 3; i < 20; ++i) publish(i);
  CHECK(first.bytes[2] == std::byte{1});
  CHECK_EQ(first.p, 1.0);
  CHECK(second.bytes[0] == std::byte{2});
  value.end_read(0);
  const PublishedValue::View last = value.begin_read(0);
  CHECK(last.bytes[1] == std::byte{19});
  CHECK_EQ(last.p, 19.0);
}

TEST(published_value, no_read_is_torn_while_the_writer_never_stops) {
  constexpr std::size_t kBytes = 50000;
  constexpr std::size_t kReaders = 2;
  PublishedMemory memory(kBytes, kReaders);
  PublishedValue value(memory.bytes, kBytes, kReaders);
  std::atomic<int> reading = kReaders;
  std::vector<std::thread> readers;
  for (std::size_t reader = 0; reader < kReaders; ++reader) {
    readers.emplace_back([&, reader] {
      PublishedValue mine(memory.bytes, kBytes, kReaders);
      double last = 0;
      for (int i = 0; i < 200; ++i) {
        const PublishedValue::View view = mine.begin_read(reader);
        const std::byte first = view.bytes[0];
        CHECK(std::all_of(view.bytes.begin(), view.bytes.end(),
                          [&](std::byte one) { return one == first; }));
        CHECK(view.p >= last);
        last = view.p;
        mine.end_read(reader);
      }
      --reading;
    });
  }
  std::vector<std::byte> bytes(kBytes);
  value.publish(bytes, 1.0);
  for (int i = 1; reading.load() > 0; ++i) {
    std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(i));
    value.publish(bytes, 1.0 + i);
  }
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace bluecomm::test
