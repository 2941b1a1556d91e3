/* The calls of a handle: dispatch and combine, and how what they return is given back. */

#include <stdlib.h>
#include <string.h>

#include "native.h"

library lib;
calls *all_calls;
PyTypeObject *calls_type, *held_type;
static PyTypeObject *tuple_type;

/* What Python code has shown of GPUs' memory by other means: dictionaries that are empty mostly, and their sweep. */
static PyObject *views, *arrays, *sweep;

int calls_begin(calls *c, PyObject *handle) {
	if (c->device >= 0 && (PyDict_Size(views) || PyDict_Size(arrays))) {
		PyObject *swept = PyObject_CallNoArgs(sweep);
		if (!swept) return -1;
		Py_DecRef(swept);
	}
	drain();
	if (PyList_Size(c->garbage) || (c->device < 0 && PyList_Size(c->forgotten))) {
		PyObject *begun = PyObject_CallMethod(handle, "_begin", "O", Py_None);
		if (!begun) return -1;
		Py_DecRef(begun);
	}
	return 0;
}

Py_ssize_t take_pending(calls *c, pending *taken, Py_ssize_t most) {
	Py_ssize_t n = c->pending_count < most ? c->pending_count : most;
	if (!n) return 0;
	memcpy(taken, c->pending, n * sizeof *taken);
	c->pending_count -= n;
	memmove(c->pending, c->pending + n, c->pending_count * sizeof *taken);
	return n;
}

Py_ssize_t give_back(pending *taken, Py_ssize_t n) {
	Py_ssize_t left = 0;
	for (Py_ssize_t i = 0; i < n; i++) {
		weft_status status = taken[i].release((void *)(uintptr_t)taken[i].number);
		if (status == WEFT_ERROR_BUSY || status == WEFT_ERROR_TIMEOUT) taken[left++] = taken[i];
	}
	return left;
}

void put_pending(calls *c, const pending *left, Py_ssize_t n) {
	for (Py_ssize_t i = 0; i < n; i++) {
		if (c->pending_count == c->pending_room) {
			Py_ssize_t room = c->pending_room ? 2 * c->pending_room : 16;
			pending *grown = realloc(c->pending, room * sizeof *grown);
			if (!grown) return; /* the handle gives it back when it is closed */
			c->pending = grown, c->pending_room = room;
		}
		c->pending[c->pending_count++] = left[i];
	}
}

void raise_status(PyObject *handle, weft_status status) {
	PyObject *none = PyObject_CallMethod(handle, "_check", "i", (int)status);
	if (none) {
		Py_DecRef(none);
		PyErr_SetString(PyExc_TypeError, "a failed call of the library's has no exception");
	}
}

/* Held. */

held *held_new(calls *c, PyTypeObject *type, PyObject *handle, release_fn release, uint64_t number) {
	held *h = (held *)PyType_GenericAlloc(type, 0);
	if (!h) {
		put_pending(c, &(pending){release, number}, 1);
		return NULL;
	}
	Py_IncRef(handle), Py_IncRef((PyObject *)c), Py_IncRef(c->kind);
	h->handle = handle, h->of = c, h->kind = c->kind;
	h->release = release, h->number = number;
	return h;
}

static int held_traverse(PyObject *self, visitproc visit, void *arg) {
	held *h = (held *)self;
	PyObject *all[] = {(PyObject *)Py_TYPE(self), h->handle, h->routing, h->kind, h->tokens, h->rows, h->data,
					   h->scales, h->topk, h->content};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		int stop = all[i] ? visit(all[i], arg) : 0;
		if (stop) return stop;
	}
	return 0;
}

static int held_clear(PyObject *self) {
	held *h = (held *)self;
	PyObject **all[] = {&h->handle, &h->routing, &h->kind,	 &h->tokens, &h->rows,
						&h->data,	&h->scales,	 &h->topk, &h->content};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		PyObject *was = *all[i];
		*all[i] = NULL;
		Py_DecRef(was);
	}
	return 0;
}

static void held_dealloc(PyObject *self) {
	held *h = (held *)self;
	PyTypeObject *type = Py_TYPE(self);
	PyObject_GC_UnTrack(self);
	if (h->of) {
		if (h->number) put_pending(h->of, &(pending){h->release, h->number}, 1);
		if (h->counted) h->of->batches--;
	}
	held_clear(self);
	Py_DecRef((PyObject *)h->of);
	PyObject_GC_Del(self);
	Py_DecRef((PyObject *)type);
}

static PyMemberDef held_members[] = {
	{"_handle", T_OBJECT, offsetof(held, handle), 0, NULL},
	{"_number", T_ULONGLONG, offsetof(held, number), 0, NULL},
	{"_stream", T_ULONGLONG, offsetof(held, stream), 0, NULL},
	{"_routing", T_OBJECT, offsetof(held, routing), 0, NULL},
	{"_tokens", T_OBJECT, offsetof(held, tokens), 0, NULL},
	{"_array_kind", T_OBJECT, offsetof(held, kind), 0, NULL},
	{"_rows", T_OBJECT, offsetof(held, rows), 0, NULL},
	{"_data", T_OBJECT, offsetof(held, data), 0, NULL},
	{"_scales", T_OBJECT, offsetof(held, scales), 0, NULL},
	{"_topk", T_OBJECT, offsetof(held, topk), READONLY, NULL},
	{"_content", T_OBJECT, offsetof(held, content), READONLY, NULL},
	{"_version", T_LONGLONG, offsetof(held, version), READONLY, NULL},
	{"_counted", T_INT, offsetof(held, counted), READONLY, NULL},
	{0},
};

/* Calls. */

static void calls_dealloc(PyObject *self) {
	calls *c = (calls *)self;
	PyTypeObject *type = Py_TYPE(self);
	if (c->at) {
		*c->at = c->next;
		if (c->next) c->next->at = c->at;
	}
	PyObject *all[] = {c->owner, c->garbage, c->forgotten, c->routing, c->received, c->kind, c->fixed, c->lease};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) Py_DecRef(all[i]);
	maker_clear(&c->out);
	free(c->pending);
	PyObject_Free(self);
	Py_DecRef((PyObject *)type);
}

/* Calls(number, device, owner, garbage, forgotten, Routing, Received, kind, fixed rows, sample of an output) */
static PyObject *calls_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
	(void)keywords;
	unsigned long long number;
	int device;
	PyObject *owner, *garbage, *forgotten, *routing, *received, *kind, *fixed, *sample;
	if (!PyArg_ParseTuple(args, "KiOOOOOOOO", &number, &device, &owner, &garbage, &forgotten, &routing, &received, &kind,
						  &fixed, &sample))
		return NULL;
	if (!PyType_IsSubtype((PyTypeObject *)routing, held_type) || !PyType_IsSubtype((PyTypeObject *)received, held_type)) {
		PyErr_SetString(PyExc_TypeError, "what a call returns is no class over Held");
		return NULL;
	}
	calls *c = (calls *)PyType_GenericAlloc(type, 0);
	if (!c) return NULL;
	c->number = number, c->device = device;
	PyObject **to[] = {&c->owner, &c->garbage, &c->forgotten, &c->routing, &c->received, &c->kind, &c->fixed};
	PyObject *from[] = {owner, garbage, forgotten, routing, received, kind, fixed};
	for (size_t i = 0; i < sizeof to / sizeof *to; i++) Py_IncRef(*to[i] = from[i]);
	if ((c->next = all_calls)) all_calls->at = &c->next;
	all_calls = c, c->at = &all_calls;
	if (maker_init(&c->out, sample, 0)) {
		Py_DecRef((PyObject *)c);
		return NULL;
	}
	return (PyObject *)c;
}

PyObject *none(void) {
	Py_IncRef(Py_None);
	return Py_None;
}

held *routing_of(calls *c, PyObject *by, held **received) {
	*received = NULL;
	if (Py_TYPE(by) == (PyTypeObject *)c->received) {
		*received = (held *)by;
		if (!(*received)->number || !(by = (*received)->routing)) return NULL;
	}
	return Py_TYPE(by) == (PyTypeObject *)c->routing && ((held *)by)->number ? (held *)by : NULL;
}

static PyObject *bytes_of(const weft_tensor *t) { return PyBytes_FromStringAndSize((const char *)t, sizeof *t); }

held *routing_made(calls *c, PyObject *handle, int64_t tokens, uint64_t number) {
	held *made = held_new(c, (PyTypeObject *)c->routing, handle, (release_fn)lib.routing_release, number);
	if (!made) return NULL;
	Py_IncRef(made->rows = c->fixed);
	if ((made->tokens = PyLong_FromLongLong(tokens))) return made;
	Py_DecRef((PyObject *)made);
	return NULL;
}

held *received_made(calls *c, PyObject *handle, held *by, int64_t tokens, const weft_ep_dispatch_result *out,
					weft_stream stream) {
	held *got = held_new(c, (PyTypeObject *)c->received, handle, (release_fn)lib.received_release,
						 (uintptr_t)out->received);
	if (by)
		Py_IncRef((PyObject *)by);
	else
		by = routing_made(c, handle, tokens, (uintptr_t)out->routing);
	if (!got || !by) goto fail;
	got->routing = (PyObject *)by;
	got->stream = (uintptr_t)stream;
	if (!(got->data = bytes_of(out->data)) || !(got->scales = bytes_of(out->scales))) goto fail;
	if (c->device < 0 && by->rows == Py_None) {
		PyObject *rows = PyLong_FromLongLong(out->data->shape[0]), *was = by->rows;
		if (!rows) goto fail;
		by->rows = rows;
		Py_DecRef(was);
	}
	return got;
fail:
	if (!got || got->routing != (PyObject *)by) Py_DecRef((PyObject *)by);
	Py_DecRef((PyObject *)got);
	return NULL;
}

/* dispatch(handle, rows, topk, weights, routing, scales): what Handle.dispatch returns. */
static PyObject *calls_dispatch(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	calls *c = (calls *)self;
	if (n != 6) return none();
	PyObject *handle = args[0];
	weft_tensor operands[4]; /* rows, topk, weights, scales */
	PyObject *given[] = {args[1], args[2], args[3], args[5]};
	const weft_tensor *read[4] = {NULL};
	for (int i = 0; i < 4; i++) {
		if (given[i] == Py_None) continue;
		if (tensor_read(given[i], c->device, &operands[i])) return none();
		read[i] = &operands[i];
	}
	held *by = NULL, *batch;
	if (!read[0] || (args[4] != Py_None && !(by = routing_of(c, args[4], &batch)))) return none();
	if (!by && (!read[1] || !operands[1].dims)) return none();
	weft_stream stream;
	if (current_stream(c->device, &stream)) return none();
	if (calls_begin(c, handle)) return NULL;

	weft_tensor data = {.size = sizeof data}, scales = {.size = sizeof scales};
	weft_ep_dispatch_args in = {.size = sizeof in,
								.routing = by ? (weft_routing)(uintptr_t)by->number : NULL,
								.topk = read[1],
								.weights = read[2],
								.rows = read[0],
								.scales = read[3]};
	weft_ep_dispatch_result out = {.size = sizeof out, .data = &data, .scales = &scales};
	pending taken[MOST_PENDING];
	Py_ssize_t left = take_pending(c, taken, MOST_PENDING);
	PyThreadState *thread = PyEval_SaveThread();
	left = give_back(taken, left);
	weft_status status = lib.ep_dispatch((weft_ep)(uintptr_t)c->number, stream, &in, &out, NULL);
	PyEval_RestoreThread(thread);
	put_pending(c, taken, left);
	if (status) {
		raise_status(handle, status);
		return NULL;
	}
	return (PyObject *)received_made(c, handle, by, read[1] ? operands[1].shape[0] : 0, &out, stream);
}

PyObject *combine(calls *c, PyObject *handle, const weft_ep_combine_args *in, PyObject *out, weft_stream stream) {
	pending taken[MOST_PENDING];
	Py_ssize_t left = take_pending(c, taken, MOST_PENDING);
	PyThreadState *thread = PyEval_SaveThread();
	left = give_back(taken, left);
	weft_status status = lib.ep_combine((weft_ep)(uintptr_t)c->number, stream, in, NULL);
	PyEval_RestoreThread(thread);
	put_pending(c, taken, left);
	if (!status) return out;
	Py_DecRef(out);
	raise_status(handle, status);
	return NULL;
}

PyObject *output(calls *c, held *by, PyObject *given, weft_tensor *read) {
	if (given != Py_None) {
		if (tensor_read(given, c->device, read)) return NULL;
		Py_IncRef(given);
		return given;
	}
	long long tokens = by->tokens ? PyLong_AsLongLong(by->tokens) : -1;
	PyObject *made = tokens < 0 ? NULL : maker_make(&c->out, tokens, read);
	if (!made) PyErr_Clear(); /* Python code then tries, and refuses in a way that other ranks hear of */
	return made;
}

/* combine(handle, rows, routing, out, bias, weights): what Handle.combine returns. */
static PyObject *calls_combine(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	calls *c = (calls *)self;
	held *batch, *by = n == 6 ? routing_of(c, args[2], &batch) : NULL;
	weft_tensor rows, to, biases[2], weights;
	weft_ep_combine_args in = {.size = sizeof in, .rows = &rows, .out = &to};
	if (!by || tensor_read(args[1], c->device, &rows)) return none();
	in.routing = (weft_routing)(uintptr_t)by->number;
	if (batch) in.received = (weft_received)(uintptr_t)batch->number;
	if (args[5] != Py_None) {
		if (tensor_read(args[5], c->device, &weights)) return none();
		in.weights = &weights;
	}
	if (args[4] != Py_None) {
		int pair = Py_TYPE(args[4]) == tuple_type;
		Py_ssize_t some = pair ? PyTuple_Size(args[4]) : 1;
		if (some > 2) return none();
		for (Py_ssize_t i = 0; i < some; i++) {
			PyObject *bias = pair ? PyTuple_GetItem(args[4], i) : args[4];
			if (bias == Py_None) continue;
			if (tensor_read(bias, c->device, &biases[i])) return none();
			in.bias[i] = &biases[i];
		}
	}
	weft_stream stream;
	if (current_stream(c->device, &stream)) return none();
	if (calls_begin(c, args[0])) return NULL;
	PyObject *out = output(c, by, args[3], &to);
	return out ? combine(c, args[0], &in, out, stream) : none();
}

/* show(received or routing, address, type, shape): a tensor over memory of the library's, which keeps that. */
static PyObject *calls_show(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	calls *c = (calls *)self;
	if (n != 4) return none();
	weft_tensor t = {.data = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(args[1]),
					 .dtype = (int32_t)PyLong_AsLongLong(args[2])};
	Py_ssize_t dims = PyTuple_Size(args[3]);
	if (PyErr_Occurred()) return NULL;
	if (dims > WEFT_MAX_DIMS || !tensor_shows(t.dtype)) return none();
	t.dims = (int32_t)dims;
	for (Py_ssize_t i = 0; i < dims; i++) t.shape[i] = PyLong_AsLongLong(PyTuple_GetItem(args[3], i));
	return PyErr_Occurred() ? NULL : tensor_show(c, args[0], &t, c->device, 0);
}

/* collect(): gives back what has gone, as every call of the handle's does. */
static PyObject *calls_collect(PyObject *self, PyObject *nothing) {
	calls *c = (calls *)self;
	(void)nothing;
	drain();
	pending taken[MOST_PENDING];
	Py_ssize_t n;
	while ((n = take_pending(c, taken, MOST_PENDING))) {
		PyThreadState *thread = PyEval_SaveThread();
		Py_ssize_t left = give_back(taken, n);
		PyEval_RestoreThread(thread);
		put_pending(c, taken, left);
		if (left) break;
	}
	return none();
}

static PyMethodDef calls_methods[] = {
	{"dispatch", (PyCFunction)(void (*)(void))calls_dispatch, METH_FASTCALL, NULL},
	{"combine", (PyCFunction)(void (*)(void))calls_combine, METH_FASTCALL, NULL},
	{"show", (PyCFunction)(void (*)(void))calls_show, METH_FASTCALL, NULL},
	{"collect", calls_collect, METH_NOARGS, NULL},
	{0},
};

static PyMemberDef calls_members[] = {
	{"shown", T_PYSSIZET, offsetof(calls, shown), READONLY, NULL},
	{"batches", T_PYSSIZET, offsetof(calls, batches), READONLY, NULL},
	{"pending", T_PYSSIZET, offsetof(calls, pending_count), READONLY, NULL},
	{"owner", T_OBJECT, offsetof(calls, owner), READONLY, NULL},
	{"lease", T_OBJECT, offsetof(calls, lease), 0, NULL},
	{0},
};

/* The module. */

static PyObject *bind(PyObject *module, PyObject *args) {
	PyObject *addresses;
	(void)module;
	Py_DecRef(views), Py_DecRef(arrays), Py_DecRef(sweep);
	views = arrays = sweep = NULL;
	if (!PyArg_ParseTuple(args, "OOOO", &addresses, &views, &arrays, &sweep)) return NULL;
	Py_IncRef(views), Py_IncRef(arrays), Py_IncRef(sweep);
	Py_ssize_t i = 0;
#define TAKE(name)                                                                                                     \
	lib.name = (__typeof__(lib.name))(uintptr_t)PyLong_AsUnsignedLongLong(PyTuple_GetItem(addresses, i++));
	LIBRARY(TAKE)
#undef TAKE
	return PyErr_Occurred() ? NULL : none();
}

static PyObject *bind_torch(PyObject *module, PyObject *torch) {
	(void)module;
	return tensors_bind(torch) ? NULL : none();
}

/* sweep(lease): forgets tensors that have gone, and has the handles whose memory others show keep a lease. */
static PyObject *module_sweep(PyObject *module, PyObject *lease) {
	(void)module;
	drain();
	for (calls *c = all_calls, *next; c; c = next) {
		Py_IncRef((PyObject *)c);
		PyObject *made = c->shown && !c->lease ? PyObject_CallFunctionObjArgs(lease, c->owner, NULL) : none();
		int failed = !made;
		if (c->shown && !c->lease && made != Py_None)
			c->lease = made;
		else
			Py_DecRef(made);
		next = c->next;
		Py_DecRef((PyObject *)c);
		if (failed) return NULL;
	}
	return none();
}

static PyObject *module_drained(PyObject *module, PyObject *nothing) {
	(void)module, (void)nothing;
	drain();
	return PyLong_FromUnsignedLongLong(drained);
}

static PyObject *module_emulate(PyObject *module, PyObject *on) {
	(void)module;
	tensors_emulate(PyObject_IsTrue(on));
	return none();
}

static PyObject *module_shows(PyObject *module, PyObject *dtype) {
	(void)module;
	long long type = PyLong_AsLongLong(dtype);
	return PyErr_Occurred() ? NULL : PyLong_FromLongLong(tensor_shows((int)type));
}

static PyMethodDef functions[] = {
	{"bind", bind, 1 /* METH_VARARGS */, NULL},
	{"bind_torch", bind_torch, METH_O, NULL},
	{"sweep", module_sweep, METH_O, NULL},
	{"heads", heads, 1 /* METH_VARARGS */, NULL},
	{"emulate", module_emulate, METH_O, NULL},
	{"shows", module_shows, METH_O, NULL},
	{"content", tensor_content, METH_O, NULL},
	{"drained", module_drained, METH_NOARGS, NULL},
	{0},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyObject *type_made(PyObject *module, const char *name, PyType_Spec *spec) {
	PyObject *type = PyType_FromSpec(spec);
	if (!type) return NULL;
	Py_IncRef(type); /* the module's, and this file's */
	return PyModule_AddObject(module, name, type) ? NULL : type;
}

#define NAME(name) "weft_" #name,
static const char *const names[] = {LIBRARY(NAME) NULL};

__attribute__((visibility("default"))) PyObject *PyInit__native(void) {
	static PyType_Slot held_slots[] = {{Py_tp_new, PyType_GenericNew},	  {Py_tp_dealloc, held_dealloc},
									   {Py_tp_traverse, held_traverse}, {Py_tp_clear, held_clear},
									   {Py_tp_members, held_members},	  {0, NULL}};
	static PyType_Spec held_spec = {"weft._native.Held", sizeof(held), 0,
									Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, held_slots};
	static PyType_Slot calls_slots[] = {{Py_tp_new, calls_new},			  {Py_tp_dealloc, calls_dealloc},
										{Py_tp_methods, calls_methods}, {Py_tp_members, calls_members},
										{0, NULL}};
	static PyType_Spec calls_spec = {"weft._native.Calls", sizeof(calls), 0, Py_TPFLAGS_DEFAULT, calls_slots};
	PyObject *module = PyModule_Create2(&definition, 3), *list = PyTuple_New(sizeof names / sizeof *names - 1);
	if (!module || !list) return NULL;
	for (Py_ssize_t i = 0; names[i]; i++) PyTuple_SetItem(list, i, Py_BuildValue("s", names[i]));
	tuple_type = Py_TYPE(list);
	if (PyModule_AddObject(module, "FUNCTIONS", list) ||
		PyModule_AddStringConstant(module, "RELEASE", WEFT_RELEASE) ||
		!(held_type = (PyTypeObject *)type_made(module, "Held", &held_spec)) ||
		!(calls_type = (PyTypeObject *)type_made(module, "Calls", &calls_spec)) || exchanges_types(module) ||
		streams_type(module))
		return NULL;
	return module;
}
