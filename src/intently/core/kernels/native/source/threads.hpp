// As many threads as PyTorch uses, without a second pool that spins against PyTorch's.
#pragma once
#include <cstdint>

namespace intently {

// Runs `body(data)` on `threads` threads at once, the calling one among them.
//
// Where an OpenMP runtime is loaded (PyTorch's), its pool does the work. Elsewhere, and in a process
// that was forked, whose OpenMP would hang, a pool of our own does, whose threads sleep in between.
void together(int threads, void (*body)(void*), void* data);

// The pool that `together` uses: "openmp" or "own".
const char* pool();

// Says that this process was forked before the module was loaded, which notices later forks itself.
void forked_before();

}  // namespace intently
