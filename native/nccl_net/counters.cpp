#include "nccl_net/counters.h"

#include <sstream>

namespace bluecomm::nccl_net {
namespace {

void put(std::ostream& out, const stream::StreamStats& one) {
  // Addresses contain no character that JSON would need to escape.
  out << "{\"peer\": \"" << one.peer << "\", \"bytes_sent\": " << one.bytes_sent
      << ", \"chunks_sent\": " << one.chunks_sent
      << ", \"bytes_received\": " << one.bytes_received
      << ", \"chunks_received\": " << one.chunks_received << "}";
}

}  // namespace

std::string format_counters(const std::vector<ConnectionStats>& connections) {
  std::ostringstream out;
  out << "[";
  const char* separator = "";
  for (const auto& [number, direction, link] : connections) {
    const stream::MessageStats& total = direction == "send" ? link.sent : link.received;
    out << separator << "{\"number\": " << number << ", \"direction\": \"" << direction
        << "\", \"messages\": " << total.messages << ", \"bytes\": " << total.bytes
        << ", \"streams\": [";
    const char* comma = "";
    for (const stream::StreamStats& one : link.streams) {
      out << comma;
      put(out, one);
      comma = ", ";
    }
    out << "]}";
    separator = ", ";
  }
  out << "]";
  return out.str();
}

}  // namespace bluecomm::nccl_net
