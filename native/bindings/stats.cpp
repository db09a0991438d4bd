#include "bindings/stats.h"

namespace py = pybind11;

namespace bluecomm::bindings {
namespace {

py::dict to_dict(const EdgeStats& edge) {
  return py::dict(py::arg("messages_sent") = edge.messages_sent,
                  py::arg("bytes_sent") = edge.bytes_sent,
                  py::arg("messages_received") = edge.messages_received,
                  py::arg("bytes_received") = edge.bytes_received,
                  py::arg("wait_s") = edge.wait_s, py::arg("late_s") = edge.late_s);
}

py::dict to_dict(const KindStats& kind) {
  return py::dict(py::arg("calls") = kind.calls, py::arg("failures") = kind.failures,
                  py::arg("duration_s") = kind.duration_s,
                  py::arg("blocked_s") = kind.blocked_s);
}

py::dict to_dict(const StreamCounters& stream) {
  return py::dict(py::arg("address") = stream.peer,
                  py::arg("bytes_sent") = stream.bytes_sent,
                  py::arg("chunks_sent") = stream.chunks_sent,
                  py::arg("bytes_received") = stream.bytes_received,
                  py::arg("chunks_received") = stream.chunks_received);
}

py::dict to_dict(const PeerStats& peer) {
  py::dict operations;
  for (const auto& [kind, edge] : peer.edges) {
    operations[py::str(request_kind_name(kind))] = to_dict(edge);
  }
  py::list streams;
  for (const StreamCounters& stream : peer.channel.streams) {
    streams.append(to_dict(stream));
  }
  return py::dict(py::arg("rank") = peer.rank, py::arg("transport") = peer.transport,
                  py::arg("messages_sent") = peer.channel.messages_sent,
                  py::arg("bytes_sent") = peer.channel.bytes_sent,
                  py::arg("messages_received") = peer.channel.messages_received,
                  py::arg("bytes_received") = peer.channel.bytes_received,
                  py::arg("operations") = operations, py::arg("streams") = streams);
}

}  // namespace

py::dict to_dict(const Stats& stats) {
  py::list peers;
  for (const PeerStats& peer : stats.peers) peers.append(to_dict(peer));
  py::dict operations;
  for (const auto& [kind, counted] : stats.kinds) {
    operations[py::str(request_kind_name(kind))] = to_dict(counted);
  }
  return py::dict(py::arg("age_s") = stats.age_s, py::arg("replaced") = stats.replaced,
                  py::arg("dropped") = stats.dropped,
                  py::arg("overlapped") = stats.overlapped, py::arg("peers") = peers,
                  py::arg("operations") = operations);
}

}  // namespace bluecomm::bindings
