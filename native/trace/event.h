#pragma once

#include <cstddef>
#include <cstdint>

// The layout of a trace file. A rank writes it while it runs; bfrun/trace/spool.py
// reads it after the rank has ended or died. Integers have the machine's byte order,
// which is little-endian.
//
//   header      kHeaderBytes
//   names       header.names_capacity bytes: each a 16-bit length and that many bytes
//   events      header.capacity slots, used as a ring

namespace bluecomm {

// The types of events. Append, never renumber.
enum class EventType : std::uint32_t {
  kNone = 0,       // a slot that is empty or being written
  kEnqueue = 1,    // the program called an operation; a: group, b: bytes, c: sequence
  kOperation = 2,  // from the call to its end; a: group, b: Code, c: sequence
  kHeader = 3,     // the first sign that `peer` has called the operation too
  kLate = 4,       // the operation waited for `peer` to call it
  kData = 5,       // the operation waited for `peer` to deliver, or to take, its data
  kEdge = 6,       // traffic with `peer`; a, b: bytes, label, c: messages (sent, rcvd)
  kBlocked = 7,    // the program waited for the operation
  kCombine = 8,    // bytes were moved and combined
  kBegin = 9,      // the program began the activity `name` of the tensor `label` ...
  kEnd = 10,       // ... ended the last one begun for `label`, or the last `name`
  kDevice = 11,    // a device did the work `name`, in the row `label`; a: bytes
};

// One entry of the ring. Times are of CLOCK_MONOTONIC. `name` and `label` are offsets
// into the table of names; for an operation they are its name and its kind. `type` is
// written last.
struct Event {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::uint64_t operation = 0;  // unique in the file; 0: none
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint32_t name = 0;
  std::uint32_t label = 0;
  std::int32_t peer = -1;
  std::uint32_t thread = 0;
  std::uint32_t c = 0;
  EventType type = EventType::kNone;
};
static_assert(sizeof(Event) == 64);

inline constexpr std::size_t kHeaderBytes = 4096;
inline constexpr std::uint32_t kTraceVersion = 1;

struct TraceHeader {
  char magic[8];  // "BLUETRCE"
  std::uint32_t version;
  std::uint32_t event_bytes;
  std::uint64_t capacity;
  std::uint64_t written;  // number of events so far; the file holds the last `capacity`
  std::uint64_t names_capacity;
  std::uint64_t names_bytes;  // used
  std::int64_t started_ns;    // CLOCK_MONOTONIC
  std::int64_t started_unix_ns;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t pid;
  std::uint32_t main_thread;
};
static_assert(sizeof(TraceHeader) <= kHeaderBytes);

}  // namespace bluecomm
