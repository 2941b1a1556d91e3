/*
 * The compiled part of the Python package: the calls that a model makes for every layer, without ctypes and without
 * Python code between the caller's tensors and the C library.
 *
 * It is never needed. Each function does the ordinary call, of tensors that are exactly PyTorch's and of the right
 * type, place and form, and answers anything else with None ("declines") before it has called the library. The
 * Python code then makes the call, with its own checks and its own words for what is wrong. So both ways have the
 * same results and the same errors, and only one of them decides what they are.
 *
 * It links neither the C library nor Python: Python resolves the second, and functions of the first are addresses
 * from the library that the package has opened.
 */
#ifndef WEFT_NATIVE_H
#define WEFT_NATIVE_H

#include "cpython.h"
#include "dlpack.h"
#include "weft.h"

/* The library's functions, in the order in which bind takes their addresses. */
#define LIBRARY(X)                                                                                                     \
	X(ep_dispatch)                                                                                                     \
	X(all_gather)                                                                                                      \
	X(ep_combine)                                                                                                      \
	X(ep_copy_received)                                                                                                \
	X(ep_count)                                                                                                        \
	X(ep_token_counter_count)                                                                                          \
	X(received_release)                                                                                                \
	X(routing_release)                                                                                                 \
	X(routing_tensor)                                                                                                  \
	X(routing_describe)

#define FIELD(name) __typeof__(weft_##name) *name;
typedef struct {
	LIBRARY(FIELD)
} library;
#undef FIELD

extern library lib;

/* Tensors. All of it is called with the interpreter's lock. */

/* Knows PyTorch from now on: its module. 0, or -1 with an exception where it lacks the C exchange API 1. */
int tensors_bind(PyObject *torch);

/* For tests: whether tensors of the host stand for those on GPUs, which share its memory where they are emulated. */
void tensors_emulate(int on);

/* Describes a tensor of PyTorch's to the library. -1 declines, without an exception. */
int tensor_read(PyObject *tensor, int device, weft_tensor *read);

/* The current stream of a GPU; NULL of the host. -1 declines. */
int current_stream(int device, weft_stream *stream);

/* New tensors of one type, whose first dimension varies. */
typedef struct {
	PyObject *sample; /* makes one of so many rows, or of the only shape for -1, which takes no memory */
	PyObject *one;    /* that it has made: of one row, or of the only shape */
	dl_tensor like;   /* what it shows: with shape and strides of these */
	int64_t sizes[WEFT_MAX_DIMS], steps[WEFT_MAX_DIMS];
	int plain;        /* whether tensors need not be PyTorch's own: on the host only */
	/* What the compiler's way takes, of the last rows. */
	PyObject *arguments;
	int64_t first;
	/* Pieces that are ready: a tuple, of which the first so many are left, step apart; their rows and where they are,
	 * and the stream and mode of PyTorch's that they were made for. */
	PyObject *pieces;
	Py_ssize_t left, step;
	int64_t rows;
	dl_device where;
	weft_stream stream;
	int inference;
} maker;

int maker_init(maker *m, PyObject *sample, int plain);
void maker_clear(maker *m);

/* A new tensor of so many rows, or of -1 in all calls of a maker that has one shape; NULL with an exception. It says
 * where the tensor is, of what type and shape. */
PyObject *maker_make(maker *m, int64_t rows, weft_tensor *made);

/* The same of a small one of a GPU's, for work in the current stream: it may share memory with others of the maker's. */
PyObject *maker_piece(maker *m, int64_t rows, weft_stream current, weft_tensor *made);

/* The same of tensors that follow each other in memory, in all calls of so many rows each. The first of them is nobody's:
 * made and read are of the others. whole is all memory of such, if it is new, and NULL else. 0; 1 if tensors are not to
 * be made so; -1 with an exception, with some made. */
int maker_parts(maker *m, const int64_t *rows, int count, weft_stream current, PyObject **made, weft_tensor *read,
				PyObject **whole);

/* The version of a tensor's content; -1 where PyTorch keeps none, -2 with an exception. */
long long tensor_version(PyObject *tensor);

/* The same of a tensor that is known to have one. */
long long tensor_version_kept(PyObject *tensor);

/* Whether this PyTorch shows memory of a type. */
int tensor_shows(int dtype);

/* The accounts of a handle: what its tensors show, and what is to be given back. */
typedef struct calls calls;

/* A tensor over memory of the library's, which keeps an object until the first drain after it has gone. turned swaps
 * the last two dimensions. */
PyObject *tensor_show(calls *of, PyObject *keep, const weft_tensor *what, int device, int turned);

/* The bytes of a tensor; 0 of a type that is none. */
size_t tensor_size(const weft_tensor *t);

/* content(tensor): the bytes of a tensor of the host's, or None for it declines. */
PyObject *tensor_content(PyObject *module, PyObject *tensor);

/* Fills a tensor with a number where kernels write some of it only. 0, or -1 with an exception. */
int tensor_fill(PyObject *tensor, int number);

/* A tensor's content in another. NULL with an exception. */
PyObject *tensor_copy(PyObject *tensor);

/* Forgets what the memory of tensors that have gone was kept by. It may free any object. */
void drain(void);

/* How many tensors were drained in all. */
extern uint64_t drained;

typedef weft_status (*release_fn)(void *number);

typedef struct {
	release_fn release;
	uint64_t number;
} pending;

/* What a routing and received rows have in common: a number of the library's, which is given back when they go. It is
 * the base of the classes of Python's, whose attributes these are. */
typedef struct {
	PyObject ob_base;
	PyObject *handle, *routing, *kind, *tokens, *rows, *data, *scales;
	PyObject *topk, *content; /* of a buffer's routing: a weak reference to its selections; what they were on the host */
	long long version;		  /* their version then; -1 where PyTorch keeps none */
	uint64_t number, stream;
	calls *of;          /* NULL: made by Python code, which watches it */
	release_fn release;
	int counted;        /* tensors that a buffer's caller may have show its rows */
} held;

struct calls {
	PyObject ob_base;
	uint64_t number;
	int device;
	PyObject *owner;                 /* a weak reference to the Handle */
	PyObject *garbage, *forgotten;   /* lists of what Python code watched and is gone */
	PyObject *routing, *received;    /* the classes */
	PyObject *kind;                  /* "torch" */
	PyObject *fixed;                 /* the number of received rows, or None */
	maker out;                       /* of [tokens, hidden] */
	Py_ssize_t shown, batches;       /* tensors over its memory; batches that count */
	PyObject *lease;                 /* of a closed handle whose memory tensors show */
	pending *pending;
	Py_ssize_t pending_count, pending_room;
	calls *next, **at;               /* of all that live */
};

extern calls *all_calls;
extern PyTypeObject *calls_type, *held_type;

/* Begins a call: gives up what has gone. -1 with an exception. */
int calls_begin(calls *c, PyObject *handle);

/* Gives back, without the interpreter's lock, what take_pending took; what was busy stays in the array. */
Py_ssize_t take_pending(calls *c, pending *taken, Py_ssize_t most);
Py_ssize_t give_back(pending *taken, Py_ssize_t n);
void put_pending(calls *c, const pending *left, Py_ssize_t n);

/* Raises what the library says of a failed call of a handle. */
void raise_status(PyObject *handle, weft_status status);

held *held_new(calls *c, PyTypeObject *type, PyObject *handle, release_fn release, uint64_t number);

/* The routing of an argument: a Routing, or the Received in its place, which goes to received. NULL declines. */
held *routing_of(calls *c, PyObject *by, held **received);

/* The results of a dispatch that the library has made, by a routing or with a new one. NULL with an exception; what
 * was made is given back then. */
held *routing_made(calls *c, PyObject *handle, int64_t tokens, uint64_t number);
held *received_made(calls *c, PyObject *handle, held *by, int64_t tokens, const weft_ep_dispatch_result *out,
					weft_stream stream);

/* The output of a combine: the caller's, or a new one. NULL declines. */
PyObject *output(calls *c, held *by, PyObject *given, weft_tensor *read);

/* Combines into out, which it returns, or gives up. */
PyObject *combine(calls *c, PyObject *handle, const weft_ep_combine_args *in, PyObject *out, weft_stream stream);

/* What a function returns that declines. */
PyObject *none(void);

PyObject *heads(PyObject *module, PyObject *args);

/* Adds the types of the buffers' exchanges, and that of their streams. */
int exchanges_types(PyObject *module);
int streams_type(PyObject *module);

/* An exchange in the current stream of a Streams. enter: 0; 1 declines; -1 with an exception. leave returns what the
 * exchange has: NULL with an exception. */
int streams_enter(PyObject *streams);
PyObject *streams_leave(PyObject *streams, PyObject *got);

PyObject *type_made(PyObject *module, const char *name, PyType_Spec *spec);

#define MOST_PENDING 32

#endif
