#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "window/account.h"
#include "window/links.h"
#include "window/message.h"
#include "window/ticket.h"
#include "window/window.h"
#include "window/window_arrival.h"

namespace bluecomm {

// All windows of a rank: asks other ranks for what its program wants of their windows,
// and does to its own what they ask, without its program.
//
// A request has a part for each rank that is asked. Between two ranks and for one
// window, one put, accumulate or get is under way at a time and the others queue at the
// asker, so a window needs no memory but its own. A part ends by an answer, so a put
// that is over has its effect at the target.
//
// No thread, no waiting; under the progress lock.
class WindowService {
 public:
  using Clock = std::chrono::steady_clock;
  using Ticket = std::shared_ptr<WindowTicket>;
  using WindowPtr = std::shared_ptr<Window>;

  // `mark` is the same on all ranks of the job and epoch, and differs between them.
  WindowService(int rank, std::uint64_t mark, const WindowLinks& links,
                WindowAccount& account)
      : rank_(rank), mark_(mark), links_(links), account_(account) {}

  // Makes a window known; the ticket is done when all its neighbors have done so.
  // Throws std::invalid_argument where the id is known.
  Ticket open(WindowPtr window, Clock::time_point deadline);
  // Throws std::invalid_argument while requests of this rank are under way.
  void remove(const Window& window);

  // x stays alive and unchanged until the ticket is done. Each target gets its weight
  // times x, and times p if `with_p`.
  struct Put {
    std::span<const std::byte> x;
    Window::Weights targets;
    bool accumulates = false;
    bool with_p = false;
    double p = 1.0;
  };
  // `call` is what asks for it, which ends with the ticket.
  Ticket put(const WindowPtr& window, const Put& put, Clock::time_point deadline,
             const WindowAccount::Call& call);
  Ticket get(const WindowPtr& window, const Window::Weights& sources, bool with_p,
             Clock::time_point deadline, const WindowAccount::Call& call);

  // Asks for the mutex of one rank, which may be this one. To be unlocked with the
  // ticket, also to give up while it is not done.
  Ticket lock(const WindowPtr& window, int owner, Clock::time_point deadline);
  void unlock(const WindowPtr& window, int owner, const WindowTicket& ticket);

  // Takes `message` if it is about windows.
  bool take_message(int peer, std::unique_ptr<Incoming>& message);
  // Moves what can be moved now. `gone` are the ranks that are gone. True when anything
  // changed.
  bool poll(Clock::time_point now, std::span<const int> gone);
  bool outstanding() const {
    return !parts_.empty() || !arrivals_.empty() || !sharings_.empty() ||
           abandoned_.size() < detached_.size();
  }
  // A ticket that is not done.
  struct Pending {
    WindowAccount::Call call;
    std::set<int> waiting_for;
    std::string wish;  // what they are to do
  };
  std::vector<Pending> pending() const;
  // Grows with each ticket that is done.
  std::uint64_t completions() const { return completions_; }
  Clock::time_point next_timer() const;
  void put_off_deadlines(Clock::duration time);

  // Fails all that is under way and refuses more.
  void close(const std::string& why);
  // Drops all messages.
  void free();

 private:
  using Lane = std::pair<std::uint64_t, int>;  // window, peer

  struct Part {
    Ticket ticket;
    WindowPtr window;
    int peer = 0;
    WindowMessage message;  // asks for it
    std::span<const std::byte> payload;
    std::unique_ptr<Outgoing> outgoing;
    int holder = -1;  // of the mutex that is asked for
  };

  // A value that a peer has asked for.
  struct Serving {
    WindowPtr window;
    int peer;
    std::size_t reader;
    std::unique_ptr<Outgoing> outgoing;
  };

  // Memory that a peer is being told of.
  struct Sharing {
    WindowPtr window;
    int peer;
    std::size_t nbytes;
    std::unique_ptr<Outgoing> outgoing;
  };

  // What peers have said of a window that is not made here yet.
  struct Shared {
    int peer;
    WindowMessage message;
    SharedBytes bytes;
  };
  struct Early {
    std::set<int> opens;
    std::vector<Shared> shared;
  };

  // service.cpp: what this rank asks for.
  void share_with(int peer, const WindowPtr& window);
  void share(int peer, const WindowPtr& window, WindowMessage message,
             std::span<const std::byte> bytes);
  Ticket make_ticket(const WindowAccount::Call& call, Clock::time_point deadline) const;
  std::uint64_t add_part(Part part);
  void note_exchange(const Part& part);
  void send(Part& part);
  void end_part(std::uint64_t number, Status status);
  void fail_part(std::uint64_t number, Status status);
  std::string timeout_text(const Part& part) const;
  bool fail_expired(Clock::time_point now);
  bool fail_gone(int rank);
  void post(int peer, const WindowMessage& message, std::string_view text = {});

  // service_for_peers.cpp: what other ranks ask for, and their answers.
  void serve(int peer, const WindowMessage& message,
             std::unique_ptr<Incoming> incoming);
  void refuse(int peer, const WindowMessage& message, const std::string& why);
  void note_open(int peer, std::uint64_t window);
  void take_shared(int peer, const WindowMessage& message,
                   std::unique_ptr<Incoming> incoming);
  static void attach(Window& window, Shared shared);
  void receive(int peer, const WindowMessage& message, const WindowPtr& window,
               std::unique_ptr<Incoming> incoming);
  void send_value(int peer, const WindowMessage& message, const WindowPtr& window);
  void enter_mutex(int peer, const WindowMessage& message, Window& window);
  void leave_mutex(int peer, std::uint64_t request, Window& window);
  void grant(const MutexQueue::Claim& claim, const Window& window);
  void cancel(int peer, const WindowMessage& message);
  void take_answer(int peer, const WindowMessage& message,
                   std::unique_ptr<Incoming> incoming);
  bool move_arrivals();
  void finish_arrival(WindowArrival& arrival);
  bool abandon(int rank);

  const int rank_;
  const std::uint64_t mark_;
  const WindowLinks& links_;
  WindowAccount& account_;
  std::unordered_map<std::uint64_t, WindowPtr> windows_;
  std::map<std::uint64_t, Early> early_;  // of windows that are not made here yet
  std::vector<Sharing> sharings_;
  std::map<std::uint64_t, Part> parts_;
  std::map<Lane, std::deque<std::uint64_t>> lanes_;
  std::vector<std::unique_ptr<WindowArrival>> arrivals_;
  std::vector<Serving> servings_;
  std::set<int> detached_;   // ranks that are gone
  std::set<int> abandoned_;  // those of them that have left nothing here any more
  std::uint64_t last_number_ = 0;
  std::uint64_t completions_ = 0;
  std::string closed_;  // why, once it is
};

}  // namespace bluecomm
