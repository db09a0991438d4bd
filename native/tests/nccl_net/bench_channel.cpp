#include "tests/nccl_net/bench_channel.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <utility>
#include <vector>

#include "nccl_net/devices.h"
#include "stream/socket.h"
#include "tests/nccl_net/plugin_client.h"
#include "tests/nccl_net/socket_strategy.h"

namespace bluecomm::test {
namespace {

class PluginChannel final : public BenchChannel {
 public:
  explicit PluginChannel(int control) : client_(PluginClient::load(11)) {
    check(client_->init());
    HandleBytes handle{};
    void* listen_comm = nullptr;
    check(client_->listen(0, handle, &listen_comm));
    send_bytes(control, handle.data(), handle.size());
    receive_bytes(control, handle.data(), handle.size());
    while (send_ == nullptr || recv_ == nullptr) {
      if (send_ == nullptr) check(client_->connect(0, handle, &send_));
      if (recv_ == nullptr) check(client_->accept(listen_comm, &recv_));
      sched_yield();
    }
    check(client_->close_listen(listen_comm));
  }
  ~PluginChannel() override {
    client_->close_send(send_);
    client_->close_recv(recv_);
  }

  void* isend(std::byte* data, std::size_t size) override {
    void* request = nullptr;
    check(client_->isend(send_, {data, size}, 0, &request));
    return request;
  }
  void* irecv(std::byte* data, std::size_t size) override {
    void* request = nullptr;
    check(client_->irecv(recv_, {data, size}, 0, &request));
    return request;
  }
  bool test_sent(void* request) override {
    std::size_t size = 0;
    return test_received(request, &size);
  }
  bool test_received(void* request, std::size_t* size) override {
    int done = 0;
    int nbytes = 0;
    check(client_->test(request, &done, &nbytes));
    *size = static_cast<std::size_t>(nbytes);
    return done != 0;
  }

 private:
  static void check(int result) {
    if (result != 0) throw std::runtime_error("result " + std::to_string(result));
  }

  std::unique_ptr<PluginClient> client_;
  void* send_ = nullptr;
  void* recv_ = nullptr;
};

UniqueFd dial(const stream::Address& from, const stream::Address& to, char port_bit) {
  std::vector<UniqueFd>
      passed_over;  // kept open, so that the next one gets another port
  while (true) {
    UniqueFd fd(socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (port_bit != 0) {
      if (bind(fd.get(), from.data(), from.size()) != 0) {
        throw std::runtime_error("cannot bind to " + from.text());
      }
      const int bit = stream::local_address(fd.get()).port() >> 1 & 1;
      if (bit != port_bit - '0') {
        passed_over.push_back(std::move(fd));
        continue;
      }
    }
    if (connect(fd.get(), to.data(), to.size()) != 0) {
      throw std::runtime_error("cannot connect to " + to.text());
    }
    return fd;
  }
}

struct Connections {
  std::vector<UniqueFd> out;
  std::vector<UniqueFd> in;
};

Connections connect_all(int control, const ChannelSettings& settings,
                        std::size_t count) {
  const auto device =
      nccl_net::find_devices({"=" + settings.interface, "", ""}).front();
  const UniqueFd listener = stream::listen_on(device.address);
  fcntl(listener.get(), F_SETFL, 0);  // makes it blocking
  const stream::Address mine = stream::local_address(listener.get());
  sockaddr_storage storage{};
  std::memcpy(&storage, mine.data(), mine.size());
  send_bytes(control, &storage, sizeof storage);
  receive_bytes(control, &storage, sizeof storage);
  const stream::Address theirs(storage, mine.size());
  // Dials all connections, then accepts all; the backlog holds them.
  Connections all;
  const std::string& ports = settings.ports;
  for (std::size_t k = 0; k < count; ++k) {
    const char bit = ports.empty() ? '\0' : ports[k % ports.size()];
    all.out.push_back(dial(device.address, theirs, bit));
  }
  for (std::size_t k = 0; k < count; ++k) {
    all.in.emplace_back(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  return all;
}

class SocketChannel final : public BenchChannel {
 public:
  SocketChannel(int control, const ChannelSettings& settings) {
    Connections all =
        connect_all(control, settings, static_cast<std::size_t>(settings.sockets) + 1);
    send_ = make(true, std::move(all.out), settings.threads);
    recv_ = make(false, std::move(all.in), settings.threads);
  }

  void* isend(std::byte* data, std::size_t size) override {
    return send_->post(data, size);
  }
  void* irecv(std::byte* data, std::size_t size) override {
    return recv_->post(data, size);
  }
  bool test_sent(void* request) override {
    std::size_t size = 0;
    return send_->test(*static_cast<SocketStrategy::SocketRequest*>(request), &size);
  }
  bool test_received(void* request, std::size_t* size) override {
    return recv_->test(*static_cast<SocketStrategy::SocketRequest*>(request), size);
  }

 private:
  static std::unique_ptr<SocketStrategy> make(bool sends, std::vector<UniqueFd> fds,
                                              int threads) {
    UniqueFd control = std::move(fds.front());
    fds.erase(fds.begin());
    return std::make_unique<SocketStrategy>(sends, std::move(control), std::move(fds),
                                            threads);
  }

  std::unique_ptr<SocketStrategy> send_;
  std::unique_ptr<SocketStrategy> recv_;
};

class PlainTcpChannel final : public BenchChannel {
 public:
  PlainTcpChannel(int control, const ChannelSettings& settings) {
    Connections all = connect_all(control, settings, 1);
    out_ = std::move(all.out.front());
    in_ = std::move(all.in.front());
    const int on = 1;
    setsockopt(out_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  void* isend(std::byte* data, std::size_t size) override {
    return &sends_.emplace_back(Part{data, size, 0});
  }
  void* irecv(std::byte* data, std::size_t size) override {
    return &receives_.emplace_back(Part{data, size, 0});
  }
  void* isend_end(std::byte* data) override { return isend(data, 0); }

  bool test_sent(void* request) override {
    Part& part = *static_cast<Part*>(request);
    if (part.size == 0) shutdown(out_.get(), SHUT_WR);
    const ssize_t n = part.size == 0
                          ? 0
                          : ::send(out_.get(), part.data + part.moved,
                                   part.size - part.moved, MSG_NOSIGNAL | MSG_DONTWAIT);
    part.moved += count(n);
    if (part.moved < part.size) return false;
    sends_.pop_front();
    return true;
  }

  bool test_received(void* request, std::size_t* size) override {
    Part& part = *static_cast<Part*>(request);
    const ssize_t n =
        ::recv(in_.get(), part.data + part.moved, part.size - part.moved, MSG_DONTWAIT);
    part.moved += count(n);
    if (n != 0 && part.moved < part.size) return false;
    *size = part.moved;
    receives_.pop_front();
    return true;
  }

 private:
  struct Part {
    std::byte* data;
    std::size_t size;
    std::size_t moved;
  };

  static std::size_t count(ssize_t n) {
    if (n >= 0) return static_cast<std::size_t>(n);
    if (errno == EAGAIN || errno == EINTR) return 0;
    throw std::runtime_error("the peer has closed the connection");
  }

  UniqueFd out_;
  UniqueFd in_;
  std::deque<Part> sends_;
  std::deque<Part> receives_;
};

}  // namespace

void send_bytes(int control, const void* data, std::size_t nbytes) {
  if (send(control, data, nbytes, MSG_NOSIGNAL) != static_cast<ssize_t>(nbytes)) {
    throw std::runtime_error("the other process has ended");
  }
}

void receive_bytes(int control, void* data, std::size_t nbytes) {
  if (recv(control, data, nbytes, MSG_WAITALL) != static_cast<ssize_t>(nbytes)) {
    throw std::runtime_error("the other process has ended");
  }
}

std::unique_ptr<BenchChannel> open_bench_channel(int control,
                                                 const ChannelSettings& settings) {
  if (settings.kind == "plugin") {
    setenv("NCCL_SOCKET_IFNAME", ("=" + settings.interface).c_str(), 1);
    return std::make_unique<PluginChannel>(control);
  }
  if (settings.kind == "plain")
    return std::make_unique<PlainTcpChannel>(control, settings);
  if (settings.kind == "socket")
    return std::make_unique<SocketChannel>(control, settings);
  throw std::runtime_error("--way: expected plugin, socket or plain, got '" +
                           settings.kind + "'");
}

}  // namespace bluecomm::test
