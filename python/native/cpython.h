/*
 * What the extension uses of CPython's stable ABI of 3.10. The declarations stand here so that a build needs no
 * headers of any Python and gives the same file everywhere. They are checked against Python.h, where a test finds
 * one: included before this file, its definitions are used, and these must agree.
 */
#ifndef WEFT_CPYTHON_H
#define WEFT_CPYTHON_H

#include <stddef.h>
#include <stdint.h>

#ifndef Py_PYTHON_H

typedef ptrdiff_t Py_ssize_t;
typedef struct _object PyObject;
typedef struct _typeobject PyTypeObject;

/* The part of every object that the stable ABI fixes for interpreters with a lock. */
struct _object {
	Py_ssize_t ob_refcnt;
	PyTypeObject *ob_type;
};

#define Py_TYPE(object) (((PyObject *)(object))->ob_type)

typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);
typedef void (*destructor)(PyObject *);
typedef int (*visitproc)(PyObject *, void *);

typedef struct PyMethodDef {
	const char *ml_name;
	PyCFunction ml_meth;
	int ml_flags;
	const char *ml_doc;
} PyMethodDef;

typedef struct PyMemberDef {
	const char *name;
	int type;
	Py_ssize_t offset;
	int flags;
	const char *doc;
} PyMemberDef;

typedef struct {
	int slot;
	void *pfunc;
} PyType_Slot;

typedef struct {
	const char *name;
	int basicsize, itemsize;
	unsigned int flags;
	PyType_Slot *slots;
} PyType_Spec;

typedef struct PyModuleDef {
	struct {
		PyObject ob_base;
		PyObject *(*m_init)(void);
		Py_ssize_t m_index;
		PyObject *m_copy;
	} m_base;
	const char *m_name, *m_doc;
	Py_ssize_t m_size;
	PyMethodDef *m_methods;
	void *m_slots, *m_traverse, *m_clear, *m_free;
} PyModuleDef;

#define PyModuleDef_HEAD_INIT                                                                                          \
	{                                                                                                                  \
		{1, NULL}, NULL, 0, NULL                                                                                       \
	}

typedef struct _ts PyThreadState;

enum { METH_O = 8, METH_NOARGS = 4, METH_FASTCALL = 0x80 };
enum {
	Py_tp_clear = 51,
	Py_tp_dealloc = 52,
	Py_tp_members = 72,
	Py_tp_methods = 64,
	Py_tp_new = 65,
	Py_tp_traverse = 71
};
enum { T_INT = 1, T_OBJECT = 6, T_LONGLONG = 17, T_PYSSIZET = 19, T_ULONGLONG = 18 };
enum { READONLY = 1 };

#define Py_TPFLAGS_BASETYPE (1UL << 10)
#define Py_TPFLAGS_HAVE_GC (1UL << 14)
#define Py_TPFLAGS_DEFAULT (1UL << 18)

#define Py_None (&_Py_NoneStruct)

extern PyObject _Py_NoneStruct;
extern PyObject *PyExc_ImportError, *PyExc_MemoryError, *PyExc_TypeError;

#else

_Static_assert(METH_O == 8 && METH_NOARGS == 4 && METH_FASTCALL == 0x80, "kinds of methods");
_Static_assert(Py_tp_clear == 51 && Py_tp_dealloc == 52 && Py_tp_members == 72, "slots");
_Static_assert(Py_tp_methods == 64 && Py_tp_new == 65 && Py_tp_traverse == 71, "slots");
_Static_assert(T_INT == 1 && T_OBJECT == 6 && T_PYSSIZET == 19 && READONLY == 1, "members");
_Static_assert(T_ULONGLONG == 18 && T_LONGLONG == 17, "members");
_Static_assert(Py_TPFLAGS_BASETYPE == 1UL << 10 && Py_TPFLAGS_HAVE_GC == 1UL << 14, "flags");
_Static_assert(offsetof(PyObject, ob_type) == 8, "an object");
_Static_assert(sizeof(PyModuleDef) == 104 && offsetof(PyModuleDef, m_name) == 40, "a module");
_Static_assert(sizeof(PyMemberDef) == 40 && offsetof(PyMemberDef, flags) == 24, "a member");
_Static_assert(sizeof(PyMethodDef) == 32 && offsetof(PyMethodDef, ml_flags) == 16, "a method");
_Static_assert(sizeof(PyType_Spec) == 32 && offsetof(PyType_Spec, slots) == 24, "a type");

#endif

void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);

PyObject *PyModule_Create2(PyModuleDef *, int);
int PyModule_AddObject(PyObject *, const char *, PyObject *);
int PyModule_AddStringConstant(PyObject *, const char *, const char *);
PyObject *PyType_FromSpec(PyType_Spec *);
PyObject *PyType_GenericAlloc(PyTypeObject *, Py_ssize_t);
PyObject *PyType_GenericNew(PyTypeObject *, PyObject *, PyObject *);
int PyType_IsSubtype(PyTypeObject *, PyTypeObject *);
void PyObject_GC_UnTrack(void *);
void PyObject_GC_Del(void *);
void PyObject_Free(void *);

PyObject *PyObject_CallObject(PyObject *, PyObject *);
PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
PyObject *PyObject_CallMethod(PyObject *, const char *, const char *, ...);
PyObject *PyObject_CallNoArgs(PyObject *);
PyObject *PyObject_GetAttr(PyObject *, PyObject *);
PyObject *PyObject_GetAttrString(PyObject *, const char *);
int PyObject_IsTrue(PyObject *);
Py_ssize_t PyObject_Size(PyObject *);

int PyArg_ParseTuple(PyObject *, const char *, ...);
PyObject *Py_BuildValue(const char *, ...);
PyObject *PyLong_FromLongLong(long long);
PyObject *PyLong_FromUnsignedLongLong(unsigned long long);
long long PyLong_AsLongLong(PyObject *);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *);
PyObject *PyUnicode_InternFromString(const char *);
PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t);
PyObject *PyTuple_New(Py_ssize_t);
Py_ssize_t PyTuple_Size(PyObject *);
PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t);
int PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *);
PyObject *PyList_New(Py_ssize_t);
Py_ssize_t PyList_Size(PyObject *);
PyObject *PyList_GetItem(PyObject *, Py_ssize_t);
int PyList_SetItem(PyObject *, Py_ssize_t, PyObject *);
Py_ssize_t PyDict_Size(PyObject *);
PyObject *PyWeakref_NewRef(PyObject *, PyObject *);
void *PyCapsule_GetPointer(PyObject *, const char *);

void PyErr_Clear(void);
PyObject *PyErr_Occurred(void);
void PyErr_SetString(PyObject *, const char *);
PyObject *PyErr_NoMemory(void);
void PyErr_Fetch(PyObject **, PyObject **, PyObject **);
void PyErr_Restore(PyObject *, PyObject *, PyObject *);

PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *);

#endif
