// Masks by description: the state of a block of the matrix, and its entries as bits.
//
// A program in postfix order is evaluated for blocks of ROWS queries × KEYS keys. EMPTY and FULL are
// certain; a PARTIAL block is written out as one word per key, bit i for query i, in which `&`, `|`
// and `~` are the operations of the machine. No entry of an empty or full block is ever looked at.
#pragma once
#include "arrays.hpp"

namespace {

enum State { EMPTY, PARTIAL, FULL };

struct Rule {  // one step of the program, under one leading index
  int kind;
  int64_t before, after, n;  // n: start, count or step's start
  const char *x, *y;
  int64_t x_row, x_col, y_col;
};

struct Mask {
  int ops = 0;
  Rule rule[OPS];
  int64_t s = 0;

  void lead(const Call& c, const Program& program, const int64_t* index) {
    ops = program.ops;
    s = c.s;
    for (int i = 0; i < ops; i++) {
      const Op& op = c.op[program.first + i];
      Rule& r = rule[i];
      r = {op.kind, op.a, op.b, op.n, nullptr, nullptr, op.x.row, op.x.col, op.y.col};
      if (op.x) r.x = base(op.x, c, index);
      if (op.y) r.y = base(op.y, c, index);
      if (op.x && (op.kind == BAND || op.kind == FIRST || op.kind == DILATED))
        r.n = *(const int64_t*)r.x;
      if (op.kind == DILATED) r.before = op.a;
    }
  }

  // Keys from lo up to hi that rows row0 … row1 may see at most.
  void range(int64_t row0, int64_t row1, int64_t* lo, int64_t* hi) const {
    int64_t low[OPS], high[OPS];
    int n = 0;
    for (int i = 0; i < ops; i++) {
      const Rule& r = rule[i];
      if (r.kind == AND || r.kind == OR) {
        n--;
        bool both = r.kind == AND;
        low[n - 1] = both ? most(low[n - 1], low[n]) : least(low[n - 1], low[n]);
        high[n - 1] = both ? least(high[n - 1], high[n]) : most(high[n - 1], high[n]);
        continue;
      }
      if (r.kind != NOT) n++;
      low[n - 1] = 0;
      high[n - 1] = s;
      if (r.kind == BAND) {
        low[n - 1] = most(0, least(s, row0 + r.n - r.before));
        high[n - 1] = most(0, least(s, row1 + r.n + r.after + 1));
      }
      if (r.kind == FIRST) high[n - 1] = most(0, least(s, r.n));
      if (r.kind == SEGMENTS && r.before) {  // sorted ids of keys
        const int64_t *q = (const int64_t*)r.x, *k = (const int64_t*)r.y;
        int64_t first = q[row0], last = q[row0];
        for (int64_t j = row0; j <= row1; j++) first = least(first, q[j]), last = most(last, q[j]);
        low[n - 1] = before(k, s, first);
        high[n - 1] = before(k, s, last + 1);
      }
    }
    *lo = low[0];
    *hi = high[0];
  }

  // How many of s sorted numbers are smaller.
  static int64_t before(const int64_t* k, int64_t s, int64_t than) {
    int64_t lo = 0, hi = s;
    while (lo < hi) {
      int64_t middle = (lo + hi) / 2;
      if (k[middle] < than)
        lo = middle + 1;
      else
        hi = middle;
    }
    return lo;
  }

  State state(int64_t r0, int64_t r1, int64_t c0, int64_t c1) const {
    State found[OPS];
    int n = 0;
    for (int i = 0; i < ops; i++) {
      const Rule& r = rule[i];
      switch (r.kind) {
        case AND: n--; found[n - 1] = found[n - 1] < found[n] ? found[n - 1] : found[n]; break;
        case OR: n--; found[n - 1] = found[n - 1] > found[n] ? found[n - 1] : found[n]; break;
        case NOT: found[n - 1] = (State)(FULL - found[n - 1]); break;
        case BAND: {
          int64_t low = c0 - r1 - r.n, high = c1 - r0 - r.n;
          bool none = low > r.after || high < -r.before;
          bool all = low >= -r.before && high <= r.after;
          found[n++] = none ? EMPTY : all ? FULL : PARTIAL;
          break;
        }
        case FIRST: found[n++] = c0 >= r.n ? EMPTY : c1 < r.n ? FULL : PARTIAL; break;
        case SEGMENTS: found[n++] = segments(r, r0, r1, c0, c1); break;
        default: found[n++] = PARTIAL;
      }
    }
    return found[0];
  }

  static State segments(const Rule& r, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    const int64_t *q = (const int64_t*)r.x, *k = (const int64_t*)r.y;
    int64_t q_least = q[r0], q_most = q[r0], k_least = k[c0], k_most = k[c0];
    for (int64_t i = r0; i <= r1; i++) q_least = least(q_least, q[i]), q_most = most(q_most, q[i]);
    for (int64_t j = c0; j <= c1; j++) k_least = least(k_least, k[j]), k_most = most(k_most, k[j]);
    if (q_least > k_most || q_most < k_least) return EMPTY;
    return q_least == q_most && k_least == k_most ? FULL : PARTIAL;
  }

  // Bits of rows r0 … r1 for keys c0 … c1.
  void bits(int64_t r0, int64_t r1, int64_t c0, int64_t c1, uint64_t* out) const {
    uint64_t stack[8][KEYS];
    int n = 0;
    int64_t keys = c1 - c0 + 1, rows = r1 - r0 + 1;
    for (int i = 0; i < ops; i++) {
      const Rule& r = rule[i];
      uint64_t *a = stack[n > 1 ? n - 2 : 0], *b = stack[n ? n - 1 : 0];
      if (r.kind == AND) {
        for (int64_t j = 0; j < keys; j++) a[j] &= b[j];
        n--;
      } else if (r.kind == OR) {
        for (int64_t j = 0; j < keys; j++) a[j] |= b[j];
        n--;
      } else if (r.kind == NOT) {
        for (int64_t j = 0; j < keys; j++) b[j] = ~b[j];
      } else {
        leaf(r, r0, rows, c0, keys, stack[n++]);
      }
    }
    uint64_t valid = rows == 64 ? ~0ull : (1ull << rows) - 1;
    for (int64_t j = 0; j < keys; j++) out[j] = stack[0][j] & valid;
  }

  static uint64_t below(int64_t n) { return n <= 0 ? 0 : n >= 64 ? ~0ull : (1ull << n) - 1; }

  static void leaf(const Rule& r, int64_t r0, int64_t rows, int64_t c0, int64_t keys,
                   uint64_t* out) {
    switch (r.kind) {
      case BAND:
        for (int64_t j = 0; j < keys; j++) {
          int64_t at = c0 + j - r.n - r0;  // rows from at − after to at + before
          out[j] = below(at + r.before + 1) & ~below(at - r.after);
        }
        return;
      case FIRST:
        for (int64_t j = 0; j < keys; j++) out[j] = c0 + j < r.n ? ~0ull : 0;
        return;
      case SEGMENTS: {
        const int64_t *q = (const int64_t*)r.x + r0, *k = (const int64_t*)r.y + c0;
        for (int64_t j = 0; j < keys; j++) {
          if (j && k[j] == k[j - 1]) {
            out[j] = out[j - 1];
            continue;
          }
          uint64_t word = 0;
          for (int64_t i = 0; i < rows; i++) word |= (uint64_t)(q[i] == k[j]) << i;
          out[j] = word;
        }
        return;
      }
      case DILATED:
        for (int64_t j = 0; j < keys; j++) {
          uint64_t word = 0;
          int64_t first = (c0 + j - r.n - r0) % r.before;
          for (int64_t i = first < 0 ? first + r.before : first; i < rows; i += r.before)
            word |= 1ull << i;
          out[j] = word;
        }
        return;
      default: entries(r, r0, rows, c0, keys, out);
    }
  }

  // A boolean tensor: the bytes of a row become the bits of a word, and the square of bits is turned
  // so that bit i of word j is query i.
  static void entries(const Rule& r, int64_t r0, int64_t rows, int64_t c0, int64_t keys,
                      uint64_t* out) {
    uint64_t square[64] = {};
    const char* p = r.x + r0 * r.x_row + c0 * r.x_col;
    for (int64_t i = 0; i < rows; i++, p += r.x_row) {
      if (i && r.x_row == 0) {
        square[i] = square[i - 1];
        continue;
      }
      uint64_t word = 0;
      int64_t j = 0;
      if (r.x_col == 1 && keys == KEYS)
        word = low_bits(p), j = keys;
      else if (r.x_col == 1)
        for (; j + 8 <= keys; j += 8) word |= low_bits_of_8(p + j) << j;
      for (; j < keys; j++) word |= (uint64_t)(p[j * r.x_col] & 1) << j;
      square[i] = word;
    }
    uint64_t mask = 0x00000000ffffffffull;
    for (int step = 32; step; step >>= 1, mask ^= mask << step)
      for (int i = 0; i < 64; i = ((i | step) + 1) & ~step) {
        uint64_t swap = ((square[i] >> step) ^ square[i | step]) & mask;
        square[i] ^= swap << step;
        square[i | step] ^= swap;
      }
    for (int64_t j = 0; j < keys; j++) out[j] = square[j];
  }
};

}  // namespace
