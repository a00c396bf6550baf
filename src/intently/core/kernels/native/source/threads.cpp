#include "threads.hpp"

#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#if !defined(_WIN32)
#include <dlfcn.h>
#include <pthread.h>
#endif

namespace intently {
namespace {

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

Parallel openmp() {
#if defined(_WIN32)
  return nullptr;
#else
  // GOMP_parallel is how compiled OpenMP programs enter a parallel region; LLVM's runtime has it too.
  static const Parallel found = (Parallel)dlsym(RTLD_DEFAULT, "GOMP_parallel");
  return found;
#endif
}

class Pool {
 public:
  void run(int threads, void (*body)(void*), void* data) {
    std::unique_lock<std::mutex> turn(turns, std::try_to_lock);
    if (!turn.owns_lock()) return body(data);  // another thread uses the pool
    {
      std::lock_guard<std::mutex> hold(lock);
      for (; count < threads - 1; count++) std::thread([this] { wait(); }).detach();
      work = body;
      argument = data;
      wanted = threads - 1;
      running = wanted;
    }
    wake.notify_all();
    body(data);
    std::unique_lock<std::mutex> hold(lock);
    done.wait(hold, [this] { return running == 0; });
  }

 private:
  void wait() {
    std::unique_lock<std::mutex> hold(lock);
    for (;;) {
      wake.wait(hold, [this] { return wanted > 0; });
      wanted--;
      hold.unlock();
      work(argument);
      hold.lock();
      if (--running == 0) done.notify_one();
    }
  }

  std::mutex turns, lock;
  std::condition_variable wake, done;
  void (*work)(void*) = nullptr;
  void* argument = nullptr;
  int count = 0, wanted = 0, running = 0;
};

std::mutex making;
Pool* made = nullptr;  // never destroyed: its threads sleep until the process ends
bool forked = false;

Pool& own() {
  std::lock_guard<std::mutex> hold(making);
  if (!made) made = new Pool;
  return *made;
}

#if !defined(_WIN32)
// A child has none of its parent's threads, and perhaps a lock that one of them held.
void in_child() {
  new (&making) std::mutex;
  made = nullptr;
  forked = true;
}

const int watched = pthread_atfork(nullptr, nullptr, in_child);
#endif

}  // namespace

void forked_before() { forked = true; }

const char* pool() { return openmp() && !forked ? "openmp" : "own"; }

void together(int threads, void (*body)(void*), void* data) {
  if (threads < 2) return body(data);
  if (openmp() && !forked) return openmp()(body, data, (unsigned)threads, 0);
  own().run(threads, body, data);
}

}  // namespace intently
