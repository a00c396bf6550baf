// The Python module: reads tensors, chooses the instruction set, runs jobs without the GIL.
//
// Written against the limited API, so that one file serves every Python from 3.11 on. Tensors are
// read through DLPack's exchange table where PyTorch has one (no PyTorch headers, no copies), else
// through their methods.
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

#include "call.hpp"
#include "threads.hpp"

namespace intently {
namespace {

// --- tensors ------------------------------------------------------------------------------------

// DLPack 1.3, in its own words: https://dmlc.github.io/dlpack/latest/c_api.html
struct Device {
  int32_t type, id;
};
struct Dtype {
  uint8_t code, bits;
  uint16_t lanes;
};
struct View {
  void* data;
  Device device;
  int32_t ndim;
  Dtype dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct Exchange {
  uint32_t major, minor;
  Exchange* previous;
  void *allocate, *managed_from, *managed_to;
  int (*view)(void*, View*);
  void* stream;
};

const Exchange* exchange = nullptr;

struct Tensor {
  char* data;
  int ndim, type;
  int64_t shape[16], stride[16];  // strides in bytes
};

int type_of(int code, int bits) {
  if (code == 2) return bits == 32 ? F32 : bits == 64 ? F64 : bits == 16 ? F16 : -1;
  if (code == 4) return BF16;
  if (code == 6) return U8;
  if (code == 1 && bits == 8) return U8;
  if (code == 0) return bits == 64 ? I64 : bits == 32 ? I32 : -1;
  return -1;
}

int bytes_of(int type) {
  switch (type) {
    case F64:
    case I64: return 8;
    case BF16:
    case F16: return 2;
    case U8: return 1;
    default: return 4;
  }
}

bool fail(PyObject* kind, const char* text) {
  if (!PyErr_Occurred()) PyErr_SetString(kind, text);
  return false;
}

bool numbers(PyObject* x, const char* method, int64_t* out, int* n) {
  PyObject* found = PyObject_CallMethod(x, method, nullptr);
  if (!found) return false;
  PyObject* items = PySequence_Tuple(found);
  Py_DECREF(found);
  if (!items) return false;
  *n = (int)PyTuple_Size(items);
  for (int i = 0; i < *n && i < 16; i++) out[i] = PyLong_AsLongLong(PyTuple_GetItem(items, i));
  Py_DECREF(items);
  return !PyErr_Occurred();
}

bool by_methods(PyObject* x, Tensor* out) {
  PyObject* at = PyObject_CallMethod(x, "data_ptr", nullptr);
  if (!at) return false;
  out->data = (char*)PyLong_AsVoidPtr(at);
  Py_DECREF(at);
  int strides;
  if (!numbers(x, "size", out->shape, &out->ndim) || !numbers(x, "stride", out->stride, &strides))
    return false;
  PyObject* dtype = PyObject_GetAttrString(x, "dtype");
  PyObject* text = dtype ? PyObject_Str(dtype) : nullptr;
  const char* name = text ? PyUnicode_AsUTF8AndSize(text, nullptr) : nullptr;
  if (!name) return false;
  static const struct {
    const char* name;
    int type;
  } types[] = {{"torch.float32", F32}, {"torch.bfloat16", BF16}, {"torch.float16", F16},
               {"torch.int64", I64},   {"torch.int32", I32},     {"torch.bool", U8},
               {"torch.uint8", U8},    {"torch.float64", F64}};
  out->type = -1;
  for (auto& each : types)
    if (!std::strcmp(each.name, name)) out->type = each.type;
  Py_DECREF(text);
  Py_DECREF(dtype);
  return true;
}

bool read(PyObject* x, Tensor* out) {
  if (exchange) {
    View view;
    if (exchange->view(x, &view)) return fail(PyExc_TypeError, "not a tensor");
    if (view.device.type != 1) return fail(PyExc_TypeError, "not a tensor of the CPU");
    out->data = (char*)view.data + view.byte_offset;
    out->ndim = view.ndim;
    out->type = type_of(view.dtype.code, view.dtype.bits);
    if (view.ndim > 16) return fail(PyExc_ValueError, "too many axes");
    for (int i = 0; i < view.ndim; i++) {
      out->shape[i] = view.shape[i];
      out->stride[i] = view.strides[i];
    }
  } else if (!by_methods(x, out)) {
    return false;
  }
  if (out->type < 0) return fail(PyExc_TypeError, "a dtype that no kernel reads");
  for (int i = 0; i < out->ndim; i++) out->stride[i] *= bytes_of(out->type);
  return true;
}

// A tensor (…, rows, cols) along the leading axes of the call, broadcast from the right.
bool place(const Tensor& x, const Call& c, Array* out) {
  if (x.ndim < 2) return fail(PyExc_ValueError, "a tensor needs two axes");
  out->data = x.data;
  out->type = x.type;
  int n = x.ndim;
  out->row = x.shape[n - 2] == 1 ? 0 : x.stride[n - 2];
  out->col = x.shape[n - 1] == 1 ? 0 : x.stride[n - 1];
  // c.axes counts the heads twice: (…, h / groups, groups)
  int lead = c.axes ? c.axes - 1 : 0, mine = n - 2;
  for (int i = 0; i < c.axes; i++) out->lead[i] = 0;
  for (int i = 0; i < mine && i < lead; i++) {
    int axis = lead - 1 - i, from = mine - 1 - i;
    int64_t size = x.shape[from], step = size == 1 ? 0 : x.stride[from];
    if (i > 0) {
      out->lead[axis] = step;
    } else {
      bool every = c.groups == 1 || size == c.size[axis] * c.groups;
      out->lead[axis] = every ? step * c.groups : step;
      out->lead[axis + 1] = every && c.groups > 1 ? step : 0;
    }
  }
  return true;
}

// --- a call from its dictionary -----------------------------------------------------------------

enum Form { TENSOR, WHOLE, REAL };
struct Field {
  const char* name;
  Form form;
  size_t at;
};

#define AT(member) offsetof(Call, member)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
const Field FIELDS[] = {
    {"q", TENSOR, AT(q)}, {"k", TENSOR, AT(k)}, {"v", TENSOR, AT(v)}, {"y", TENSOR, AT(y)},
    {"stats", TENSOR, AT(stats)}, {"t", WHOLE, AT(t)}, {"s", WHOLE, AT(s)}, {"d", WHOLE, AT(d)},
    {"e", WHOLE, AT(e)}, {"scale", REAL, AT(scale)}, {"scales", TENSOR, AT(scales)},
    {"softcap", REAL, AT(softcap)}, {"sinks", TENSOR, AT(sinks)},
    {"rate", REAL, AT(rate)}, {"drop_rows", TENSOR, AT(drop_rows)},
    {"drop_cols", TENSOR, AT(drop_cols)}, {"dy", TENSOR, AT(dy)}, {"dq", TENSOR, AT(dq)},
    {"dk", TENSOR, AT(dk)}, {"dv", TENSOR, AT(dv)}, {"parts", WHOLE, AT(parts)},
    {"dbias", TENSOR, AT(dbias)}, {"lse", TENSOR, AT(lse)}, {"entropy", TENSOR, AT(entropy)},
    {"argmax", TENSOR, AT(argmax)}, {"distance", TENSOR, AT(distance)},
    {"mass", TENSOR, AT(mass)}, {"top", TENSOR, AT(top)}, {"top_keys", TENSOR, AT(top_keys)},
    {"top_n", WHOLE, AT(top_n)}, {"flags", TENSOR, AT(flags)},
    {"received", TENSOR, AT(received)}, {"picture", TENSOR, AT(picture)},
    {"sums", TENSOR, AT(sums)}, {"firsts", TENSOR, AT(firsts)},
    {"counted", TENSOR, AT(counted)}, {"again", TENSOR, AT(again)},
    {"cell_rows", WHOLE, AT(cells)}, {"cell_cols", WHOLE, AT(cells) + sizeof(int64_t)},
};
#pragma GCC diagnostic pop

bool lead_of(PyObject* lead, int64_t groups, Call* c) {
  int n = (int)PyTuple_Size(lead);
  if (n < 0) return false;
  if (n + 1 > AXES) return fail(PyExc_ValueError, "too many leading axes");
  c->groups = groups;
  for (int i = 0; i < n; i++) {
    c->size[i] = PyLong_AsLongLong(PyTuple_GetItem(lead, i));
    c->leads *= c->size[i];
  }
  if (n) {
    c->size[n - 1] /= groups;
    c->size[n] = groups;
    c->axes = n + 1;
  }
  return !PyErr_Occurred();
}

bool put(PyObject* value, const char* name, Call* c) {
  for (const Field& field : FIELDS) {
    if (std::strcmp(field.name, name)) continue;
    char* at = (char*)c + field.at;
    if (field.form == TENSOR) {
      Tensor x;
      return read(value, &x) && place(x, *c, (Array*)at);
    }
    if (field.form == WHOLE)
      *(int64_t*)at = PyLong_AsLongLong(value);
    else
      *(float*)at = (float)PyFloat_AsDouble(value);
    return !PyErr_Occurred();
  }
  return fail(PyExc_KeyError, name);
}

// Steps are added to those of the call.
bool program(PyObject* ops, Call* c, Program* out) {
  Py_ssize_t n = PyTuple_Size(ops);
  if (n < 0 || n > OPS - c->steps) return fail(PyExc_ValueError, "masks of too many steps");
  *out = {c->steps, (int)n};
  for (Py_ssize_t i = 0; i < n; i++) {
    Op& op = c->op[c->steps++];
    PyObject *x, *y;
    long long a, b, start;
    if (!PyArg_ParseTuple(PyTuple_GetItem(ops, i), "iLLLOO", &op.kind, &a, &b, &start, &x, &y))
      return false;
    op.a = a;
    op.b = b;
    op.n = start;
    Tensor tensor;
    if (x != Py_None && !(read(x, &tensor) && place(tensor, *c, &op.x))) return false;
    if (y != Py_None && !(read(y, &tensor) && place(tensor, *c, &op.y))) return false;
  }
  return true;
}

bool programs(PyObject* given, Call* c) {
  Py_ssize_t n = PyTuple_Size(given);
  if (n < 0 || n > PROGRAMS) return fail(PyExc_ValueError, "too many masks");
  for (Py_ssize_t i = 0; i < n; i++)
    if (!program(PyTuple_GetItem(given, i), c, &c->sought[i])) return false;
  return true;
}

bool several(PyObject* given, Call* c, Array* out, int* count) {
  Py_ssize_t n = PyTuple_Size(given);
  if (n < 0 || n > BIASES) return fail(PyExc_ValueError, "a sum of too many biases");
  for (Py_ssize_t i = 0; i < n; i++) {
    Tensor x;
    if (!read(PyTuple_GetItem(given, i), &x) || !place(x, *c, &out[i])) return false;
  }
  *count = (int)n;
  return true;
}

// --- running ------------------------------------------------------------------------------------

const Kernels* chosen = nullptr;

thread_local char here;  // its address tells threads apart

struct Run {
  Call* call;
  int job;
  int64_t tasks, step, scratch;
  char* memory;
  std::atomic<int64_t> next{0};
  std::atomic<int> workers{0};
  char* caller;
  PyThreadState* state;
  bool interrupted = false;
  std::chrono::steady_clock::time_point asked;
};

// Lets Python see Ctrl-C five times a second, from the thread that called.
bool pulse(void* data) {
  Run& run = *(Run*)data;
  if (&here != run.caller) return false;
  auto now = std::chrono::steady_clock::now();
  if (now - run.asked < std::chrono::milliseconds(200)) return false;
  run.asked = now;
  PyEval_RestoreThread(run.state);
  if (PyErr_CheckSignals()) run.interrupted = true;
  run.state = PyEval_SaveThread();
  return run.interrupted;
}

void work(void* data) {
  Run& run = *(Run*)data;
  char* scratch = run.memory + run.workers.fetch_add(1) * run.scratch;
  for (;;) {
    int64_t task = run.next.fetch_add(run.step, std::memory_order_relaxed);
    if (task >= run.tasks || run.call->stop.load(std::memory_order_relaxed)) return;
    int64_t end = task + run.step < run.tasks ? task + run.step : run.tasks;
    for (; task < end; task++) chosen->run(*run.call, run.job, task, scratch);
    if (pulse(data)) run.call->stop.store(true);
  }
}

// Memory that a Python thread keeps from call to call.
struct Workspace {
  char* data = nullptr;
  size_t size = 0;
  char* of(size_t wanted) {
    if (wanted > size) {
      std::free(data);
      data = (char*)std::malloc(wanted + 64);
      size = data ? wanted : 0;
    }
    return data ? (char*)(((uintptr_t)data + 63) & ~(uintptr_t)63) : nullptr;
  }
  void shrink() {
    if (size <= (size_t)1 << 26) return;
    std::free(data);
    data = nullptr;
    size = 0;
  }
  ~Workspace() { std::free(data); }
};
thread_local Workspace workspace;

// Runs the jobs of a call one after the other; false with an exception set.
bool run(Call& c, const int* jobs, int count, int threads) {
  Run r;
  r.call = &c;
  r.caller = &here;
  c.pulse = pulse;
  c.pulse_data = &r;
  int64_t scratch = 0, shared = 0;
  for (int i = 0; i < count; i++) {
    int64_t mine = chosen->scratch(c, jobs[i]), all = chosen->shared(c, jobs[i]);
    scratch = mine > scratch ? mine : scratch;
    shared = all > shared ? all : shared;
  }
  scratch = (scratch + 127) / 64 * 64;
  // A region of threads costs a few microseconds: what is smaller runs where it is.
  double flops = (double)c.leads * c.t * c.s * (c.d + c.e);
  if (flops < threads * 1e5) threads = 1 + (int)(flops / 1e5);
  char* memory = workspace.of(threads * scratch + shared);
  if (!memory) {
    PyErr_NoMemory();
    return false;
  }
  c.shared = memory + threads * scratch;
  r.memory = memory;
  r.scratch = scratch;
  r.asked = std::chrono::steady_clock::now();
  bool alone = threads == 1 && flops < 1e6;  // not worth giving up the GIL
  r.state = alone ? nullptr : PyEval_SaveThread();
  if (alone) c.pulse = nullptr;
  for (int i = 0; i < count && !c.stop.load(); i++) {
    r.job = jobs[i];
    r.tasks = chosen->tasks(c, r.job);
    r.next = 0;
    r.workers = 0;
    int64_t step = r.tasks / (threads * 16);
    r.step = step > 0 ? step : 1;
    if (alone)
      for (int64_t task = 0; task < r.tasks; task++) chosen->run(c, r.job, task, memory);
    else
      together(r.tasks < threads ? (int)(r.tasks > 0 ? r.tasks : 1) : threads, work, &r);
  }
  if (!alone) PyEval_RestoreThread(r.state);
  workspace.shrink();
  return !r.interrupted;
}

// Into how many parts the keys of a row are cut, where there are few blocks of rows to share out.
int64_t splits_of(const Call& c) {
  int64_t blocks = c.leads * ((c.t + ROWS - 1) / ROWS), few = 32, keys = 1024;
  if (blocks < 1 || blocks >= few || c.s < 2 * keys) return 1;
  int64_t wanted = (few + blocks - 1) / blocks, most = c.s / keys;
  return wanted < most ? wanted : most;
}

PyObject* py_run(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 5) return fail(PyExc_TypeError, "run(job, threads, lead, groups, operands)"), nullptr;
  int job = (int)PyLong_AsLong(args[0]), threads = (int)PyLong_AsLong(args[1]);
  int64_t groups = PyLong_AsLongLong(args[3]);
  if (PyErr_Occurred()) return nullptr;
  Call c;
  if (!lead_of(args[2], groups, &c)) return nullptr;
  PyObject *key, *value;
  Py_ssize_t at = 0;
  while (PyDict_Next(args[4], &at, &key, &value)) {
    if (value == Py_None) continue;
    const char* name = PyUnicode_AsUTF8AndSize(key, nullptr);
    if (!name) return nullptr;
    bool ok;
    if (!std::strcmp(name, "mask"))
      ok = program(value, &c, &c.mask);
    else if (!std::strcmp(name, "sought"))
      ok = programs(value, &c);
    else if (!std::strcmp(name, "biases"))
      ok = several(value, &c, c.bias, &c.biases);
    else if (!std::strcmp(name, "profiles"))
      ok = several(value, &c, c.profile, &c.profiles);
    else if (!std::strcmp(name, "dbias_profile"))
      c.dbias_profile = PyObject_IsTrue(value) == 1, ok = true;
    else if (!std::strcmp(name, "largest"))
      c.largest = PyObject_IsTrue(value) == 1, ok = true;
    else
      ok = put(value, name, &c);
    if (!ok) return nullptr;
  }
  if (c.d > WIDTH || c.e > WIDTH) return fail(PyExc_ValueError, "heads too wide"), nullptr;
  if (job == PRODUCT) c.splits = splits_of(c);
  int jobs[2] = {job, MERGE};
  if (!run(c, jobs, job == PRODUCT && c.splits > 1 ? 2 : 1, threads)) return nullptr;
  Py_RETURN_NONE;
}

// quick(q, k, v, y, scale, mask, threads): the plain product of small calls, straight from four
// tensors (b, heads, steps, width) of float32. The mask is None, True for causal, or a tensor:
// booleans, or numbers to add. False where the shapes do not fit; the caller then takes the long way.
PyObject* py_quick(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 7) return fail(PyExc_TypeError, "quick(q, k, v, y, scale, mask, threads)"), nullptr;
  Tensor x[4];
  for (int i = 0; i < 4; i++) {
    if (!read(args[i], &x[i])) {
      PyErr_Clear();
      Py_RETURN_FALSE;
    }
    if (x[i].ndim != 4 || x[i].type != F32 || !x[i].data) Py_RETURN_FALSE;
    for (int axis = 0; axis < 4; axis++)
      if (x[i].shape[axis] < 1) Py_RETURN_FALSE;
  }
  const Tensor &q = x[0], &k = x[1], &v = x[2], &y = x[3];
  int64_t h = q.shape[1], g = k.shape[1];
  bool fits = q.shape[0] == k.shape[0] && q.shape[0] == v.shape[0] && g == v.shape[1] &&
              h % g == 0 && q.shape[3] == k.shape[3] && k.shape[2] == v.shape[2] &&
              y.shape[0] == q.shape[0] && y.shape[1] == h && y.shape[2] == q.shape[2] &&
              y.shape[3] == v.shape[3] && q.shape[3] <= WIDTH && v.shape[3] <= WIDTH;
  if (!fits) Py_RETURN_FALSE;
  Call c;
  c.axes = 3;
  c.size[0] = q.shape[0];
  c.size[1] = g;
  c.size[2] = c.groups = h / g;
  c.leads = q.shape[0] * h;
  c.t = q.shape[2];
  c.s = k.shape[2];
  c.d = q.shape[3];
  c.e = v.shape[3];
  c.scale = (float)PyFloat_AsDouble(args[4]);
  int threads = (int)PyLong_AsLong(args[6]);
  if (PyErr_Occurred()) return nullptr;
  place(q, c, &c.q);
  place(k, c, &c.k);
  place(v, c, &c.v);
  place(y, c, &c.y);
  if (args[5] != Py_None) {
    Op& op = c.op[0];
    if (args[5] == Py_True) {
      c.mask.ops = 1;
      op.kind = BAND;
      op.a = (int64_t)1 << 60;
      op.n = c.s - c.t;
    } else {
      Tensor mask;
      if (!read(args[5], &mask)) return nullptr;
      if (mask.ndim < 2 || mask.ndim > 4 || (mask.type != U8 && mask.type != F32)) Py_RETURN_FALSE;
      if (mask.type == F32) {
        c.biases = 1;
        place(mask, c, &c.bias[0]);
      } else {
        c.mask.ops = 1;
        op.kind = ENTRIES;
        place(mask, c, &op.x);
      }
    }
  }
  c.splits = splits_of(c);
  const int jobs[2] = {PRODUCT, MERGE};
  if (!run(c, jobs, c.splits > 1 ? 2 : 1, threads)) return nullptr;
  Py_RETURN_TRUE;
}

PyObject* py_name(PyObject*, PyObject*) { return PyUnicode_FromString(chosen->name); }
PyObject* py_lanes(PyObject*, PyObject*) { return PyLong_FromLong(chosen->lanes); }
PyObject* py_pool(PyObject*, PyObject*) { return PyUnicode_FromString(pool()); }

PyObject* py_forked(PyObject*, PyObject*) {
  forked_before();
  Py_RETURN_NONE;
}

PyMethodDef METHODS[] = {
    {"run", (PyCFunction)(void (*)(void))py_run, METH_FASTCALL,
     "run(job, threads, lead, groups, operands): one job of a call."},
    {"quick", (PyCFunction)(void (*)(void))py_quick, METH_FASTCALL,
     "quick(q, k, v, y, scale, mask, threads): the plain product of small calls."},
    {"instructions", py_name, METH_NOARGS, "The instruction set that was chosen at import."},
    {"lanes", py_lanes, METH_NOARGS, "Numbers in one vector; gradients are padded to them."},
    {"pool", py_pool, METH_NOARGS, "Whose threads do the work: openmp or own."},
    {"forked", py_forked, METH_NOARGS, "Use threads of its own: this process is a fork."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_native", "The native kernels.", -1, METHODS,
                      nullptr, nullptr, nullptr, nullptr};

// The best set that the machine has, or the one that INTENTLY_NATIVE names.
const Kernels* choose() {
  const char* asked = std::getenv("INTENTLY_NATIVE");
  const Kernels* best = portable();
  const Kernels* found = nullptr;
#if defined(INTENTLY_AVX)
  __builtin_cpu_init();
  bool two = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  bool five = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (two) best = avx2();
  if (five) best = avx512();
  if (asked && two && !std::strcmp(asked, "avx2")) found = avx2();
  if (asked && five && !std::strcmp(asked, "avx512")) found = avx512();
#endif
  if (asked && !std::strcmp(asked, portable()->name)) found = portable();
  if (asked && *asked && !found) {
    PyErr_Format(PyExc_ImportError, "INTENTLY_NATIVE=%s: this machine or build has no such set",
                 asked);
    return nullptr;
  }
  return found ? found : best;
}

void find_exchange() {
  PyObject* torch = PyImport_ImportModule("torch");
  PyObject* kind = torch ? PyObject_GetAttrString(torch, "Tensor") : nullptr;
  PyObject* found = kind ? PyObject_GetAttrString(kind, "__dlpack_c_exchange_api__") : nullptr;
  if (found && PyCapsule_CheckExact(found)) {
    auto* table = (const Exchange*)PyCapsule_GetPointer(found, "dlpack_exchange_api");
    if (table && table->major == 1 && table->view) exchange = table;
  }
  PyErr_Clear();
  Py_XDECREF(found);
  Py_XDECREF(kind);
  Py_XDECREF(torch);
}

}  // namespace
}  // namespace intently

PyMODINIT_FUNC PyInit__native(void) {
  intently::chosen = intently::choose();
  if (!intently::chosen) return nullptr;
  intently::find_exchange();
  return PyModule_Create(&intently::MODULE);
}
