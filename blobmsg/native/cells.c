/* The keys or the values of a decoded segment; see blobmsg/format/cells.py, its twin. */

#include "native.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Py_buffer data;
    const char *offsets; /* int32, at any address */
    const char *cells;
    const unsigned char *valid; /* NULL: no cell is null */
    Py_ssize_t records;
} CellReader;

static int32_t offset_at(const CellReader *self, Py_ssize_t index)
{
    int32_t offset;
    memcpy(&offset, self->offsets + 4 * index, 4);
    return offset;
}

static PyObject *cells_call(CellReader *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 1 || kwnames != NULL) {
        PyErr_SetString(PyExc_TypeError, "cells are called with one index");
        return NULL;
    }
    Py_ssize_t index = PyLong_AsSsize_t(args[0]);
    if (index == -1 && PyErr_Occurred())
        return NULL;
    if (index < 0 || index >= self->records) {
        PyErr_SetString(PyExc_IndexError, "there is no such record");
        return NULL;
    }
    if (self->valid != NULL && !(self->valid[index >> 3] >> (index & 7) & 1))
        Py_RETURN_NONE;
    int32_t start = offset_at(self, index), end = offset_at(self, index + 1);
    /* The bytes may be a file's or another process's: checked offsets may have changed since. */
    if (start < 0 || end < start || end > offset_at(self, self->records)) {
        PyErr_SetString(PyExc_ValueError, "the offsets of a column have changed");
        return NULL;
    }
    return PyBytes_FromStringAndSize(self->cells + start, end - start);
}

/* Whether a range lies in the data. */
static int has(const CellReader *self, Py_ssize_t place, Py_ssize_t size)
{
    return place >= 0 && size >= 0 && place <= self->data.len && size <= self->data.len - place;
}

static int ascend(const CellReader *self, Py_ssize_t cells_bytes)
{
    int32_t before = 0;
    if (offset_at(self, 0) != 0 || offset_at(self, self->records) != cells_bytes)
        return 0;
    for (Py_ssize_t index = 1; index <= self->records; index++) {
        int32_t offset = offset_at(self, index);
        if (offset < before)
            return 0;
        before = offset;
    }
    return 1;
}

static PyObject *cells_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *data;
    Py_ssize_t records, offsets_place, cells_place, cells_bytes, validity_place;
    if (!PyArg_ParseTuple(args, "Onnnnn", &data, &records, &offsets_place, &cells_place,
                          &cells_bytes, &validity_place))
        return NULL;
    CellReader *self = (CellReader *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = (vectorcallfunc)cells_call;
    self->records = records;
    if (PyObject_GetBuffer(data, &self->data, PyBUF_SIMPLE) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    const char *start = self->data.buf;
    self->offsets = start + offsets_place;
    self->cells = start + cells_place;
    if (validity_place >= 0)
        self->valid = (const unsigned char *)start + validity_place;
    if (records < 0 || records >= PY_SSIZE_T_MAX / 8 ||
        !has(self, offsets_place, 4 * (records + 1)) || !has(self, cells_place, cells_bytes) ||
        (validity_place >= 0 && !has(self, validity_place, (records + 7) / 8)))
        PyErr_SetString(PyExc_ValueError, "a column lies outside of its data");
    else if (!ascend(self, cells_bytes))
        PyErr_SetString(PyExc_ValueError,
                        "offsets of a column do not ascend from 0 to its length");
    if (PyErr_Occurred())
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void cells_dealloc(CellReader *self)
{
    if (self->data.obj != NULL)
        PyBuffer_Release(&self->data);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject cells_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "blobmsg.native._native.Cells",
    .tp_basicsize = sizeof(CellReader),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(CellReader, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = cells_new,
    .tp_dealloc = (destructor)cells_dealloc,
};

int blobmsg_add_cells(PyObject *module)
{
    return PyModule_AddType(module, &cells_type);
}
