/* Tensors of PyTorch's: reading them, making new ones, and showing memory of the library's as such. */

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"

static const dl_exchange *exchange;
static PyTypeObject *tensor_type, *parameter_type;
static int emulated; /* whether tensors of the host stand for those on GPUs */
static PyObject *is_neg, *is_inference, *inference_mode, *empty_like, *split, *copy_of, *fill, *version_name;
/* What PyTorch's compiler has its programs make tensors by: it parses fewer arguments. NULL where it lacks them. */
static PyObject *empty_on_host, *empty_on_gpu;

static const struct {
	uint8_t code, bits;
} dl_types[] = {
	[WEFT_BFLOAT16] = {4, 16}, [WEFT_FLOAT16] = {2, 16},	 [WEFT_FLOAT32] = {2, 32},	  [WEFT_FLOAT64] = {2, 64},
	[WEFT_FLOAT8_E4M3] = {10, 8}, [WEFT_FLOAT8_E5M2] = {12, 8}, [WEFT_UE8M0] = {14, 8}, [WEFT_INT8] = {0, 8},
	[WEFT_INT16] = {0, 16},	 [WEFT_INT32] = {0, 32},	 [WEFT_INT64] = {0, 64},	  [WEFT_UINT8] = {1, 8},
	[WEFT_UINT16] = {1, 16},	 [WEFT_UINT32] = {1, 32}, [WEFT_UINT64] = {1, 64},	  [WEFT_BOOL] = {6, 8},
};

static unsigned shows;

int tensor_shows(int dtype) { return dtype >= WEFT_BFLOAT16 && dtype <= WEFT_BOOL && shows >> dtype & 1; }

static void ignore(dl_managed *m) { (void)m; }

/* Finds out which types this PyTorch takes, by numbers that are never looked at. */
static void probe(const dl_exchange *api) {
	static dl_managed given[WEFT_BOOL + 1];
	static int64_t one = 1;
	static double zero;
	for (int i = WEFT_BFLOAT16; i <= WEFT_BOOL; i++) {
		void *tensor = NULL;
		given[i].version.major = 1;
		given[i].deleter = ignore;
		given[i].tensor = (dl_tensor){.data = &zero, .device = {DL_CPU, 0}, .ndim = 1, .shape = &one, .strides = &one,
									  .dtype = {dl_types[i].code, dl_types[i].bits, 1}};
		if (api->take(&given[i], &tensor))
			PyErr_Clear();
		else
			shows |= 1u << i;
		Py_DecRef(tensor);
	}
}

/* The attribute at the end of a path of them. NULL without an exception if there is none. */
static PyObject *found_at(PyObject *from, const char *const *path) {
	Py_IncRef(from);
	for (; from && *path; path++) {
		PyObject *was = from;
		from = PyObject_GetAttrString(was, *path);
		Py_DecRef(was);
	}
	if (!from) PyErr_Clear();
	return from;
}

int tensors_bind(PyObject *torch) {
	int bound = -1;
	PyObject *type = PyObject_GetAttrString(torch, "Tensor"), *parameter = NULL, *capsule = NULL, *functions = NULL,
			 *nn = PyObject_GetAttrString(torch, "nn"), *c = PyObject_GetAttrString(torch, "_C");
	if (!type || !nn || !c || !(parameter = PyObject_GetAttrString(nn, "Parameter")) ||
		!(capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__")) ||
		!(functions = PyObject_GetAttrString(c, "_VariableFunctions")))
		goto end;
	const dl_exchange *found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
	if (!found) goto end;
	if (found->version.major != 1 || !found->show || !found->take || !found->stream) {
		PyErr_SetString(PyExc_ImportError, "PyTorch's DLPack exchange is not of version 1");
		goto end;
	}
	if (!(is_neg = PyObject_GetAttrString(type, "is_neg")) ||
		!(is_inference = PyObject_GetAttrString(type, "is_inference")) ||
		!(copy_of = PyObject_GetAttrString(type, "clone")) || !(fill = PyObject_GetAttrString(type, "fill_")) ||
		!(version_name = PyUnicode_InternFromString("_version")) ||
		!(inference_mode = PyObject_GetAttrString(c, "is_inference_mode_enabled")) ||
		!(empty_like = PyObject_GetAttrString(functions, "empty_like")) ||
		!(split = PyObject_GetAttrString(functions, "unsafe_split_with_sizes")))
		goto end;
	empty_on_host = found_at(c, (const char *const[]){"_dynamo", "guards", "_empty_strided_cpu", NULL});
	empty_on_gpu = found_at(c, (const char *const[]){"_dynamo", "guards", "_empty_strided_cuda", NULL});
	/* They are kept for as long as the process. */
	probe(found);
	tensor_type = (PyTypeObject *)type, parameter_type = (PyTypeObject *)parameter, exchange = found;
	type = parameter = NULL;
	bound = 0;
end:
	Py_DecRef(type), Py_DecRef(nn), Py_DecRef(c), Py_DecRef(parameter), Py_DecRef(capsule), Py_DecRef(functions);
	return bound;
}

static int type_of(dl_type t) {
	for (int i = WEFT_BFLOAT16; i <= WEFT_BOOL; i++)
		if (dl_types[i].code == t.code && dl_types[i].bits == t.bits) return t.lanes == 1 ? i : WEFT_NONE;
	return WEFT_NONE;
}

static int declines(void) {
	PyErr_Clear();
	return -1;
}

void tensors_emulate(int on) { emulated = on; }

int tensor_read(PyObject *x, int device, weft_tensor *read) {
	dl_tensor t;
	if (!exchange || (Py_TYPE(x) != tensor_type && Py_TYPE(x) != parameter_type)) return -1;
	if (exchange->show(x, &t)) return declines();
	int here = device < 0 || emulated ? t.device.type == DL_CPU || t.device.type == DL_CUDA_HOST
						  : (t.device.type == DL_CUDA || t.device.type == DL_CUDA_MANAGED) && t.device.id == device;
	int type = type_of(t.dtype);
	if (!here || type == WEFT_NONE || t.ndim > WEFT_MAX_DIMS) return -1;
	int64_t dense = 1, elements = 1;
	for (int i = 0; i < t.ndim; i++) elements *= read->shape[i] = t.shape[i];
	if (elements && t.strides)
		for (int i = t.ndim; i-- > 0; dense *= t.shape[i])
			if (t.shape[i] != 1 && t.strides[i] != dense) return -1;
	read->size = sizeof *read;
	read->data = t.data ? (char *)t.data + t.byte_offset : NULL;
	read->dtype = type;
	read->dims = t.ndim;
	/* Memory does not say whether PyTorch negates it when it is read, as it does the imaginary part of a conjugate. */
	if (!(1 << type & (1 << WEFT_FLOAT16 | 1 << WEFT_FLOAT32 | 1 << WEFT_FLOAT64))) return 0;
	PyObject *negated = PyObject_CallFunctionObjArgs(is_neg, x, NULL);
	if (!negated) return declines();
	int plain = PyObject_IsTrue(negated) == 0;
	Py_DecRef(negated);
	return plain ? 0 : declines();
}

long long tensor_version(PyObject *x) {
	PyObject *without = PyObject_CallFunctionObjArgs(is_inference, x, NULL);
	if (!without) return -2;
	int none = PyObject_IsTrue(without);
	Py_DecRef(without);
	return none ? -1 : tensor_version_kept(x);
}

long long tensor_version_kept(PyObject *x) {
	PyObject *version = PyObject_GetAttr(x, version_name);
	long long number = version ? PyLong_AsLongLong(version) : -2;
	Py_DecRef(version);
	return number < 0 ? -2 : number;
}

int current_stream(int device, weft_stream *stream) {
	*stream = NULL;
	if (device < 0 || emulated) return 0;
	return exchange && exchange->stream(DL_CUDA, device, stream) == 0 ? 0 : declines();
}

/*
 * Tensors over memory that is not PyTorch's. It calls the deleter in any thread, with or without the interpreter's
 * lock, so the deleter only puts the block on a list. The next call drains it.
 */

typedef struct block {
	dl_managed managed; /* first: what the deleter is given */
	int64_t shape[WEFT_MAX_DIMS], strides[WEFT_MAX_DIMS];
	PyObject *keep; /* until the tensor has gone */
	calls *of;
	void *memory; /* instead of these two: the tensor's own */
	struct block *next;
} block;

static _Atomic(block *) gone;
static block *spare;
uint64_t drained;

static block *block_new(void) {
	block *b = spare;
	if (b)
		spare = b->next;
	else if (!(b = malloc(sizeof *b)))
		return NULL;
	memset(b, 0, offsetof(block, shape));
	b->keep = NULL, b->of = NULL, b->memory = NULL;
	return b;
}

static void deleter(dl_managed *m) {
	block *b = (block *)m;
	b->next = atomic_load_explicit(&gone, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(&gone, &b->next, b, memory_order_release, memory_order_relaxed))
		;
}

/* Has PyTorch take a block over. Where it refuses it never gives it back. */
static PyObject *taken(block *b) {
	void *tensor = NULL;
	b->managed.version = (dl_version){1, 0};
	b->managed.deleter = deleter;
	return exchange->take(&b->managed, &tensor) ? NULL : tensor;
}

/*
 * New ones. A tensor that PyTorch's compiler's way makes is PyTorch's own in every way, and costs half of one from
 * nothing; so does one like another, where there is no such way. On the host one over memory of this file's costs half
 * of that again; it cannot be resized, as tensors over memory of the library's cannot.
 */

int maker_init(maker *m, PyObject *sample, int plain) {
	Py_IncRef(sample);
	m->plain = plain;
	m->sample = sample;
	return 0;
}

void maker_clear(maker *m) {
	PyObject *all[] = {m->sample, m->one, m->arguments, m->pieces};
	m->sample = m->one = m->arguments = m->pieces = NULL;
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) Py_DecRef(all[i]);
}

/* A sample of so many rows. NULL with an exception. */
static PyObject *sample_of(maker *m, int64_t rows) {
	PyObject *key = PyLong_FromLongLong(rows), *made = key ? PyObject_CallFunctionObjArgs(m->sample, key, NULL) : NULL;
	Py_DecRef(key);
	return made;
}

/* What the sample of tensors with so many rows is, and their first dimension. NULL with an exception. */
static const dl_tensor *like_of(maker *m, int64_t rows, int64_t *first) {
	dl_tensor *like = &m->like;
	if (!m->one) {
		PyObject *one = sample_of(m, rows < 0 ? -1 : 1);
		if (!one) return NULL;
		if (exchange->show(one, like) || like->ndim > WEFT_MAX_DIMS) {
			if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a sample has too many dimensions");
			Py_DecRef(one);
			return NULL;
		}
		for (int i = 0; i < like->ndim; i++) m->sizes[i] = like->shape[i], m->steps[i] = like->strides[i];
		like->shape = m->sizes, like->strides = m->steps;
		m->one = one;
	}
	*first = rows < 0 && like->ndim ? like->shape[0] : rows;
	return like;
}

/* The compiler's way to make a dense tensor like a sample. NULL if it has none. */
static PyObject *empty_of(const dl_tensor *like) {
	int64_t dense = 1;
	for (int i = like->ndim; i-- > 0; dense *= like->shape[i])
		if (like->strides[i] && like->shape[i] != 1 && like->strides[i] != dense) return NULL;
	return like->device.type == DL_CPU ? empty_on_host : like->device.type == DL_CUDA ? empty_on_gpu : NULL;
}

/* Has ready what the compiler's way takes for so many rows. 0, or -1 with an exception. */
static int ready(maker *m, const dl_tensor *like, int64_t first) {
	if (m->arguments && m->first == first) return 0;
	PyObject *shape = PyTuple_New(like->ndim), *strides = PyTuple_New(like->ndim),
			 *dtype = PyObject_GetAttrString(m->one, "dtype"), *arguments = PyTuple_New(3), *were = m->arguments;
	int64_t dense = 1;
	for (int i = like->ndim; shape && strides && i-- > 0;) {
		int64_t n = i ? like->shape[i] : first;
		PyTuple_SetItem(shape, i, PyLong_FromLongLong(n));
		PyTuple_SetItem(strides, i, PyLong_FromLongLong(dense));
		dense *= n > 1 ? n : 1;
	}
	if (!shape || !strides || !dtype || !arguments) {
		Py_DecRef(shape), Py_DecRef(strides), Py_DecRef(dtype), Py_DecRef(arguments);
		return -1;
	}
	PyTuple_SetItem(arguments, 0, shape), PyTuple_SetItem(arguments, 1, strides), PyTuple_SetItem(arguments, 2, dtype);
	m->arguments = arguments, m->first = first;
	Py_DecRef(were);
	return 0;
}

/* A new dense tensor of PyTorch's of the type and on the device of the sample, and of its shape, but for the first
 * dimension. NULL with an exception. */
static PyObject *new_like(maker *m, const dl_tensor *like, int64_t first) {
	PyObject *empty = empty_of(like);
	if (empty) {
		if (ready(m, like, first)) return NULL;
		PyObject *arguments = m->arguments;
		Py_IncRef(arguments); /* the collector may have other code make tensors meanwhile */
		PyObject *new = PyObject_CallObject(empty, arguments);
		Py_DecRef(arguments);
		return new;
	}
	int other = like->ndim && like->shape[0] != first;
	PyObject *sample = other ? sample_of(m, first) : m->one,
			 *made = sample ? PyObject_CallFunctionObjArgs(empty_like, sample, NULL) : NULL;
	if (other) Py_DecRef(sample);
	return made;
}

/* The same with the order in memory of a sample that has memory, over memory of its own. */
static PyObject *plain_like(const dl_tensor *like, int64_t first, weft_tensor *made) {
	enum { LINE = 64 };
	size_t size = (size_t)(like->dtype.bits / 8);
	block *b = like->ndim <= WEFT_MAX_DIMS ? block_new() : NULL;
	if (!b) return PyErr_NoMemory();
	int64_t dense = 1;
	int none = 0;
	for (int i = like->ndim; i-- > 0; dense *= b->shape[i]) {
		none |= like->strides[i] == 0;
		b->shape[i] = made->shape[i] = i ? like->shape[i] : first, b->strides[i] = dense;
	}
	if (!none) memcpy(b->strides, like->strides, sizeof *b->strides * (size_t)like->ndim);
	if (!(b->memory = malloc(size * (size_t)dense + LINE))) {
		b->next = spare, spare = b;
		return PyErr_NoMemory();
	}
	made->size = sizeof *made, made->dtype = type_of(like->dtype), made->dims = like->ndim;
	made->data = (void *)(((uintptr_t)b->memory + LINE - 1) & ~(uintptr_t)(LINE - 1));
	b->managed.tensor = (dl_tensor){.data = made->data, .device = {DL_CPU, 0}, .ndim = like->ndim, .dtype = like->dtype,
									.shape = b->shape, .strides = b->strides};
	return taken(b);
}

/* Says where a new tensor is, if it is PyTorch's and where the sample is. It steals the tensor. */
static PyObject *described(PyObject *x, const dl_tensor *like, weft_tensor *made) {
	dl_tensor t;
	if (!x) return NULL;
	if (Py_TYPE(x) != tensor_type || exchange->show(x, &t) || t.ndim > WEFT_MAX_DIMS ||
		t.device.type != like->device.type || t.device.id != like->device.id) {
		if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "PyTorch makes tensors of another kind or elsewhere");
		Py_DecRef(x);
		return NULL;
	}
	*made = (weft_tensor){.size = sizeof *made, .data = t.data, .dtype = type_of(t.dtype), .dims = t.ndim};
	if (t.data) made->data = (char *)t.data + t.byte_offset;
	for (int i = 0; i < t.ndim; i++) made->shape[i] = t.shape[i];
	return x;
}

PyObject *maker_make(maker *m, int64_t rows, weft_tensor *made) {
	int64_t first;
	const dl_tensor *like = like_of(m, rows, &first);
	if (!like) return NULL;
	return m->plain ? plain_like(like, first, made) : described(new_like(m, like, first), like, made);
}

/*
 * Pieces. Small tensors of a GPU that are made again and again are made some at a time, by one call that splits memory
 * of theirs: they are PyTorch's own, and keep all of that memory. What is made for one stream goes to one stream. Some
 * may be parts of one piece, which follow each other in memory.
 */

enum { PIECES = 32, PIECES_SIZE = 1 << 16, ALIGNED = 16 };

/* Fills pieces whose parts have so many rows. whole gets all their memory. 0; 1 if tensors are not to be made so; -1
 * with an exception. */
static int pieces_fill(maker *m, const int64_t *parts, int count, PyObject **whole) {
	int64_t first, rows = 0;
	const dl_tensor *like = like_of(m, parts[0], &first);
	if (!like) return -1;
	if (like->ndim < 1 || !empty_of(like)) return 1;
	for (int i = 0; i < count; i++) rows += i ? parts[i] : first;
	int64_t size = like->dtype.bits / 8, unit = ALIGNED;
	for (int i = 1; i < like->ndim; i++) size *= like->shape[i];
	while (unit > 1 && size * unit / 2 % ALIGNED == 0) unit /= 2; /* rows that keep the next piece aligned */
	int64_t padded = (rows + unit - 1) / unit * unit, bytes = size * padded, n = bytes ? PIECES_SIZE / bytes : 0;
	int pads = padded > rows, step = count + pads;
	if (n > PIECES) n = PIECES;
	if (n < 2) return 1;
	PyObject *made = new_like(m, like, n * padded), *sizes = PyTuple_New(n * step), *pieces = NULL;
	for (Py_ssize_t i = 0; sizes && i < n * step; i++) {
		Py_ssize_t part = i % step;
		PyTuple_SetItem(sizes, i, PyLong_FromLongLong(part == count ? padded - rows : part ? parts[part] : first));
	}
	if (made && sizes) pieces = PyObject_CallFunctionObjArgs(split, made, sizes, NULL);
	Py_DecRef(sizes);
	if (!pieces || PyTuple_Size(pieces) != n * step) {
		Py_DecRef(pieces), Py_DecRef(made);
		return -1;
	}
	PyObject *were = m->pieces;
	m->pieces = pieces, m->left = n, m->step = step, m->rows = parts[0], m->where = like->device;
	Py_DecRef(were);
	if (whole)
		*whole = made;
	else
		Py_DecRef(made);
	return 0;
}

/* Whether there is a piece for a stream and PyTorch's mode; else there is none any more, and the next is for these. -1
 * with an exception. */
static int piece_left(maker *m, int64_t rows, weft_stream stream) {
	PyObject *in = PyObject_CallNoArgs(inference_mode);
	int inference = in ? PyObject_IsTrue(in) : -1;
	Py_DecRef(in);
	if (inference < 0) return -1;
	if (m->left && m->rows == rows && m->stream == stream && m->inference == inference) return 1;
	m->left = 0, m->stream = stream, m->inference = inference;
	return 0;
}

/* Takes a part of the piece that is the next. */
static PyObject *part_of(maker *m, int part, weft_tensor *made) {
	Py_ssize_t at = m->left * m->step + part;
	PyObject *piece = PyTuple_GetItem(m->pieces, at);
	Py_IncRef(piece);
	if (PyTuple_SetItem(m->pieces, at, none())) PyErr_Clear(); /* somebody looks at the tuple: it keeps the piece */
	return described(piece, &(dl_tensor){.device = m->where}, made);
}

PyObject *maker_piece(maker *m, int64_t rows, weft_stream stream, weft_tensor *made) {
	if (m->plain) return maker_make(m, rows, made);
	int left = piece_left(m, rows, stream);
	if (!left) {
		int filled = pieces_fill(m, &rows, 1, NULL);
		if (filled > 0) return maker_make(m, rows, made);
		left = !filled;
	}
	if (left <= 0) return NULL;
	m->left--;
	return part_of(m, 0, made);
}

int maker_parts(maker *m, const int64_t *rows, int count, weft_stream stream, PyObject **made, weft_tensor *read,
				PyObject **whole) {
	*whole = NULL;
	int left = piece_left(m, rows[0], stream), filled = left ? 0 : pieces_fill(m, rows, count, whole);
	if (left < 0 || filled) return left < 0 ? -1 : filled;
	m->left--;
	for (int i = 1; i < count; i++)
		if (!(made[i] = part_of(m, i, &read[i]))) return -1;
	return 0;
}

PyObject *tensor_show(calls *of, PyObject *keep, const weft_tensor *what, int device, int turned) {
	block *b = block_new();
	if (!b) return PyErr_NoMemory();
	int n = what->dims, on_host = device < 0 || emulated;
	int64_t stride = 1;
	for (int i = n; i-- > 0; stride *= what->shape[i]) b->shape[i] = what->shape[i], b->strides[i] = stride;
	if (turned) {
		int64_t shape = b->shape[n - 1], step = b->strides[n - 1];
		b->shape[n - 1] = b->shape[n - 2], b->strides[n - 1] = b->strides[n - 2];
		b->shape[n - 2] = shape, b->strides[n - 2] = step;
	}
	b->managed.tensor = (dl_tensor){
		.data = what->data,
		.device = {on_host ? DL_CPU : DL_CUDA, on_host ? 0 : device},
		.ndim = n,
		.dtype = {dl_types[what->dtype].code, dl_types[what->dtype].bits, 1},
		.shape = b->shape,
		.strides = b->strides,
	};
	Py_IncRef(keep), Py_IncRef((PyObject *)of);
	b->keep = keep, b->of = of;
	of->shown++;
	return taken(b);
}

PyObject *tensor_content(PyObject *module, PyObject *x) {
	weft_tensor t;
	(void)module;
	if (tensor_read(x, -1, &t) || !t.data) return none();
	return PyBytes_FromStringAndSize(t.data, (Py_ssize_t)tensor_size(&t));
}

size_t tensor_size(const weft_tensor *t) {
	if (t->dtype <= WEFT_NONE || t->dtype > WEFT_BOOL) return 0;
	size_t size = dl_types[t->dtype].bits / 8;
	for (int i = 0; i < t->dims; i++) size *= (size_t)t->shape[i];
	return size;
}

int tensor_fill(PyObject *tensor, int number) {
	PyObject *value = PyLong_FromLongLong(number),
			 *filled = value ? PyObject_CallFunctionObjArgs(fill, tensor, value, NULL) : NULL;
	Py_DecRef(value), Py_DecRef(filled);
	return filled ? 0 : -1;
}

PyObject *tensor_copy(PyObject *tensor) { return PyObject_CallFunctionObjArgs(copy_of, tensor, NULL); }

void drain(void) {
	if (!atomic_load_explicit(&gone, memory_order_relaxed)) return;
	block *b = atomic_exchange_explicit(&gone, NULL, memory_order_acquire);
	while (b) {
		block *next = b->next;
		PyObject *keep = b->keep, *lease = NULL;
		calls *of = b->of;
		free(b->memory);
		b->next = spare, spare = b;
		if (of) {
			drained++;
			if (!--of->shown) lease = of->lease, of->lease = NULL;
		}
		/* From here on other code may run, which may drain, too. */
		Py_DecRef(keep), Py_DecRef(lease), Py_DecRef((PyObject *)of);
		b = next;
	}
}
