/* The current stream of a GPU, in which exchanges follow each other. */

#include <string.h>

#include "native.h"

typedef struct {
	PyObject ob_base;
	int device;
	PyObject *at, *capturing, *current, *record; /* PyTorch's: see streams_new */
	PyObject *stream, *mark;                     /* its object of the last current stream; the event to record there */
	uint64_t number;                             /* of that stream */
	PyObject *end;                               /* the event at the end of the last exchange; None before the first */
	uint64_t last;                               /* the number of the last exchange's stream */
	int owes;                                    /* whether end is mark, and still to be recorded */
	int several;                                 /* whether exchanges have been in several streams */
} streams;

static PyTypeObject *streams_class;

static void streams_dealloc(PyObject *self) {
	streams *s = (streams *)self;
	PyTypeObject *type = Py_TYPE(self);
	PyObject *all[] = {s->at, s->capturing, s->current, s->record, s->stream, s->mark, s->end};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) Py_DecRef(all[i]);
	PyObject_Free(self);
	Py_DecRef((PyObject *)type);
}

/* Streams(device, at, capturing, current, record, mark): functions of PyTorch's that say which GPU it is at, whether
 * the current stream captures, which one that is of a GPU, and that record an event in a stream; and an event. A device
 * of -1 is the host. */
static PyObject *streams_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
	int device;
	PyObject *at, *capturing, *current, *record, *mark;
	(void)keywords;
	if (!PyArg_ParseTuple(args, "iOOOOO", &device, &at, &capturing, &current, &record, &mark)) return NULL;
	streams *s = (streams *)PyType_GenericAlloc(type, 0);
	if (!s) return NULL;
	s->device = device;
	PyObject **to[] = {&s->at, &s->capturing, &s->current, &s->record, &s->mark, &s->end};
	PyObject *from[] = {at, capturing, current, record, mark, Py_None};
	for (size_t i = 0; i < sizeof to / sizeof *to; i++) Py_IncRef(*to[i] = from[i]);
	return (PyObject *)s;
}

/* Finds the current stream. 0; 1 declines; -1 with an exception. */
static int streams_begin(streams *s) {
	weft_stream stream;
	if (current_stream(s->device, &stream)) return 1;
	uint64_t number = (uintptr_t)stream;
	if (number) { /* CUDA captures no work of stream 0 */
		PyObject *at = PyObject_CallNoArgs(s->at), *capturing = at ? PyObject_CallNoArgs(s->capturing) : NULL;
		int here = at && capturing && PyLong_AsLongLong(at) == s->device && !PyObject_IsTrue(capturing);
		Py_DecRef(at), Py_DecRef(capturing);
		if (PyErr_Occurred()) return -1;
		if (!here) return 1;
	}
	if (s->end != Py_None && s->last != number) return 1;
	if (s->stream && s->number == number) return 0;
	PyObject *device = PyLong_FromLongLong(s->device),
			 *found = device ? PyObject_CallFunctionObjArgs(s->current, device, NULL) : NULL, *was = s->stream;
	Py_DecRef(device);
	if (!found) return -1;
	s->stream = found, s->number = number;
	Py_DecRef(was);
	return 0;
}

/* Records the end of the last exchange, behind all that its stream holds by now. 0, or -1 with an exception. */
static int streams_record(streams *s) {
	PyObject *recorded = PyObject_CallFunctionObjArgs(s->record, s->mark, s->stream, NULL);
	Py_DecRef(recorded);
	if (recorded) s->owes = 0;
	return recorded ? 0 : -1;
}

/* settle(): has the event end be that of the last exchange: another stream is about to wait for it.
 *
 * Events cost as much as all else that a call adds to C's, and nobody waits for them as long as exchanges are in one
 * stream. So those in stream 0, which nobody can destroy, record none until now, and each does from now on. The first
 * wait is for more than the exchange: for what came after it in its stream, too. */
static PyObject *streams_settle(PyObject *self, PyObject *nothing) {
	streams *s = (streams *)self;
	(void)nothing;
	s->several = 1;
	return s->owes && s->end == s->mark && streams_record(s) ? NULL : none();
}

/* Begins an exchange in the current stream. 0; 1 declines: where more is to be done than that, as where the stream
 * captures, which PyTorch says of the one of the GPU that it is at, or where the last exchange was in another stream; -1
 * with an exception. */
int streams_enter(PyObject *of) {
	streams *s = (streams *)of;
	if (Py_TYPE(of) != streams_class) return 1;
	return s->device < 0 ? 0 : streams_begin(s);
}

/* Ends it, and returns what it has. */
PyObject *streams_leave(PyObject *of, PyObject *got) {
	streams *s = (streams *)of;
	if (s->device < 0) return got;
	if (s->end != s->mark) {
		PyObject *was = s->end;
		Py_IncRef(s->end = s->mark);
		Py_DecRef(was);
	}
	s->last = s->number, s->owes = 1;
	if (!s->number && !s->several) return got;
	PyObject *type, *value, *trace; /* of an exchange that failed: it may run all the same */
	PyErr_Fetch(&type, &value, &trace);
	if (!streams_record(s)) {
		if (type) PyErr_Restore(type, value, trace);
		return got;
	}
	Py_DecRef(type), Py_DecRef(value), Py_DecRef(trace), Py_DecRef(got);
	return NULL;
}

enum { MOST = 10 }; /* arguments of run, all of which it passes on one by one: they end at the first NULL */

/* run(exchange, arguments...): makes an exchange of this module's in the current stream, and returns its result. */
static PyObject *streams_run(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	PyObject *all[MOST + 1] = {NULL};
	if (n < 1 || n > MOST) {
		PyErr_SetString(PyExc_TypeError, "want an exchange and its arguments");
		return NULL;
	}
	memcpy(all, args, (size_t)n * sizeof *all);
	int begun = streams_enter(self);
	if (begun) return begun < 0 ? NULL : none();
	return streams_leave(self, PyObject_CallFunctionObjArgs(all[0], all[1], all[2], all[3], all[4], all[5], all[6],
															 all[7], all[8], all[9], NULL));
}

int streams_type(PyObject *module) {
	static PyMethodDef methods[] = {
		{"run", (PyCFunction)(void (*)(void))streams_run, METH_FASTCALL, NULL},
		{"settle", streams_settle, METH_NOARGS, NULL},
		{0},
	};
	static PyMemberDef members[] = {
		{"end", T_OBJECT, offsetof(streams, end), 0, NULL},
		{"last", T_ULONGLONG, offsetof(streams, last), 0, NULL},
		{0},
	};
	static PyType_Slot slots[] = {{Py_tp_new, streams_new}, {Py_tp_dealloc, streams_dealloc}, {Py_tp_methods, methods},
								  {Py_tp_members, members}, {0}};
	static PyType_Spec spec = {"weft._native.Streams", sizeof(streams), 0, Py_TPFLAGS_DEFAULT, slots};
	return (streams_class = (PyTypeObject *)type_made(module, "Streams", &spec)) ? 0 : -1;
}
