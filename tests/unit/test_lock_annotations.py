"""clang rejects code that breaks the lock annotations of native/common/mutex.h."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
# The names that the Makefile looks for.
CLANG = next(
    filter(None, map(shutil.which, ("clang++", "clang++-19", "clang++-16"))), None
)
pytestmark = pytest.mark.skipif(
    CLANG is None and not os.environ.get("CI"), reason="no clang++ on this machine"
)

PROGRAM = """
#include "common/mutex.h"

using namespace bluecomm;

class Counter {
 public:
  UniqueLock hold() ACQUIRE(mutex_) NO_THREAD_SAFETY_ANALYSIS {
    return UniqueLock(mutex_);
  }
  void add() EXCLUDES(mutex_) {
    const LockGuard lock(mutex_);
    add_locked();
  }
  void wait() EXCLUDES(mutex_) {
    UniqueLock lock(mutex_);
    while (count_ == 0) changed_.wait(lock);
    lock.unlock();
    changed_.notify_all();
    lock.lock();
    --count_;
  }
  void called() { BODY }

 private:
  void add_locked() REQUIRES(mutex_) { ++count_; }

  Mutex mutex_;
  ConditionVariable changed_;
  int count_ GUARDED_BY(mutex_) = 0;
};
"""


def compile_with(body):
    command = f"-std=c++20 -I{NATIVE} -Wall -Wextra -Wthread-safety -Werror".split()
    return subprocess.run(
        [CLANG or "clang++", *command, "-fsyntax-only", "-x", "c++", "-"],
        input=PROGRAM.replace("BODY", body),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "body",
    [
        "",
        "const LockGuard lock(mutex_); add_locked();",
        "auto lock = hold(); ++count_;",
    ],
    ids=["nothing", "guard", "function_that_returns_a_lock"],
)
def test_correct_code_compiles(body):
    result = compile_with(body)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("++count_;", "requires holding mutex 'mutex_'"),
        ("add_locked();", "requires holding mutex 'mutex_'"),
        ("const LockGuard lock(mutex_); add();", "while mutex 'mutex_' is held"),
        ("UniqueLock lock(mutex_); lock.unlock(); ++count_;", "requires holding mutex"),
        ("mutex_.lock();", "still held at the end of function"),
    ],
    ids=["member", "function", "deadlock", "after_unlock", "missing_unlock"],
)
def test_broken_code_is_rejected(body, reason):
    result = compile_with(body)
    assert result.returncode != 0
    assert reason in result.stderr
