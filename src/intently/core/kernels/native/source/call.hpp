// What one call of a kernel is: plain data, the same for every instruction set.
//
// Shapes are those of Python: q (…, h, t, d), k (…, g, s, d), v (…, g, s, e), y (…, h, t, e). The
// leading axes come as `axes` sizes with the heads split into (g, h / g), so that a key head shared
// by several query heads is an axis of stride 0, like every other axis that an operand shares.
#pragma once
#include <atomic>
#include <cstdint>

namespace intently {

constexpr int AXES = 10;      // leading axes at most
constexpr int ROWS = 64;      // queries in one block: the lanes of a tile
constexpr int KEYS = 64;      // keys in one block
constexpr int STRIP = 16;     // lanes of a partial block that share a range of keys
constexpr int WIDTH = 256;    // the widest head
constexpr int OPS = 32;       // steps of all programs of masks together at most
constexpr int BIASES = 4;     // tensors and profiles in a sum of biases at most
constexpr int PROGRAMS = 2;   // masks beside that of the matrix whose weight is sought at most

enum Type : int { F32, BF16, F16, I64, I32, U8, F64 };

// A tensor: where it begins, and the bytes from one element to the next along every axis.
struct Array {
  char* data = nullptr;
  int type = F32;
  int64_t lead[AXES] = {};
  int64_t row = 0, col = 0;
  explicit operator bool() const { return data != nullptr; }
};

// A mask in postfix order. Numbers that differ from row to row of a batch stand in x.
enum Kind : int { BAND, FIRST, SEGMENTS, DILATED, ENTRIES, AND, OR, NOT };
struct Op {
  int kind = 0;
  int64_t a = 0, b = 0, n = 0;  // BAND: before, after, start; FIRST: n; DILATED: step, start in n
  Array x, y;                   // starts or counts; ids of queries and keys; entries
};

struct Program {
  int first = 0, ops = 0;       // its steps among those of the call
};

struct Call;

// Asked by the calling thread now and then; true once the call is to stop.
using Pulse = bool (*)(void*);

struct Call {
  int axes = 0;
  int64_t size[AXES] = {};
  int64_t leads = 1;  // the product of the sizes
  int64_t groups = 1; // h / g, the last axis
  int64_t t = 0, s = 0, d = 0, e = 0;
  Array q, k, v, y;
  Array stats;        // (…, t, 2): the maximum of z log2 e in a row, and Σ 2^(… − maximum), f32
  Array scales;       // one number per leading index, or none
  float scale = 1, softcap = 0;
  Array sinks;
  int biases = 0, profiles = 0;
  Array bias[BIASES], profile[BIASES];  // a profile holds its numbers at i − j + s − 1
  int steps = 0;
  Op op[OPS];
  Program mask, sought[PROGRAMS];
  float rate = 0;     // of dropout
  Array drop_rows, drop_cols;
  int64_t splits = 1; // into how many parts the keys of a row are cut
  // backward
  Array dy, dq, dk, dv;  // f32; dk (parts, …, s, d) and dv are added to
  int64_t parts = 1;
  Array dbias;        // the gradient of one bias (f32, added to); whether it is a profile
  bool dbias_profile = false;
  // statistics, each absent unless asked for
  Array lse, entropy, argmax, distance, mass, top, top_keys, received, picture;
  Array flags;        // (s,) bytes: the keys of mass
  Array sums, firsts; // of heads: see heads.hpp
  Array counted, again;   // (…, t) bytes: queries that count, and whose token has appeared before
  int64_t top_n = 0;
  int64_t cells[2] = {};  // rows and columns of the picture
  bool largest = false;   // the picture holds maxima instead of sums
  // running
  char* shared = nullptr; // memory of the whole call
  std::atomic<bool> stop{false};
  Pulse pulse = nullptr;
  void* pulse_data = nullptr;
};

// The kernels of one instruction set. `scratch` is memory of the thread that runs the task.
struct Kernels {
  const char* name;
  int lanes;
  int64_t (*tasks)(const Call&, int job);    // how many tasks a job has
  int64_t (*scratch)(const Call&, int job);  // bytes that each thread needs
  int64_t (*shared)(const Call&, int job);   // bytes that the tasks share
  void (*run)(Call&, int job, int64_t task, char* scratch);
};

enum Job : int { PRODUCT, MERGE, BACKWARD, BIAS_BACKWARD, MEASURE, RECEIVE, PICTURE, HEADS };

const Kernels* portable();
#if defined(INTENTLY_AVX)
const Kernels* avx2();
const Kernels* avx512();
#endif

}  // namespace intently
