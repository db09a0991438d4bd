// The mpi transport over a real MPI, with all ranks in this process, which is one rank
// of MPI: the transports differ only in their port. tests/mpi/ runs this file under
// each launcher and names the libmpi in TEST_MPI_LIBRARY. Without that variable these
// tests are not registered.
#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "mpi/session.h"
#include "tests/check.h"
#include "tests/transport/conformance.h"
#include "tests/transport/ranks.h"
#include "transport/mpi/transport.h"

namespace bluecomm::test {
namespace {

constexpr std::size_t kEager = 4096;

// MPI can be initialized and finalized only once per process.
class Mpi {
 public:
  explicit Mpi(const std::string& path) : library_(mpi::open_library(path)) {
    const mpi::ThreadLevel threads = library_->init(mpi::ThreadLevel::kMultiple);
    if (threads != mpi::ThreadLevel::kMultiple) {
      throw std::runtime_error("these tests need MPI_THREAD_MULTIPLE");
    }
  }
  ~Mpi() { library_->finalize(); }

  // Each session duplicates the communicator, as when bluecomm is started again.
  std::shared_ptr<mpi::Session> make_session() {
    return std::make_shared<mpi::Session>(library_, library_->world()->duplicate());
  }
  mpi::Library& library() { return *library_; }

 private:
  std::shared_ptr<mpi::Library> library_;
};

Mpi& mpi_here() {
  static Mpi mpi(std::getenv("TEST_MPI_LIBRARY"));
  return mpi;
}

struct Keep {
  std::shared_ptr<mpi::Session> session = mpi_here().make_session();
};

World make_world(int size, std::size_t eager_bytes, bool lends) {
  World world;
  world.lends = lends;
  auto keep = std::make_shared<Keep>();
  for (int rank = 0; rank < size; ++rank) {
    world.transports.push_back(
        std::make_unique<MpiTransport>(MpiOptions{rank, keep->session, eager_bytes}));
  }
  world.keep = std::move(keep);
  connect(world);
  return world;
}

Scheme scheme_with(std::size_t eager_bytes, bool lends) {
  return {.make_world = [=](int size) { return make_world(size, eager_bytes, lends); },
          .eager_bytes = eager_bytes,
          .tells_idle_ranks = true};
}

Scheme scheme() { return scheme_with(kEager, true); }

void run_checks(std::initializer_list<decltype(Check::run)> chosen,
                const Scheme& scheme) {
  for (const Check& check : kChecks) {
    if (std::find(chosen.begin(), chosen.end(), check.run) == chosen.end()) continue;
    for (const std::string& finding : run_check(check, scheme)) {
      record_failure(std::string(check.name).c_str(), 0, finding);
    }
  }
}

// Long eager payloads stay in the frame that MPI has received them in.
void long_payloads_may_be_eager() {
  run_checks({check_payload_sizes, check_outlives}, scheme_with(mpi::kMaxEager, true));
}

void payloads_that_are_not_lent_are_copied() {
  run_checks(
      {check_payload_sizes, check_steps, check_released, check_stats,
       check_sender_cancels, check_receiver_cancels, check_close, check_outlives},
      scheme_with(kEager, false));
}

// Makes and destroys transports of one session, one after the other.
void ports_are_used_again() {
  const Keep keep;
  for (int i = 0; i < 3 * mpi::Session::kPorts; ++i) {
    const MpiTransport transport(MpiOptions{0, keep.session, kEager});
    CHECK(transport.offer().starts_with("0."));
  }
}

void frames_to_an_earlier_transport_are_dropped() {
  const Keep keep;
  auto earlier = std::make_unique<MpiTransport>(MpiOptions{1, keep.session, kEager});
  const std::string old_offer = earlier->offer();
  MpiTransport sender(MpiOptions{0, keep.session, kEager});
  Channel& channel = sender.channel(1, old_offer);
  earlier.reset();
  channel.post(make_header(1, 0), {});
  // Ports are used in turn: one of these gets that of the earlier transport.
  std::vector<std::unique_ptr<MpiTransport>> later;
  for (int i = 0; i < mpi::Session::kPorts - 2; ++i) {
    later.push_back(
        std::make_unique<MpiTransport>(MpiOptions{1, keep.session, kEager}));
    later.back()->channel(0, sender.offer());
  }
  struct Silence final : Receiver {
    void on_message(int, std::unique_ptr<Incoming>) override { CHECK(!"a message"); }
    void on_lost(int, Status) override { CHECK(!"a loss"); }
    void on_goodbye(int) override { CHECK(!"a goodbye"); }
  } silence;
  for (const auto& transport : later) transport->poll(silence);
}

void refuses_invalid_options() {
  CHECK_THROWS(MpiTransport(MpiOptions{}), std::invalid_argument, "expected a session");
  const Keep keep;
  MpiTransport transport(MpiOptions{0, keep.session, kEager});
  for (const char* offer : {"", "nowhere", "0.1", "0.0.5", "0.99.5", "7000000.1.5"}) {
    CHECK_THROWS(transport.channel(1, offer), std::invalid_argument,
                 std::string("'") + offer + "'");
  }
  mpi::Library& library = mpi_here().library();
  CHECK(library.initialized() && !library.finalized() && library.on_main_thread());
  CHECK(library.thread_level() == mpi::ThreadLevel::kMultiple);
  CHECK_THROWS(keep.session->communicator().isend({}, 1 << 20, 0), std::runtime_error,
               "MPI_Isend: ");
}

const bool mpi_registered =
    std::getenv("TEST_MPI_LIBRARY") != nullptr &&
    register_conformance<&scheme>("mpi") &&
    add_test("mpi", "long_payloads_may_be_eager", &long_payloads_may_be_eager) &&
    add_test("mpi", "payloads_that_are_not_lent_are_copied",
             &payloads_that_are_not_lent_are_copied) &&
    add_test("mpi", "ports_are_used_again", &ports_are_used_again) &&
    add_test("mpi", "frames_to_an_earlier_transport_are_dropped",
             &frames_to_an_earlier_transport_are_dropped) &&
    add_test("mpi", "refuses_invalid_options", &refuses_invalid_options);

}  // namespace

TEST(mpi_library, tells_what_is_wrong_with_a_library) {
  CHECK_THROWS(mpi::open_library("/nowhere/libmpi.so"), std::runtime_error,
               "/nowhere/libmpi.so: cannot open shared object file");
  CHECK_THROWS(mpi::open_library("libc.so.6"), std::runtime_error,
               "libc.so.6: it lacks MPI_Get_version");
}

}  // namespace bluecomm::test
