// Runs every job of the kernels on small arrays of their exact size and compares with the plain
// formula in double: to be built with -fsanitize=address,undefined (see test_native_build.py).
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "call.hpp"

using namespace intently;
using Floats = std::vector<float>;

static std::mt19937 generator(7);
static Floats drawn(size_t n) {
  std::normal_distribution<float> normal;
  Floats x(n);
  for (auto& value : x) value = normal(generator);
  return x;
}

static Array along(Floats& x, int axes, const int64_t* size, int64_t rows, int64_t cols) {
  Array a;
  a.data = (char*)x.data();
  a.row = rows > 1 ? 4 * cols : 0;
  a.col = 4;
  int64_t step = 4 * rows * cols;
  for (int i = axes - 1; i >= 0; i--) {
    a.lead[i] = step;
    step *= size[i];
  }
  return a;
}

static void run(const Kernels* k, Call& c, int job) {
  std::vector<char> scratch(k->scratch(c, job)), shared(k->shared(c, job) + 1);
  c.shared = shared.data();
  for (int64_t task = 0; task < k->tasks(c, job); task++) k->run(c, job, task, scratch.data());
  if (job == PRODUCT && c.splits > 1)
    for (int64_t task = 0; task < k->tasks(c, MERGE); task++)
      k->run(c, MERGE, task, scratch.data());
}

static int failures = 0;
static void close(const char* what, double found, double expected, double limit = 2e-5) {
  if (std::fabs(found - expected) <= limit * (1 + std::fabs(expected))) return;
  if (std::isinf(found) && found == expected) return;
  if (++failures < 10) std::printf("%s: %g instead of %g\n", what, found, expected);
}

static void check(const Kernels* k, int64_t h, int64_t t, int64_t s, int64_t d, int64_t e,
                  int rule, float softcap, int64_t splits) {
  Call c;
  c.axes = 2;
  c.size[0] = h;
  c.size[1] = 1;
  c.leads = h;
  c.t = t, c.s = s, c.d = d, c.e = e, c.softcap = softcap, c.splits = splits;
  c.scale = 0.5f;
  Floats q = drawn(h * t * d), key = drawn(h * s * d), v = drawn(h * s * e), bias = drawn(t * s);
  Floats dy = drawn(h * t * e), y(h * t * e), stats(h * t * 2), dq(h * t * d);
  int64_t wide_d = (d + k->lanes - 1) / k->lanes * k->lanes;
  int64_t wide_e = (e + k->lanes - 1) / k->lanes * k->lanes;
  Floats dk(h * s * wide_d), dv(h * s * wide_e), dbias(t * s), lse(h * t), entropy(h * t);
  Floats top(h * t * 3), picture(h * 4);
  std::vector<int64_t> keys(h * t * 3), q_ids(t), k_ids(s);
  std::vector<unsigned char> entries(t * s);
  std::vector<double> received(h * s);
  int64_t size[2] = {h, 1}, none[2] = {0, 0};
  c.q = along(q, 2, size, t, d);
  c.k = along(key, 2, size, s, d);
  c.v = along(v, 2, size, s, e);
  c.y = along(y, 2, size, t, e);
  c.stats = along(stats, 2, size, t, 2);
  c.stats.row = 8;
  c.dy = along(dy, 2, size, t, e);
  c.dq = along(dq, 2, size, t, d);
  c.dq.row = 4 * d;
  c.dk = along(dk, 2, size, s, wide_d);
  c.dv = along(dv, 2, size, s, wide_e);
  c.biases = 1;
  c.bias[0] = along(bias, 0, none, t, s);
  c.bias[0].row = t > 1 ? 4 * s : 0;
  for (auto& id : q_ids) id = generator() % 3;
  for (auto& id : k_ids) id = generator() % 3;
  for (auto& one : entries) one = generator() % 2;
  if (rule) {
    c.steps = c.mask.ops = 1;
    c.op[0].kind = rule == 1 ? BAND : rule == 2 ? SEGMENTS : rule == 3 ? ENTRIES : DILATED;
    if (rule == 1) c.op[0].a = 20, c.op[0].b = 3, c.op[0].n = s - t;
    if (rule == 4) c.op[0].a = 3;
    if (rule == 2) c.op[0].x.data = (char*)q_ids.data(), c.op[0].y.data = (char*)k_ids.data();
    if (rule == 3) {
      c.op[0].x.data = (char*)entries.data();
      c.op[0].x.row = t > 1 ? s : 0;
      c.op[0].x.col = 1;
    }
  }
  run(k, c, PRODUCT);
  c.splits = 1;
  run(k, c, BACKWARD);
  if (softcap == 0) {
    c.dbias = along(dbias, 0, none, t, s);
    c.dbias.row = t > 1 ? 4 * s : 0;
    run(k, c, BIAS_BACKWARD);
  }
  c.lse = along(lse, 2, size, t, 1);
  c.lse.row = 4;
  c.entropy = along(entropy, 2, size, t, 1);
  c.entropy.row = 4;
  c.top = along(top, 2, size, t, 3);
  c.top.row = 12;
  c.top_keys.data = (char*)keys.data();
  c.top_keys.lead[0] = 24 * t;
  c.top_keys.row = 24;
  c.top_keys.col = 8;
  c.top_n = 3;
  run(k, c, MEASURE);
  c.received.data = (char*)received.data();
  c.received.row = 8 * s;
  run(k, c, RECEIVE);
  c.picture = along(picture, 2, size, 2, 2);
  c.cells[0] = t < 2 ? 1 : 2;
  c.cells[1] = s < 2 ? 1 : 2;
  run(k, c, PICTURE);
  // the numbers of `Heads`, see heads.hpp: entropy, confidence, sink, self, previous, distance,
  // shared, duplicate, induction, and four counts
  constexpr int SUMS = 13;
  std::vector<double> sums(2 * h * SUMS), entropies(h);
  std::vector<int64_t> firsts(2);
  c.parts = 2;
  c.sums.data = (char*)sums.data();
  c.sums.row = 8 * SUMS;
  c.firsts.data = (char*)firsts.data();
  c.firsts.row = 8;
  c.sought[0] = c.sought[1] = {c.steps, 1};
  c.op[c.steps].kind = BAND;
  c.steps++;
  run(k, c, HEADS);

  auto allowed = [&](int64_t i, int64_t j) {
    if (rule == 1) return j - (i + s - t) >= -20 && j - (i + s - t) <= 3;
    if (rule == 2) return q_ids[i] == k_ids[j];
    if (rule == 3) return entries[i * s + j] == 1;
    if (rule == 4) return (j - i) % 3 == 0;
    return true;
  };
  std::vector<double> w(t * s), columns(s), wanted_dk(s * d), wanted_dv(s * e), wanted(t * s);
  for (int64_t x = 0; x < h; x++) {
    std::fill(columns.begin(), columns.end(), 0);
    std::fill(wanted_dk.begin(), wanted_dk.end(), 0);
    std::fill(wanted_dv.begin(), wanted_dv.end(), 0);
    for (int64_t i = 0; i < t; i++) {
      double most = -INFINITY, sum = 0;
      std::vector<double> z(s), slope(s);
      for (int64_t j = 0; j < s; j++) {
        double dot = 0;
        for (int64_t n = 0; n < d; n++)
          dot += (double)q[(x * t + i) * d + n] * key[(x * s + j) * d + n];
        dot *= 0.5;
        double tanh = softcap > 0 ? std::tanh(dot / softcap) : 0;
        slope[j] = 0.5 * (1 - tanh * tanh);
        z[j] = allowed(i, j) ? (softcap > 0 ? softcap * tanh : dot) + bias[i * s + j] : -INFINITY;
        most = z[j] > most ? z[j] : most;
      }
      for (int64_t j = 0; j < s; j++) sum += std::isinf(z[j]) ? 0 : std::exp(z[j] - most);
      double spread = 0;
      std::vector<double> row(e);
      for (int64_t j = 0; j < s; j++) {
        w[i * s + j] = std::isinf(z[j]) ? 0 : std::exp(z[j] - most) / sum;
        columns[j] += w[i * s + j];
        if (w[i * s + j] > 0) spread -= w[i * s + j] * std::log(w[i * s + j]);
        for (int64_t n = 0; n < e; n++) row[n] += w[i * s + j] * v[(x * s + j) * e + n];
      }
      close("lse", lse[x * t + i], sum > 0 ? most + std::log(sum) : -INFINITY);
      close("entropy", entropy[x * t + i], spread, 1e-4);
      entropies[x] += spread;
      double offset = 0;
      for (int64_t n = 0; n < e; n++) {
        close("y", y[(x * t + i) * e + n], row[n]);
        offset += row[n] * dy[(x * t + i) * e + n];
      }
      std::vector<double> wanted_dq(d);
      for (int64_t j = 0; j < s; j++) {
        double dw = 0;
        for (int64_t n = 0; n < e; n++) {
          dw += (double)dy[(x * t + i) * e + n] * v[(x * s + j) * e + n];
          wanted_dv[j * e + n] += w[i * s + j] * dy[(x * t + i) * e + n];
        }
        double dz = w[i * s + j] * (dw - offset);
        wanted[i * s + j] += dz;
        for (int64_t n = 0; n < d; n++) {
          wanted_dq[n] += dz * slope[j] * key[(x * s + j) * d + n];
          wanted_dk[j * d + n] += dz * slope[j] * q[(x * t + i) * d + n];
        }
      }
      for (int64_t n = 0; n < d; n++) close("dq", dq[(x * t + i) * d + n], wanted_dq[n], 1e-4);
    }
    close("entropies", sums[x * SUMS] + sums[(h + x) * SUMS], entropies[x], 1e-4);
    for (int64_t j = 0; j < s; j++) {
      close("received", received[x * s + j], columns[j]);
      for (int64_t n = 0; n < d; n++)
        close("dk", dk[(x * s + j) * wide_d + n], wanted_dk[j * d + n], 1e-4);
      for (int64_t n = 0; n < e; n++)
        close("dv", dv[(x * s + j) * wide_e + n], wanted_dv[j * e + n], 1e-4);
    }
  }
  if (softcap == 0)
    for (int64_t i = 0; i < t * s; i++) close("dbias", dbias[i], wanted[i], 1e-4);
}

int main() {
  std::vector<const Kernels*> sets = {portable()};
#if defined(INTENTLY_AVX)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.push_back(avx2());
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) sets.push_back(avx512());
#endif
  const int64_t sizes[][4] = {{1, 1, 1, 1},   {3, 5, 7, 2},    {64, 48, 16, 16}, {65, 49, 17, 9},
                              {130, 97, 8, 40}, {16, 200, 33, 64}, {40, 31, 64, 3}};
  for (const Kernels* k : sets) {
    for (auto& n : sizes)
      for (int rule = 0; rule < 5; rule++)
        check(k, 2, n[0], n[1], n[2], n[3], rule, rule == 3 ? 2.0f : 0.0f, rule % 2 ? 3 : 1);
    std::printf("%s: %d failures\n", k->name, failures);
  }
  return failures != 0;
}
