/* Exchanges of buffers: those of deep_ep and mscclpp that a model makes for every layer. */

#include <stdlib.h>
#include <string.h>

#include "native.h"

static void take(PyObject **to, PyObject *from) { Py_IncRef(*to = from); }

static void freed(PyObject *self, PyObject **all, size_t n) {
	PyTypeObject *type = Py_TYPE(self);
	for (size_t i = 0; i < n; i++) Py_DecRef(all[i]);
	PyObject_Free(self);
	Py_DecRef((PyObject *)type);
}

static int shaped(const weft_tensor *t, int dtype, int64_t a, int64_t b) {
	return t->dtype == dtype && t->dims == 2 && t->shape[0] == a && t->shape[1] == b;
}

/* Steals the members; NULL ones make it fail. */
static PyObject *tuple_of(PyObject **members, Py_ssize_t n) {
	PyObject *t = PyTuple_New(n);
	int whole = t != NULL;
	for (Py_ssize_t i = 0; i < n; i++) {
		whole = whole && members[i];
		if (t)
			PyTuple_SetItem(t, i, members[i]);
		else
			Py_DecRef(members[i]);
	}
	if (whole) return t;
	Py_DecRef(t);
	return NULL;
}

/* Low-latency exchanges of one kind: a place for every token of every rank at every expert. */

typedef struct {
	PyObject ob_base;
	calls *of;
	PyObject *shown;     /* the list of weak references to batches that Python code has shown */
	maker rows, scales, counts;
	int copies, live;    /* whether results are copied; else the batches that there is memory for */
	int columns;         /* the type of received scales, or WEFT_NONE without any */
	int64_t tokens, hidden, topk, local, places, words;
} low_latency;

static void low_latency_dealloc(PyObject *self) {
	low_latency *l = (low_latency *)self;
	maker_clear(&l->rows), maker_clear(&l->scales), maker_clear(&l->counts);
	freed(self, (PyObject *[]){(PyObject *)l->of, l->shown}, 2);
}

/* LowLatency(calls, shown, rows, scales, counts, copies, live, columns, tokens, hidden, topk, local, places, words):
 * rows, scales and counts make samples. */
static PyObject *low_latency_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
	low_latency given;
	PyObject *of, *shown, *rows, *scales, *counts;
	(void)keywords;
	long long tokens, hidden, topk, local, places, words;
	if (!PyArg_ParseTuple(args, "OOOOOiiiLLLLLL", &of, &shown, &rows, &scales, &counts, &given.copies, &given.live,
						  &given.columns, &tokens, &hidden, &topk, &local, &places, &words))
		return NULL;
	if (Py_TYPE(of) != calls_type) {
		PyErr_SetString(PyExc_TypeError, "want the calls of a handle");
		return NULL;
	}
	low_latency *l = (low_latency *)PyType_GenericAlloc(type, 0);
	if (!l) return NULL;
	take((PyObject **)&l->of, of), take(&l->shown, shown);
	int on_host = l->of->device < 0;
	l->copies = given.copies, l->live = given.live, l->columns = given.columns;
	l->tokens = tokens, l->hidden = hidden, l->topk = topk, l->local = local, l->places = places, l->words = words;
	if (maker_init(&l->rows, rows, on_host) || maker_init(&l->scales, scales, on_host) ||
		maker_init(&l->counts, counts, on_host)) {
		Py_DecRef((PyObject *)l);
		return NULL;
	}
	return (PyObject *)l;
}

/* Batches whose memory callers' tensors show; those that Python code has shown are weak references. */
static Py_ssize_t batches_shown(const calls *c, PyObject *shown) {
	Py_ssize_t n = c->batches;
	for (Py_ssize_t i = PyList_Size(shown); i-- > 0;) {
		PyObject *batch = PyObject_CallNoArgs(PyList_GetItem(shown, i));
		n += batch && batch != Py_None;
		Py_DecRef(batch);
	}
	return n;
}

/* Gives up what was made, after an exception. */
static PyObject *failed(PyObject **made, int n) {
	for (int i = 0; i < n; i++) Py_DecRef(made[i]);
	return NULL;
}

/* The same before the library was called, so that Python code can try. */
static PyObject *as_declined(PyObject **made, int n) {
	failed(made, n);
	PyErr_Clear();
	return none();
}

/* Notes the selections of a routing, by which a combine knows them again. 0, or -1 with an exception. */
static int note_selections(held *by, PyObject *topk, const weft_tensor *read, int on_host) {
	Py_ssize_t bytes = (read->dtype == WEFT_INT64 ? 8 : 4) * read->shape[0] * read->shape[1];
	if (!(by->topk = PyWeakref_NewRef(topk, NULL)) || (by->version = tensor_version(topk)) < -1) return -1;
	return !on_host || (by->content = PyBytes_FromStringAndSize(read->data, bytes)) ? 0 : -1;
}

/* Whether a combine has the selections of the dispatch, to which nothing was written since. */
static int same_selections(held *by, PyObject *topk) {
	if (!by->topk || by->version < 0) return 0;
	PyObject *then = PyObject_CallNoArgs(by->topk);
	int same = then == topk && tensor_version_kept(topk) == by->version;
	Py_DecRef(then);
	PyErr_Clear();
	return same;
}

/* dispatch(handle, x, topk): rows, or rows and their scales; counts (None: ask the routing); the routing. */
static PyObject *low_latency_dispatch(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	low_latency *l = (low_latency *)self;
	calls *c = l->of;
	weft_tensor x, topk, to_rows, to_scales, to_counts = {.size = sizeof to_counts};
	if (n != 3 || tensor_read(args[1], c->device, &x) || tensor_read(args[2], c->device, &topk) ||
		x.dims != 2 || x.shape[0] > l->tokens || !shaped(&x, WEFT_BFLOAT16, x.shape[0], l->hidden) ||
		(topk.dtype != WEFT_INT64 && topk.dtype != WEFT_INT32) || !shaped(&topk, topk.dtype, x.shape[0], l->topk))
		return none();
	weft_stream stream;
	if (current_stream(c->device, &stream)) return none();
	if (calls_begin(c, args[0])) return NULL;
	if (!l->copies && batches_shown(c, l->shown) >= l->live - 1) return none();
	/* What may fail comes first: other ranks would wait. */
	PyObject *made[3] = {NULL};
	int on_host = c->device < 0;
	if (l->copies && (!(made[0] = maker_make(&l->rows, -1, &to_rows)) ||
					  (l->columns && !(made[1] = maker_make(&l->scales, -1, &to_scales)))))
		return as_declined(made, 3);
	if (on_host && !(made[2] = maker_make(&l->counts, -1, &to_counts))) return as_declined(made, 3);

	weft_tensor data = {.size = sizeof data}, scales = {.size = sizeof scales};
	weft_ep_dispatch_args in = {.size = sizeof in, .topk = &topk, .rows = &x};
	weft_ep_dispatch_result out = {.size = sizeof out, .data = &data, .scales = &scales};
	weft_routing_description description = {.size = sizeof description, .expert_counts = to_counts.data};
	pending taken[MOST_PENDING];
	Py_ssize_t left = take_pending(c, taken, MOST_PENDING - 1);
	PyThreadState *thread = PyEval_SaveThread();
	left = give_back(taken, left);
	weft_status status = lib.ep_dispatch((weft_ep)(uintptr_t)c->number, stream, &in, &out, NULL), of_counts = WEFT_OK;
	if (!status) {
		if (l->copies) {
			memcpy(to_rows.data, data.data, (size_t)(l->local * l->places * l->hidden) * (l->columns ? 1 : 2));
			if (l->columns) memcpy(to_scales.data, scales.data, (size_t)(4 * l->local * l->places * l->words));
			taken[left] = (pending){(release_fn)lib.received_release, (uintptr_t)out.received};
			left += give_back(&taken[left], 1);
		}
		of_counts = on_host ? lib.routing_describe(out.routing, &description)
							: lib.routing_tensor(out.routing, WEFT_EXPERT_COUNTS, &to_counts);
	}
	PyEval_RestoreThread(thread);
	put_pending(c, taken, left);
	if (status) {
		raise_status(args[0], status);
		return failed(made, 3);
	}

	held *got = NULL, *by;
	if (l->copies) {
		by = routing_made(c, args[0], x.shape[0], (uintptr_t)out.routing);
	} else {
		got = received_made(c, args[0], NULL, x.shape[0], &out, stream);
		by = got ? (held *)got->routing : NULL;
		if (by) Py_IncRef((PyObject *)by);
	}
	if (of_counts && by) raise_status(args[0], of_counts);
	if (by && (of_counts || note_selections(by, args[2], &topk, on_host))) Py_DecRef((PyObject *)by), by = NULL;
	if (!by) {
		Py_DecRef((PyObject *)got);
		return failed(made, 3);
	}
	if (got) {
		got->counted = 1, c->batches++;
		made[0] = tensor_show(c, (PyObject *)got, &data, c->device, 0);
		if (l->columns) {
			weft_tensor columns = {.data = scales.data, .dtype = l->columns, .dims = 3,
								   .shape = {l->local, l->words, l->places}};
			made[1] = tensor_show(c, (PyObject *)got, &columns, c->device, 1);
		}
		Py_DecRef((PyObject *)got);
	}
	if (!on_host) made[2] = to_counts.dtype ? tensor_show(c, (PyObject *)by, &to_counts, c->device, 0) : none();
	PyObject *arrived = l->columns ? tuple_of(made, 2) : made[0];
	return tuple_of((PyObject *[]){arrived, made[2], (PyObject *)by}, 3);
}

/* The sums of rows, of selections that are the dispatch's. These are known again by their tensor, whose type and shape
 * the dispatch has seen, and are not read. None declines. */
static PyObject *low_latency_sums(low_latency *l, PyObject *handle, PyObject *of, PyObject *x, PyObject *topk,
								  PyObject *given, PyObject *to_given) {
	calls *c = l->of;
	weft_tensor rows, weights, to;
	held *batch, *by = routing_of(c, of, &batch);
	if (!by || tensor_read(x, c->device, &rows) || tensor_read(given, c->device, &weights) || !by->tokens ||
		!same_selections(by, topk))
		return none();
	int64_t tokens = PyLong_AsLongLong(by->tokens);
	if (rows.dtype != WEFT_BFLOAT16 || rows.dims != 3 || rows.shape[0] != l->local || rows.shape[1] != l->places ||
		rows.shape[2] != l->hidden || weights.dims != 2 || weights.shape[0] != tokens || weights.shape[1] != l->topk)
		return none();
	weft_stream stream;
	if (current_stream(c->device, &stream)) return none();
	if (calls_begin(c, handle)) return NULL;
	PyObject *out = output(c, by, to_given, &to);
	if (!out) return none();
	if (to.dims != 2 || to.shape[0] != tokens || to.shape[1] != l->hidden) {
		Py_DecRef(out);
		return none();
	}
	weft_ep_combine_args in = {.size = sizeof in, .routing = (weft_routing)(uintptr_t)by->number, .rows = &rows,
							   .out = &to, .weights = &weights};
	return combine(c, handle, &in, out, stream);
}

static PyObject *agreed_name, *forgot_name, *left_out_name;

/* Whether an attribute is an object. */
static int attribute_is(PyObject *of, PyObject *name, PyObject *object) {
	PyObject *found = PyObject_GetAttr(of, name);
	Py_DecRef(found);
	return found && found == object;
}

/* Whether a combine may follow a dispatch as if nothing had happened meanwhile: watched are the dictionaries of halves
 * that are sent and of waits that are counted, the mask, the exchanges and the communicator; era is the dispatch's. */
static int undisturbed(PyObject *watched, PyObject *era) {
	PyObject *at[5];
	for (int i = 0; i < 5; i++) at[i] = PyTuple_GetItem(watched, i);
	if (!at[4] || PyDict_Size(at[0]) || PyDict_Size(at[1])) return 0;
	PyObject *agreed = PyObject_GetAttr(at[2], agreed_name), *forgot = PyObject_GetAttr(at[3], forgot_name);
	int same = agreed && forgot && PyObject_IsTrue(agreed) == 1 &&
			   PyLong_AsLongLong(forgot) == PyLong_AsLongLong(PyTuple_GetItem(era, 0)) &&
			   attribute_is(at[4], left_out_name, PyTuple_GetItem(era, 1));
	Py_DecRef(agreed), Py_DecRef(forgot);
	return same;
}

/* combine(watched, streams, Event, quick, rows, topk, weights, out): what a combine in the current stream returns of a
 * dispatch that left quick: its LowLatency, handle, kind, era and routing. Event is the class of ends, of which there is
 * none to wait for. None declines. */
static PyObject *low_latency_combine(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	low_latency *l = (low_latency *)self;
	if (n != 8 || !undisturbed(args[0], PyTuple_GetItem(args[3], 3))) {
		PyErr_Clear();
		return none();
	}
	int begun = streams_enter(args[1]);
	if (begun) return begun < 0 ? NULL : none();
	PyObject *sums = streams_leave(args[1], low_latency_sums(l, PyTuple_GetItem(args[3], 1), PyTuple_GetItem(args[3], 4),
															 args[4], args[5], args[6], args[7]));
	if (!sums || sums == Py_None) return sums;
	PyObject *results[] = {sums, PyType_GenericAlloc((PyTypeObject *)args[2], 0), none()};
	return tuple_of(results, 3);
}

/* Normal exchanges of one type of rows: a row for each token and rank, as many as there are. */

typedef struct {
	PyObject ob_base;
	calls *of;
	PyObject *shown;
	maker rows, scales, ids, sums;
	int live, experts;  /* experts of this rank */
	int expands, always; /* whether rows are selections'; whether those by a known routing are described, too */
	int64_t tokens, hidden, topk, of_all; /* of the handle: the most of a rank; all experts */
	weft_group group;					  /* of meetings: see meet */
	PyObject *group_object, *put, *wait;
	int32_t *own, *everyone, ranks, rank, type;
	Py_ssize_t most;    /* bytes of results that are copied on the host */
} normal;

static void normal_dealloc(PyObject *self) {
	normal *m = (normal *)self;
	maker_clear(&m->rows), maker_clear(&m->scales), maker_clear(&m->ids), maker_clear(&m->sums);
	freed(self, (PyObject *[]){(PyObject *)m->of, m->shown, m->group_object, m->put, m->wait}, 5);
}

/* Normal(calls, shown, live, experts, expands, always, most, tokens, hidden, topk, experts of all, and samples of:
 * rows, scales, int64 ids, and weights: those of ids, or of rows that are selections') */
static PyObject *normal_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
	PyObject *of, *shown, *rows, *scales, *ids, *sums;
	int live, experts, expands, always;
	Py_ssize_t most;
	long long tokens, hidden, topk, of_all;
	(void)keywords;
	if (!PyArg_ParseTuple(args, "OOiiiinLLLLOOOO", &of, &shown, &live, &experts, &expands, &always, &most, &tokens,
						  &hidden, &topk, &of_all, &rows, &scales, &ids, &sums))
		return NULL;
	if (Py_TYPE(of) != calls_type) {
		PyErr_SetString(PyExc_TypeError, "want the calls of a handle");
		return NULL;
	}
	normal *m = (normal *)PyType_GenericAlloc(type, 0);
	if (!m) return NULL;
	take((PyObject **)&m->of, of), take(&m->shown, shown);
	int on_host = m->of->device < 0;
	m->live = live, m->experts = experts, m->most = most;
	m->expands = expands, m->always = always;
	m->tokens = tokens, m->hidden = hidden, m->topk = topk, m->of_all = of_all;
	if (maker_init(&m->rows, rows, on_host) || maker_init(&m->scales, scales, on_host) ||
		maker_init(&m->ids, ids, on_host) || maker_init(&m->sums, sums, on_host)) {
		Py_DecRef((PyObject *)m);
		return NULL;
	}
	return (PyObject *)m;
}

/* A tensor that shows one of a batch, or its first so many rows; None of none. */
static PyObject *shown_rows(calls *c, held *got, const weft_tensor *of, int64_t rows) {
	weft_tensor some = *of;
	if (!of->dtype) return none();
	if (rows >= 0 && rows < some.shape[0]) some.shape[0] = rows;
	return tensor_show(c, (PyObject *)got, &some, c->device, 0);
}

/* What a call wants of the rows that a GPU receives: how many there are, -1 for as many as there is room for, of which
 * fewer may come, and whether their selections. */
typedef struct {
	int64_t rows;
	int described;
} wanted;

/* Has the GPU write the received selections, and weights, into new tensors: one launch. Of rows that are selections'
 * there are weights alone. 0, or -1 with an exception. */
static int describe_on_gpu(normal *m, PyObject *handle, const weft_ep_dispatch_result *out, weft_stream stream,
						   int weighted, int64_t rows, PyObject **ids, PyObject **sums) {
	weft_tensor to_ids, to_sums;
	int64_t n = rows < 0 ? out->data->shape[0] : rows;
	Py_DecRef(*ids), Py_DecRef(*sums);
	*ids = m->expands ? none() : maker_make(&m->ids, n, &to_ids), *sums = NULL;
	if (!*ids || !(*sums = weighted ? maker_make(&m->sums, n, &to_sums) : none())) return -1;
	if (rows < 0 && ((!m->expands && tensor_fill(*ids, -1)) || (weighted && tensor_fill(*sums, 0)))) return -1;
	weft_ep_copy_args copy = {.size = sizeof copy, .received = out->received};
	if (!m->expands) copy.row_experts = &to_ids;
	if (weighted) *(m->expands ? &copy.row_weights : &copy.row_selection_weights) = &to_sums;
	PyThreadState *thread = PyEval_SaveThread();
	weft_status status = lib.ep_copy_received((weft_ep)(uintptr_t)m->of->number, stream, &copy);
	PyEval_RestoreThread(thread);
	if (status) raise_status(handle, status);
	return status ? -1 : 0;
}

/* The routing of a batch that is copied on the host: the one that it was sent by, or a new one. */
static PyObject *batch_routing(calls *c, PyObject *handle, held *by, int64_t tokens,
							   const weft_ep_dispatch_result *out) {
	if (by)
		Py_IncRef((PyObject *)by);
	else
		by = routing_made(c, handle, tokens, (uintptr_t)out->routing);
	if (by && by->rows == Py_None) {
		PyObject *rows = PyLong_FromLongLong(out->data->shape[0]), *was = by->rows;
		by->rows = rows;
		Py_DecRef(was);
		if (!rows) Py_DecRef((PyObject *)by), by = NULL;
	}
	return (PyObject *)by;
}

/* What a dispatch that the library has made returns: see normal_dispatch. */
static PyObject *normal_results(normal *m, PyObject *handle, held *by, int64_t tokens,
								const weft_ep_dispatch_result *out, weft_stream stream, int showing, int weighted,
								wanted want) {
	calls *c = m->of;
	int on_host = c->device < 0;
	const weft_tensor *data = out->data, *scales = out->scales;
	weft_status status = WEFT_OK;
	PyThreadState *thread;
	PyObject *results[6] = {NULL};
	int shows = on_host ? showing && tensor_size(data) + tensor_size(scales) > (size_t)m->most && data->shape[0] : 1;
	/* A batch that is copied needs no object of Python's. */
	held *got = shows ? received_made(c, handle, by, tokens, out, stream) : NULL, *made;
	if (shows && !got) return NULL;
	if (shows)
		take(&results[2], got->routing);
	else
		results[2] = batch_routing(c, handle, by, tokens, out);
	if (!(made = (held *)results[2])) {
		put_pending(c, &(pending){(release_fn)lib.received_release, (uintptr_t)out->received}, 1);
		return NULL;
	}
	weft_tensor to_rows, to_scales, to_ids = {.data = NULL}, to_sums = {.data = NULL};
	int has_scales = scales->dtype != WEFT_NONE;
	if (shows) {
		got->counted = 1, c->batches++;
		results[0] = shown_rows(c, got, data, want.rows);
		results[1] = shown_rows(c, got, scales, want.rows);
	} else {
		results[0] = maker_make(&m->rows, data->shape[0], &to_rows);
		results[1] = has_scales ? maker_make(&m->scales, data->shape[0], &to_scales) : none();
	}
	int described = on_host && (!by || m->always), holds = !shows; /* the batch, till it is given back */
	results[3] = described && !m->expands ? maker_make(&m->ids, data->shape[0], &to_ids) : none();
	results[4] = described && weighted ? maker_make(&m->sums, data->shape[0], &to_sums) : none();
	int32_t few[64], *demand = m->experts > 64 ? malloc(sizeof *demand * (size_t)m->experts) : few;
	if (!results[0] || !results[1] || !results[3] || !results[4] || !demand) goto fail;
	if (!on_host && !by && want.described && (weighted || !m->expands) &&
		describe_on_gpu(m, handle, out, stream, weighted, want.rows, &results[3], &results[4]))
		goto fail;
	if (on_host && (described || !shows)) {
		weft_routing_description description = {.size = sizeof description,
												.expert_demand = demand,
												.row_experts = to_ids.data};
		*(m->expands ? &description.row_weights : &description.row_selection_weights) = to_sums.data;
		pending copied = {(release_fn)lib.received_release, (uintptr_t)out->received};
		Py_ssize_t busy = 0;
		thread = PyEval_SaveThread();
		if (!shows) {
			if (data->shape[0]) memcpy(to_rows.data, data->data, tensor_size(data));
			if (has_scales && data->shape[0]) memcpy(to_scales.data, scales->data, tensor_size(scales));
			busy = give_back(&copied, 1);
		}
		if (described) status = lib.routing_describe((weft_routing)(uintptr_t)made->number, &description);
		PyEval_RestoreThread(thread);
		put_pending(c, &copied, busy);
		holds = 0;
		if (status) {
			raise_status(handle, status);
			goto fail;
		}
	}
	if (described) {
		results[5] = PyList_New(m->experts);
		for (Py_ssize_t i = 0; results[5] && i < m->experts; i++)
			PyList_SetItem(results[5], i, PyLong_FromLongLong(demand[i]));
	} else {
		results[5] = none();
	}
	if (demand != few) free(demand);
	Py_DecRef((PyObject *)got);
	return tuple_of(results, 6);
fail:
	if (demand != few) free(demand);
	if (holds) put_pending(c, &(pending){(release_fn)lib.received_release, (uintptr_t)out->received}, 1);
	Py_DecRef((PyObject *)got);
	return failed(results, 6);
}

/* dispatch(handle, x, scales, topk, weights, routing, received, described): rows; scales or None; the routing; and
 * where it is described, the received selections, their weights or None, and on the host the demand of each expert.
 * received: the number of rows, of a GPU's which come with room for more, or None for all of these. described: whether
 * a GPU's are. */
static PyObject *normal_dispatch(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	normal *m = (normal *)self;
	calls *c = m->of;
	int on_host = c->device < 0;
	weft_tensor operands[4];
	const weft_tensor *read[4] = {NULL}; /* rows, scales, selections, weights */
	if (n != 8) return none();
	for (int i = 0; i < 4; i++) {
		if (args[1 + i] == Py_None) continue;
		if (tensor_read(args[1 + i], c->device, &operands[i]) || operands[i].dims != 2) return none();
		read[i] = &operands[i];
	}
	held *batch, *by = args[5] == Py_None ? NULL : routing_of(c, args[5], &batch);
	if (!read[0] || (by == NULL) != (args[5] == Py_None) || (by == NULL) != (read[2] != NULL)) return none();
	wanted want = {args[6] == Py_None ? -1 : PyLong_AsLongLong(args[6]), PyObject_IsTrue(args[7])};
	weft_stream stream;
	if (current_stream(c->device, &stream)) return none();
	if (calls_begin(c, args[0])) return NULL;
	int showing = batches_shown(c, m->shown) < m->live - 1;
	if (!on_host && !showing) return none();

	weft_tensor data = {.size = sizeof data}, scales = {.size = sizeof scales};
	weft_ep_dispatch_args in = {.size = sizeof in,
								.routing = by ? (weft_routing)(uintptr_t)by->number : NULL,
								.topk = read[2],
								.weights = read[3],
								.rows = read[0],
								.scales = read[1]};
	weft_ep_dispatch_result out = {.size = sizeof out, .data = &data, .scales = &scales};
	pending taken[MOST_PENDING];
	Py_ssize_t left = take_pending(c, taken, MOST_PENDING);
	PyThreadState *thread = PyEval_SaveThread();
	left = give_back(taken, left);
	weft_status status = lib.ep_dispatch((weft_ep)(uintptr_t)c->number, stream, &in, &out, NULL);
	PyEval_RestoreThread(thread);
	put_pending(c, taken, left);
	if (status) {
		raise_status(args[0], status);
		return NULL;
	}

	return normal_results(m, args[0], by, read[0]->shape[0], &out, stream, showing, read[3] != NULL, want);
}

enum { SAME = 5, HEAD = 1 + SAME };

/* Counting where tokens go. */

typedef struct {
	PyObject ob_base;
	uint64_t counter; /* on a GPU */
	int device;
	int64_t experts, ranks;
	maker of_ranks, of_experts, of_tokens;
	/* On a GPU counts of ranks and of experts follow each other in memory, behind what a dispatch says before them, so
	 * that it says all of it from there. */
	maker said;
	PyObject *say;      /* say(memory, pieces, tokens) writes it into each piece: its numbers, or None if there are none */
	int32_t head[HEAD]; /* those that stand before each piece of this memory, if first is one */
	const char *first;
	int64_t apart, pieces;
} layout;

static PyTypeObject *layout_type;

/* Where on a GPU a dispatch's numbers already stand as it says them, or NULL. */
static int32_t *said_by(PyObject *counted, const weft_tensor *ranks, const weft_tensor *experts, const int32_t *head) {
	layout *l = (layout *)counted;
	if (Py_TYPE(counted) != layout_type || !l->first || ranks->shape[0] != l->ranks || experts->shape[0] != l->experts)
		return NULL;
	char *at = (char *)ranks->data - sizeof l->head;
	int64_t behind = at - l->first;
	if (behind < 0 || behind % l->apart || behind / l->apart >= l->pieces ||
		(char *)experts->data != (char *)ranks->data + sizeof *head * (size_t)l->ranks)
		return NULL;
	return memcmp(l->head, head, sizeof l->head) ? NULL : (int32_t *)at;
}

/* meet(group, number, own, everyone, ranks, rank, type, put, wait): where ranks say what they dispatch. On a GPU
 * put(tokens, channels, tokens of ranks, selections of experts) writes what this one says, and wait() waits for what
 * all say, in memory of the host's; on the host they are None. */
static PyObject *normal_meet(PyObject *self, PyObject *args) {
	normal *m = (normal *)self;
	unsigned long long number, own, everyone;
	PyObject *group, *put, *wait, *were[] = {m->group_object, m->put, m->wait};
	if (!PyArg_ParseTuple(args, "OKKKiiiOO", &group, &number, &own, &everyone, &m->ranks, &m->rank, &m->type, &put,
						  &wait))
		return NULL;
	take(&m->group_object, group), take(&m->put, put), take(&m->wait, wait);
	for (size_t i = 0; i < sizeof were / sizeof *were; i++) Py_DecRef(were[i]);
	m->group = (weft_group)(uintptr_t)number;
	m->own = (int32_t *)(uintptr_t)own, m->everyone = (int32_t *)(uintptr_t)everyone;
	return none();
}

/* What ranks have said: see heads. */
typedef struct {
	int alike;
	int64_t most, come; /* most as Python code rounds it */
} said;

static said heard(const normal *m, const int32_t *head, int64_t width) {
	said s = {.alike = 1, .most = 16};
	for (int32_t r = 0; r < m->ranks; r++) {
		const int32_t *of = m->everyone + r * width;
		s.alike &= memcmp(of + 1, head + 1, sizeof *head * SAME) == 0;
		while (s.most < of[0]) s.most *= 2;
		s.come += of[HEAD + m->rank];
	}
	return s;
}

/* What a GPU's dispatch returns of each expert's demand, which ranks have said: a list, or NULL with an exception. */
static PyObject *demands(const normal *m, int64_t width) {
	PyObject *of_experts = PyList_New(m->experts);
	const int32_t *first = m->everyone + HEAD + m->ranks + m->rank * m->experts;
	for (int e = 0; of_experts && e < m->experts; e++) {
		int64_t sum = 0;
		for (int32_t r = 0; r < m->ranks; r++) sum += first[r * width + e];
		PyList_SetItem(of_experts, e, PyLong_FromLongLong(sum));
	}
	return of_experts;
}

/* Meets the other ranks of a GPU's dispatch. What needs no answer comes before the wait: giving back what has gone,
 * and a copy of the selections. 0, or -1 with an exception. */
static int meet_on_gpu(normal *m, PyObject *const *args, int64_t tokens, const weft_tensor *own,
					   const weft_tensor *everyone, weft_stream stream, PyObject **content) {
	if (own->data == m->own) {
		PyObject *number = PyLong_FromLongLong(tokens),
				 *put = number ? PyObject_CallFunctionObjArgs(m->put, number, args[1], args[4], args[5], NULL) : NULL;
		Py_DecRef(number), Py_DecRef(put);
		if (!put) return -1;
	}
	pending taken[MOST_PENDING];
	Py_ssize_t left = take_pending(m->of, taken, MOST_PENDING);
	PyThreadState *thread = PyEval_SaveThread();
	weft_status met = lib.all_gather(m->group, stream, everyone, own);
	left = give_back(taken, left);
	PyEval_RestoreThread(thread);
	put_pending(m->of, taken, left);
	if (met) raise_status(m->group_object, met);
	if (met || !(*content = tensor_copy(args[6]))) return -1;
	PyObject *waited = PyObject_CallNoArgs(m->wait);
	Py_DecRef(waited);
	if (waited) return 0;
	Py_DecRef(*content);
	return -1;
}

/* exchange(handle, channels, x, in_rank, rank_tokens, expert_tokens, topk, weights, Layout or None): a dispatch with the
 * meeting before it, after which it cannot decline. Returns what ranks have said; what dispatch returns, or None if ranks differ, or
 * need a handle for other numbers; and the content of the selections: their bytes, or on a GPU a copy. */
static PyObject *normal_exchange(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	normal *m = (normal *)self;
	calls *c = m->of;
	weft_tensor x, within, ranks, experts, topk, weights;
	int device = c->device, on_host = device < 0;
	if (n != 9 || !m->group || tensor_read(args[2], device, &x) || tensor_read(args[3], device, &within) ||
		tensor_read(args[4], device, &ranks) || tensor_read(args[5], device, &experts) ||
		tensor_read(args[6], device, &topk))
		return none();
	int64_t tokens = x.dims == 2 ? x.shape[0] : -1;
	if (tokens < 0 || x.shape[1] != m->hidden || !shaped(&within, WEFT_BOOL, tokens, m->ranks) ||
		ranks.dtype != WEFT_INT32 || ranks.dims != 1 || ranks.shape[0] != m->ranks || experts.dims != 1 ||
		experts.shape[0] != m->of_all || (!on_host && experts.dtype != WEFT_INT32) ||
		!shaped(&topk, WEFT_INT64, tokens, m->topk))
		return none();
	const weft_tensor *weighted = args[7] == Py_None ? NULL : &weights;
	if (weighted && tensor_read(args[7], device, &weights)) return none();
	weft_stream stream;
	if (current_stream(device, &stream)) return none();
	int32_t head[HEAD] = {(int32_t)tokens, (int32_t)m->hidden, (int32_t)m->of_all, (int32_t)m->topk, m->type,
						  (int32_t)PyLong_AsLongLong(args[1])};
	if (PyErr_Occurred()) return NULL;
	if (calls_begin(c, args[0])) return NULL;
	int showing = batches_shown(c, m->shown) < m->live - 1;
	if (!on_host && !showing) return none();
	int64_t width = HEAD + m->ranks + (on_host ? 0 : m->of_all);
	int32_t *there = on_host ? NULL : said_by(args[8], &ranks, &experts, head);
	weft_tensor own = {sizeof own, there ? there : m->own, WEFT_INT32, 1, {width}},
				everyone = {sizeof everyone, m->everyone, WEFT_INT32, 2, {m->ranks, width}};
	PyObject *content;
	if (on_host && !(content = PyBytes_FromStringAndSize(topk.data, 8 * tokens * m->topk))) return NULL;
	if (!on_host && meet_on_gpu(m, args, tokens, &own, &everyone, stream, &content)) return NULL;

	weft_tensor data = {.size = sizeof data}, scales = {.size = sizeof scales};
	weft_ep_dispatch_args in = {.size = sizeof in, .topk = &topk, .weights = weighted, .rows = &x};
	weft_ep_dispatch_result out = {.size = sizeof out, .data = &data, .scales = &scales};
	pending taken[MOST_PENDING];
	Py_ssize_t left = on_host ? take_pending(c, taken, MOST_PENDING) : 0;
	PyThreadState *thread = PyEval_SaveThread();
	left = give_back(taken, left);
	weft_status met = WEFT_OK, status = WEFT_OK;
	if (on_host) {
		memcpy(m->own, head, sizeof head);
		memcpy(m->own + HEAD, ranks.data, sizeof *m->own * (size_t)m->ranks);
		met = lib.all_gather(m->group, NULL, &everyone, &own);
	}
	said all = {.alike = 0};
	if (!met) all = heard(m, head, width);
	int goes_on = all.alike && all.most == m->tokens;
	if (goes_on) status = lib.ep_dispatch((weft_ep)(uintptr_t)c->number, stream, &in, &out, NULL);
	PyEval_RestoreThread(thread);
	put_pending(c, taken, left);
	if (met || status) {
		Py_DecRef(content);
		raise_status(met ? m->group_object : args[0], met ? met : status);
		return NULL;
	}
	wanted want = {on_host ? -1 : all.come, 1};
	PyObject *results[3] = {
		PyBytes_FromStringAndSize((const char *)m->everyone, (Py_ssize_t)sizeof *m->everyone * m->ranks * width),
		goes_on ? normal_results(m, args[0], NULL, tokens, &out, stream, showing, weighted != NULL, want) : none(),
		content,
	};
	if (goes_on && !on_host && results[1]) {
		PyObject *of_experts = demands(m, width);
		if (!of_experts || PyTuple_SetItem(results[1], 5, of_experts)) Py_DecRef(results[1]), results[1] = NULL;
	}
	return tuple_of(results, 3);
}

/* heads(address, ranks, width, rank, experts, same): what ranks say before normal exchanges, int32 [ranks, width] on
 * the host: tokens, five numbers that are the same on all, tokens for each rank, and, if there are more, selections of
 * each expert. Returns the first rank with other numbers or -1, the most tokens of any, the tokens that come here, and
 * the list of selections of this rank's experts or None. */
PyObject *heads(PyObject *module, PyObject *args) {
	unsigned long long address;
	Py_ssize_t ranks, width, rank, experts;
	int same[SAME];
	(void)module;
	if (!PyArg_ParseTuple(args, "Knnnn(iiiii)", &address, &ranks, &width, &rank, &experts, &same[0], &same[1], &same[2],
						  &same[3], &same[4]))
		return NULL;
	const int32_t *said = (const int32_t *)(uintptr_t)address;
	Py_ssize_t odd = -1;
	long long most = 0, come = 0;
	for (Py_ssize_t r = 0; r < ranks; r++) {
		const int32_t *of = said + r * width;
		if (odd < 0 && memcmp(of + 1, same, sizeof same)) odd = r;
		if (of[0] > most) most = of[0];
		come += of[1 + SAME + rank];
	}
	PyObject *counts = width == 1 + SAME + ranks ? none() : PyList_New(experts);
	if (!counts) return NULL;
	for (Py_ssize_t e = 0; counts != Py_None && e < experts; e++) {
		long long sum = 0;
		for (Py_ssize_t r = 0; r < ranks; r++) sum += said[r * width + 1 + SAME + ranks + rank * experts + e];
		PyList_SetItem(counts, e, PyLong_FromLongLong(sum));
	}
	return Py_BuildValue("nLLN", odd, most, come, counts);
}

static void layout_dealloc(PyObject *self) {
	layout *l = (layout *)self;
	maker_clear(&l->of_ranks), maker_clear(&l->of_experts), maker_clear(&l->of_tokens), maker_clear(&l->said);
	freed(self, &l->say, 1);
}

/* Layout(counter, device, experts, ranks, samples of: int32 [ranks], int32 [experts], bool [tokens, ranks], int32 [n];
 * say) */
static PyObject *layout_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
	unsigned long long counter;
	int device;
	long long experts, ranks;
	PyObject *of_ranks, *of_experts, *of_tokens, *said, *say;
	(void)keywords;
	if (!PyArg_ParseTuple(args, "KiLLOOOOO", &counter, &device, &experts, &ranks, &of_ranks, &of_experts, &of_tokens,
						  &said, &say))
		return NULL;
	layout *l = (layout *)PyType_GenericAlloc(type, 0);
	if (!l) return NULL;
	l->counter = counter, l->device = device, l->experts = experts, l->ranks = ranks;
	take(&l->say, say);
	if (maker_init(&l->of_ranks, of_ranks, device < 0) || maker_init(&l->of_experts, of_experts, device < 0) ||
		maker_init(&l->of_tokens, of_tokens, device < 0) || maker_init(&l->said, said, device < 0)) {
		Py_DecRef((PyObject *)l);
		return NULL;
	}
	return (PyObject *)l;
}

/* Has what a dispatch says be written into new memory. 0, or -1 with an exception. */
static int layout_say(layout *l, PyObject *whole, int64_t pieces, int64_t tokens) {
	weft_tensor memory;
	PyObject *count = PyLong_FromLongLong(pieces), *of = PyLong_FromLongLong(tokens),
			 *said = count && of ? PyObject_CallFunctionObjArgs(l->say, whole, count, of, NULL) : NULL;
	Py_DecRef(count), Py_DecRef(of);
	if (!said) return -1;
	if (said != Py_None && PyTuple_Size(said) == HEAD && !tensor_read(whole, l->device, &memory)) {
		for (int i = 0; i < HEAD; i++) l->head[i] = (int32_t)PyLong_AsLongLong(PyTuple_GetItem(said, i));
		l->first = memory.data, l->pieces = pieces, l->apart = (int64_t)sizeof *l->head * memory.shape[0] / pieces;
	}
	Py_DecRef(said);
	return PyErr_Occurred() ? -1 : 0;
}

/* New tensors for the counts of ranks and of experts. 0, or -1 with an exception. */
static int layout_counts(layout *l, weft_stream stream, int64_t tokens, PyObject **made, weft_tensor *ranks,
						 weft_tensor *experts) {
	const int64_t parts[] = {HEAD, l->ranks, l->experts};
	PyObject *whole = NULL, *in_parts[3] = {NULL};
	weft_tensor read[3];
	int apart = l->device < 0 ? 1 : maker_parts(&l->said, parts, 3, stream, in_parts, read, &whole);
	int said = 0;
	if (whole) l->first = NULL;
	if (whole && !apart) said = layout_say(l, whole, l->said.left + 1, tokens);
	Py_DecRef(whole);
	if (apart > 0) {
		made[0] = maker_piece(&l->of_ranks, -1, stream, ranks), made[2] = maker_piece(&l->of_experts, -1, stream, experts);
		return made[0] && made[2] ? 0 : -1;
	}
	made[0] = in_parts[1], made[2] = in_parts[2], *ranks = read[1], *experts = read[2];
	return apart || said ? -1 : 0;
}

/* count(owner, topk): tokens of each rank, None, selections of each expert, whether tokens go to ranks. */
static PyObject *layout_count(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	layout *l = (layout *)self;
	weft_tensor topk, ranks, experts, within;
	weft_stream stream;
	if (n != 2 || tensor_read(args[1], l->device, &topk) || topk.dims != 2 || current_stream(l->device, &stream))
		return none();
	drain();
	PyObject *made[] = {NULL, none(), NULL, NULL};
	if (layout_counts(l, stream, topk.shape[0], made, &ranks, &experts) ||
		!(made[3] = maker_piece(&l->of_tokens, topk.shape[0], stream, &within)))
		return as_declined(made, 4);
	within.dtype = WEFT_UINT8;
	weft_status status;
	PyThreadState *thread = PyEval_SaveThread();
	if (l->device < 0) {
		weft_ep_token_counts to = {.size = sizeof to, .experts = l->experts, .ranks = l->ranks,
								   .ranks_per_node = l->ranks, .rank_tokens = ranks.data,
								   .expert_selections = experts.data, .token_in_rank = within.data};
		status = lib.ep_count(&topk, &to);
	} else {
		weft_ep_device_token_counts to = {.size = sizeof to, .rank_tokens = &ranks, .expert_selections = &experts,
										  .token_in_rank = &within};
		status = lib.ep_token_counter_count((weft_ep_token_counter)(uintptr_t)l->counter, stream, &topk, &to);
	}
	PyEval_RestoreThread(thread);
	if (!status) return tuple_of(made, 4);
	raise_status(args[0], status);
	return failed(made, 4);
}

int exchanges_types(PyObject *module) {
	static PyMethodDef low_latency_methods[] = {
		{"dispatch", (PyCFunction)(void (*)(void))low_latency_dispatch, METH_FASTCALL, NULL},
		{"combine", (PyCFunction)(void (*)(void))low_latency_combine, METH_FASTCALL, NULL},
		{0},
	};
	static PyType_Slot low_latency_slots[] = {
		{Py_tp_new, low_latency_new}, {Py_tp_dealloc, low_latency_dealloc}, {Py_tp_methods, low_latency_methods}, {0}};
	static PyType_Spec low_latency_spec = {"weft._native.LowLatency", sizeof(low_latency), 0, Py_TPFLAGS_DEFAULT,
										   low_latency_slots};
	static PyMethodDef normal_methods[] = {
		{"dispatch", (PyCFunction)(void (*)(void))normal_dispatch, METH_FASTCALL, NULL},
		{"exchange", (PyCFunction)(void (*)(void))normal_exchange, METH_FASTCALL, NULL},
		{"meet", normal_meet, 1 /* METH_VARARGS */, NULL},
		{0},
	};
	static PyType_Slot normal_slots[] = {
		{Py_tp_new, normal_new}, {Py_tp_dealloc, normal_dealloc}, {Py_tp_methods, normal_methods}, {0}};
	static PyType_Spec normal_spec = {"weft._native.Normal", sizeof(normal), 0, Py_TPFLAGS_DEFAULT, normal_slots};
	static PyMethodDef layout_methods[] = {
		{"count", (PyCFunction)(void (*)(void))layout_count, METH_FASTCALL, NULL},
		{0},
	};
	static PyType_Slot layout_slots[] = {
		{Py_tp_new, layout_new}, {Py_tp_dealloc, layout_dealloc}, {Py_tp_methods, layout_methods}, {0}};
	static PyType_Spec layout_spec = {"weft._native.Layout", sizeof(layout), 0, Py_TPFLAGS_DEFAULT, layout_slots};
	layout_type = (PyTypeObject *)type_made(module, "Layout", &layout_spec);
	agreed_name = PyUnicode_InternFromString("agreed");
	forgot_name = PyUnicode_InternFromString("_forgot");
	left_out_name = PyUnicode_InternFromString("_left_out");
	return agreed_name && forgot_name && left_out_name && layout_type && type_made(module, "LowLatency", &low_latency_spec) &&
				   type_made(module, "Normal", &normal_spec)
			   ? 0
			   : -1;
}
