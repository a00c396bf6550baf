#include "threads.hpp"

#include <condition_variable>
#include <mutex>
#include <thread>
#if defined(_WIN32)
#include <process.h>
#define getpid _getpid
#else
#include <dlfcn.h>
#include <unistd.h>
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

const int loaded_by = (int)getpid();

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

Pool& own() {  // never destroyed: its threads sleep until the process ends
  static std::mutex lock;
  static Pool* pool = nullptr;
  static int made_by = 0;
  if (made_by != (int)getpid()) new (&lock) std::mutex;  // a fork may have left it locked
  std::lock_guard<std::mutex> hold(lock);
  if (!pool || made_by != (int)getpid()) {
    pool = new Pool;
    made_by = (int)getpid();
  }
  return *pool;
}

}  // namespace

const char* pool() { return openmp() && loaded_by == (int)getpid() ? "openmp" : "own"; }

void together(int threads, void (*body)(void*), void* data) {
  if (threads < 2) return body(data);
  if (openmp() && loaded_by == (int)getpid()) return openmp()(body, data, (unsigned)threads, 0);
  own().run(threads, body, data);
}

}  // namespace intently
