// The kernels of one instruction set. The file is compiled once for each, with its compiler flags.
#include "backward.hpp"
#include "call.hpp"
#include "forward.hpp"
#include "heads.hpp"
#include "statistics.hpp"

namespace {

int64_t tasks(const Call& c, int job) {
  switch (job) {
    case PRODUCT: return c.leads * Product::blocks(c) * c.splits;
    case BACKWARD: return Backward::tasks(c);
    case BIAS_BACKWARD: return BiasBackward::tasks(c);
    case RECEIVE: return c.leads * c.parts;
    case PICTURE: return Picture::tasks(c);
    case HEADS: return Heads::tasks(c);
    default: return c.leads * Product::blocks(c);
  }
}

int64_t scratch(const Call& c, int job) {
  switch (job) {
    case BACKWARD: return Backward::scratch(c);
    case BIAS_BACKWARD: return Slopes::memory(c);
    case MEASURE: return Measure::scratch(c);
    case RECEIVE: return Twice::memory(c);
    case PICTURE: return Picture::scratch(c);
    case HEADS: return Heads::scratch(c);
    default: return Product::scratch(c);
  }
}

int64_t shared(const Call& c, int job) {
  return job == PRODUCT && c.splits > 1 ? tasks(c, job) * Product::partial(c) : 0;
}

void run(Call& c, int job, int64_t task, char* scratch) {
  switch (job) {
    case PRODUCT: return Product::run(c, task, scratch);
    case MERGE: return Product::merge(c, task, scratch);
    case BACKWARD: return Backward::run(c, task, scratch);
    case BIAS_BACKWARD: return BiasBackward::run(c, task, scratch);
    case MEASURE: return Measure::run(c, task, scratch);
    case RECEIVE: return Receive::run(c, task, scratch);
    case PICTURE: return Picture::run(c, task, scratch);
    case HEADS: return Heads::run(c, task, scratch);
  }
}

}  // namespace

namespace intently {
#if defined(__AVX512F__)
const Kernels* avx512() {
  static const Kernels k = {"avx512", W, tasks, scratch, shared, run};
#elif defined(__AVX2__)
const Kernels* avx2() {
  static const Kernels k = {"avx2", W, tasks, scratch, shared, run};
#else
const Kernels* portable() {
#if defined(__aarch64__)
  static const Kernels k = {"neon", W, tasks, scratch, shared, run};
#else
  static const Kernels k = {"portable", W, tasks, scratch, shared, run};
#endif
#endif
  return &k;
}
}  // namespace intently
