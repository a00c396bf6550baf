// What the heads of a layer do, averaged over their queries: every number of `summary()` from one
// walk over the weights, for which a task holds the weights of all heads of a block at once.
#pragma once
#include <new>

#include "statistics.hpp"

namespace {

struct Heads {
  enum Sum : int {
    ENTROPY, CONFIDENCE, SINK, SELF, PREVIOUS, DISTANCE, SHARED, SOUGHT,
    ATTENDING = SOUGHT + PROGRAMS, SELVES, PREVIOUSES, AGAIN, SUMS
  };

  struct Row {  // of one head, for every query of the block
    float most[ROWS], slope[ROWS], far[ROWS], shared[ROWS], sought[PROGRAMS][ROWS];
  };

  static int64_t heads(const Call& c) {
    return c.axes < 2 ? 1 : c.size[c.axes - 2] * c.size[c.axes - 1];
  }
  static int64_t tasks(const Call& c) { return c.leads / most(1, heads(c)) * c.parts; }
  static int64_t each() { return up(sizeof(Twice), 64) + up(sizeof(Row), 64); }
  static int64_t scratch(const Call& c) {
    return heads(c) * (each() + up(Twice::memory(c), 64)) + 4 * KEYS * ROWS + 64;
  }

  Call& c;
  int64_t n, first;  // heads; the first key found with any weight
  double* sums;      // (heads, SUMS)
  char* memory;
  float* mean;       // (KEYS, ROWS): log2 of the mean weight of the heads
  Mask sought[PROGRAMS];

  Twice& head(int64_t h) { return *(Twice*)(memory + h * each()); }
  Row& row(int64_t h) { return *(Row*)(memory + h * each() + up(sizeof(Twice), 64)); }

  Heads(Call& call, int64_t task, char* scratch) : c(call), n(heads(call)), first(call.s) {
    memory = scratch;
    mean = (float*)(scratch + n * each());
    char* rest = (char*)(mean + KEYS * ROWS);
    for (int64_t h = 0; h < n; h++) {
      new (&head(h)) Twice(c);
      rest = head(h).take(rest);
      head(h).b.lead(task / c.parts * n + h);
    }
    for (int i = 0; i < PROGRAMS; i++) sought[i].lead(c, c.sought[i], head(0).b.index);
    sums = (double*)(c.sums.data + task * n * c.sums.row);
    for (int64_t i = 0; i < n * SUMS; i++) sums[i] = 0;
  }

  static void run(Call& c, int64_t task, char* scratch) {
    Heads x(c, task, scratch);
    Blocks& b = x.head(0).b;
    int64_t tick = 0;
    for (int64_t block = task % c.parts; block < Product::blocks(c); block += c.parts) {
      for (int64_t h = 0; h < x.n; h++) {
        if (!x.head(h).block_of_rows(block * ROWS, c.t, &tick)) return;
        x.row(h) = Row{};
      }
      if (c.counted) x.leave_out();
      for (int64_t key = b.lo; key < b.hi; key += KEYS) {
        bool some = true;  // the mask of all heads is the same
        for (int64_t h = 0; h < x.n && some; h++) some = x.weights(h, key);
        if (!some) continue;
        x.sink();
        x.diagonal(SELF, 0);
        x.diagonal(PREVIOUS, 1);
        if (x.n > 1) x.share();
        for (int i = 0; i < PROGRAMS; i++)
          if (x.sought[i].ops) x.seek(i);
        if (b.stopped(&tick)) return;
      }
      x.add();
    }
    *(int64_t*)(c.firsts.data + task * c.firsts.row) = x.first;
  }

  static char* at(const Array& a, const Blocks& b, int64_t r) {
    return base(a, b.c, b.index) + (b.row0 + r) * a.row;
  }

  // Queries that do not count have no weights.
  void leave_out() {
    for (int64_t h = 0; h < n; h++)
      for (int64_t r = 0; r < head(h).b.rows; r++)
        if (!*at(c.counted, head(h).b, r)) head(h).inverse[r] = 0;
  }

  // The weights of one head in place of its logits, and what each query sums over them alone.
  bool weights(int64_t h, int64_t key) {
    Twice& x = head(h);
    Blocks& b = x.b;
    Row& out = row(h);
    if (!b.at(key, b.hi, x.S)) return false;
    b.outside(x.S, -INF);
    V step;
    for (int i = 0; i < W; i++) step[i] = (float)i;
    for (int64_t r = b.from; r < b.to; r += W) {
      V m = load(x.top + r), by = load(x.inverse + r), logs = log2v(by);
      I alive = by != V{};
      V most = load(out.most + r), slope = load(out.slope + r), far = load(out.far + r);
      V apart = step + (float)(b.row0 + r + c.s - c.t - b.key0);
      float* p = x.S + r;
      float* q = mean + r;
      for (int64_t j = 0; j < b.n; j++, p += ROWS, q += ROWS) {
        V raw = load(p), z = raw - m;
        V w = exp2v(z) * by;
        w = select(raw == splat(-INF), V{}, w);
        w = select(alive, w, V{});
        store(p, w);
        store(q, h ? load(q) + w : w);
        most = larger(w, most);
        slope += w * larger(z + logs, splat(-200));
        far += w * larger(apart, -apart);
        apart -= 1;
      }
      store(out.most + r, most);
      store(out.slope + r, slope);
      store(out.far + r, far);
    }
    return true;
  }

  // Σ w log2 w̄, where w̄ is the mean of the heads.
  void share() {
    const Blocks& b = head(0).b;
    V by = splat(1 / (float)n);
    for (int64_t j = 0; j < b.n; j++)
      for (int64_t r = b.from; r < b.to; r += W)
        store(mean + j * ROWS + r, log2v(load(mean + j * ROWS + r) * by));
    for (int64_t h = 0; h < n; h++)
      for (int64_t r = b.from; r < b.to; r += W) {
        const float* p = head(h).S + r;
        V sum = load(row(h).shared + r), more = V{};
        int64_t j = 0;
        for (; j + 1 < b.n; j += 2) {
          sum += load(p + j * ROWS) * load(mean + j * ROWS + r);
          more += load(p + (j + 1) * ROWS) * load(mean + (j + 1) * ROWS + r);
        }
        if (j < b.n) sum += load(p + j * ROWS) * load(mean + j * ROWS + r);
        store(row(h).shared + r, sum + more);
      }
  }

  double received(int64_t h, int64_t j) {
    const Blocks& b = head(h).b;
    V sum = V{};
    for (int64_t r = b.from; r < b.to; r += W) sum += load(head(h).S + j * ROWS + r);
    return total(sum);
  }

  // The weight on the first key that gets any from some query of some head.
  void sink() {
    const Blocks& b = head(0).b;
    for (int64_t j = 0; j < b.n && b.key0 + j <= first; j++) {
      bool used = false;
      for (int64_t h = 0; h < n && !used; h++) used = !(received(h, j) <= 0);
      if (!used) continue;
      if (b.key0 + j < first)
        for (int64_t h = 0; h < n; h++) sums[h * SUMS + SINK] = 0;
      first = b.key0 + j;
      for (int64_t h = 0; h < n; h++) sums[h * SUMS + SINK] += received(h, j);
    }
  }

  void diagonal(Sum which, int64_t back) {
    const Blocks& b = head(0).b;
    int64_t shift = b.row0 + c.s - c.t - back - b.key0;  // key of row r: r + shift
    int64_t low = most(b.from, -shift), high = least(least(b.to, b.rows), b.n - shift);
    for (int64_t h = 0; low < high && h < n; h++) {
      float sum = 0;
      for (int64_t r = low; r < high; r++) sum += head(h).S[(r + shift) * ROWS + r];
      sums[h * SUMS + which] += sum;
    }
  }

  // The weight on the keys that a mask allows, most of which are few.
  void seek(int program) {
    const Blocks& b = head(0).b;
    int64_t last = b.row0 + b.rows - 1;
    if (sought[program].state(b.row0, last, b.key0, b.key0 + b.n - 1) == EMPTY) return;
    uint64_t words[KEYS];
    sought[program].bits(b.row0, last, b.key0, b.key0 + b.n - 1, words);
    I one;
    for (int i = 0; i < W; i++) one[i] = (int32_t)(1u << i);
    for (int64_t j = 0; j < b.n; j++) {
      if (!words[j]) continue;
      for (int64_t r = b.from; r < b.to; r += W) {
        I word = I{} + (int32_t)(uint32_t)(words[j] >> r);
        if (!(words[j] >> r & ((1ull << W) - 1))) continue;
        I there = (word & one) != 0;
        for (int64_t h = 0; h < n; h++) {
          float* out = row(h).sought[program] + r;
          store(out, load(out) + select(there, load(head(h).S + j * ROWS + r), V{}));
        }
      }
    }
  }

  // Adds the queries of the block.
  void add() {
    for (int64_t h = 0; h < n; h++) {
      const Twice& x = head(h);
      const Row& one = row(h);
      double* out = sums + h * SUMS;
      for (int64_t r = 0; r < x.b.rows; r++) {
        int64_t position = x.b.row0 + r + c.s - c.t;
        bool unknown = x.inverse[r] != x.inverse[r], alive = !unknown && one.most[r] > 0;
        out[ENTROPY] -= one.slope[r] * LN2;
        out[CONFIDENCE] += unknown ? x.inverse[r] : one.most[r];
        out[DISTANCE] += one.far[r];
        out[SHARED] += one.shared[r] * LN2;
        for (int i = 0; i < PROGRAMS; i++) out[SOUGHT + i] += one.sought[i][r];
        out[ATTENDING] += alive;
        out[SELVES] += alive && position >= 0;
        out[PREVIOUSES] += alive && position >= 1;
        out[AGAIN] += alive && c.again && *at(c.again, x.b, r);
      }
    }
  }
};

}  // namespace
