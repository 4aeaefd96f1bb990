/* Records laid out in columns while they come; see blobmsg/format/rows.py, its twin.
 *
 * A record's bytes are copied when it joins, while they are in the processor's cache, and its
 * objects are not held: a batch of a million records would come back from memory twice, once to be
 * copied and once to be freed.
 */

#include "native.h"

#include <structmember.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

/* --- memory ------------------------------------------------------------------------------------ */

/* Chunks have 64 bytes to 256 KiB, each size four times the one before, but for a value that needs
 * more. They are used again and again, for pages that are fresh from the system cost several times
 * the copy that fills them. */
#define SIZES 7
#define CHUNK_BYTES(size) ((Py_ssize_t)64 << 2 * (size))

typedef struct FreeChunk {
    struct FreeChunk *next;
} FreeChunk;

/* Under the GIL. */
static FreeChunk *free_chunks[SIZES];
static Py_ssize_t free_bytes, keep_bytes;
static Py_ssize_t least_free_bytes; /* since unused memory was last given back */

static int size_of(Py_ssize_t bytes)
{
    int size = 0;
    while (size < SIZES && CHUNK_BYTES(size) != bytes)
        size++;
    return size; /* SIZES: none of them */
}

static char *pop_chunk(int size)
{
    FreeChunk *chunk = free_chunks[size];
    free_chunks[size] = chunk->next;
    free_bytes -= CHUNK_BYTES(size);
    least_free_bytes = Py_MIN(least_free_bytes, free_bytes);
    return (char *)chunk;
}

static char *take_chunk(Py_ssize_t bytes)
{
    int size = size_of(bytes);
    if (size < SIZES && free_chunks[size] != NULL)
        return pop_chunk(size);
    return PyMem_RawMalloc(bytes);
}

static void give_back(char *data, Py_ssize_t bytes)
{
    int size = size_of(bytes);
    if (size == SIZES || free_bytes + bytes > keep_bytes) {
        PyMem_RawFree(data);
        return;
    }
    FreeChunk *chunk = (FreeChunk *)data;
    chunk->next = free_chunks[size];
    free_chunks[size] = chunk;
    free_bytes += bytes;
}

/* --- columns ----------------------------------------------------------------------------------- */

/* Make room for this many bytes more; -1 with an exception. */
static int column_reserve(Column *column, Py_ssize_t size)
{
    Py_ssize_t missing = size - (column->capacity - column->size);
    if (missing <= 0)
        return 0;
    if (column->count == column->room) {
        Py_ssize_t room = column->room ? 4 * column->room : 1;
        Chunk *chunks = PyMem_RawRealloc(column->chunks, room * sizeof *chunks);
        if (chunks == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        column->chunks = chunks;
        column->room = room;
    }
    /* At most half of what there is may stay unused. */
    int size_class = 0;
    while (size_class < SIZES - 1 && CHUNK_BYTES(size_class + 1) <= column->capacity / 2)
        size_class++;
    Py_ssize_t capacity = CHUNK_BYTES(size_class);
    if (missing > capacity) /* whole numbers of any type */
        capacity = (missing + 7) & ~(Py_ssize_t)7;
    char *data = take_chunk(capacity);
    if (data == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    column->chunks[column->count++] = (Chunk){data, column->capacity, capacity};
    column->capacity += capacity;
    return 0;
}

/* Write what there is room for. */
static void column_write(Column *column, const char *data, Py_ssize_t size)
{
    while (size) {
        const Chunk *chunk = &column->chunks[column->current];
        Py_ssize_t inside = column->size - chunk->start;
        Py_ssize_t part = Py_MIN(chunk->capacity - inside, size);
        if (!part) {
            column->current++;
            continue;
        }
        memcpy(chunk->data + inside, data, part);
        column->size += part;
        data += part;
        size -= part;
    }
}

/* The chunk that has this place. */
static const Chunk *column_chunk(const Column *column, Py_ssize_t place)
{
    Py_ssize_t first = 0, last = column->count - 1;
    while (first < last) {
        Py_ssize_t middle = (first + last + 1) / 2;
        if (column->chunks[middle].start <= place)
            first = middle;
        else
            last = middle - 1;
    }
    return &column->chunks[first];
}

static void column_read(const Column *column, Py_ssize_t place, void *target, Py_ssize_t size)
{
    if (!size)
        return;
    const Chunk *chunk = column_chunk(column, place);
    while (1) {
        Py_ssize_t inside = place - chunk->start;
        Py_ssize_t part = Py_MIN(chunk->capacity - inside, size);
        memcpy(target, chunk->data + inside, part);
        if (part == size)
            return;
        target = (char *)target + part;
        place += part;
        size -= part;
        chunk++;
    }
}

char *blobmsg_column_copy(const Column *column, Py_ssize_t chunks, char *place)
{
    for (Py_ssize_t index = 0; index < chunks; index++) {
        const Chunk *chunk = &column->chunks[index];
        Py_ssize_t size = Py_MIN(chunk->capacity, column->size - chunk->start);
        if (size <= 0)
            break; /* reserved only */
        memcpy(place, chunk->data, size);
        place += size;
    }
    return place;
}

static void column_free(Column *column)
{
    for (Py_ssize_t index = 0; index < column->count; index++)
        give_back(column->chunks[index].data, column->chunks[index].capacity);
    PyMem_RawFree(column->chunks);
    *column = (Column){0};
}

/* --- cells ------------------------------------------------------------------------------------- */

static int cells_reserve(Cells *cells, Cell cell, Py_ssize_t records)
{
    if (cell.size > INT32_MAX - cells->data.size) {
        PyErr_SetString(PyExc_OverflowError, "a segment's column has at most 2147483647 bytes");
        return -1;
    }
    if (column_reserve(&cells->data, cell.size) < 0 || column_reserve(&cells->ends, 4) < 0)
        return -1;
    if (!cells->nulls && cell.data != NULL)
        return 0;
    /* From the first null on, and then for all before it. */
    return column_reserve(&cells->valid, records + 1 - cells->valid.size);
}

static void cells_write(Cells *cells, Cell cell, Py_ssize_t records)
{
    column_write(&cells->data, cell.data, cell.size);
    int32_t end = (int32_t)cells->data.size;
    column_write(&cells->ends, (const char *)&end, 4);
    if (!cells->nulls && cell.data != NULL)
        return;
    const char yes = 1, no = 0;
    while (cells->valid.size < records)
        column_write(&cells->valid, &yes, 1);
    column_write(&cells->valid, cell.data == NULL ? &no : &yes, 1);
    cells->nulls += cell.data == NULL;
}

/* A cell as a new reference to bytes or None. */
static PyObject *cells_get(const Cells *cells, Py_ssize_t index)
{
    if (cells->nulls) {
        char valid;
        column_read(&cells->valid, index, &valid, 1);
        if (!valid)
            Py_RETURN_NONE;
    }
    int32_t start = 0, end;
    if (index)
        column_read(&cells->ends, 4 * (index - 1), &start, 4);
    column_read(&cells->ends, 4 * index, &end, 4);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, end - start);
    if (bytes != NULL)
        column_read(&cells->data, start, PyBytes_AS_STRING(bytes), end - start);
    return bytes;
}

static void cells_free(Cells *cells)
{
    column_free(&cells->data);
    column_free(&cells->ends);
    column_free(&cells->valid);
    cells->nulls = 0;
}

/* --- the values' checksum ---------------------------------------------------------------------- */

Crc32 blobmsg_crc32;

/* Values are checked so many bytes at a time, while they are in the processor's cache. */
#define CHECK_BYTES (16 << 10)

Checksum blobmsg_column_checksum(const Column *column, Checksum checksum, Crc32 crc32)
{
    while (checksum.bytes < column->size) {
        const Chunk *chunk = column_chunk(column, checksum.bytes);
        Py_ssize_t inside = checksum.bytes - chunk->start;
        Py_ssize_t part = Py_MIN(chunk->capacity - inside, column->size - checksum.bytes);
        checksum.crc32 = crc32.of(checksum.crc32, (const unsigned char *)chunk->data + inside,
                                  (uint32_t)part);
        checksum.bytes += part;
    }
    return checksum;
}

/* (address of zng_crc32, address of zng_crc32_combine): zeros when they are not at hand */
static PyObject *use_crc32(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long of, combine;
    if (!PyArg_ParseTuple(args, "KK", &of, &combine))
        return NULL;
    blobmsg_crc32.of = (uint32_t(*)(uint32_t, const unsigned char *, uint32_t))(uintptr_t)of;
    blobmsg_crc32.combine = (uint32_t(*)(uint32_t, uint32_t, int64_t))(uintptr_t)combine;
    Py_RETURN_NONE;
}

/* (first, second, length of the second) -> the checksum of both; None when it is not at hand */
static PyObject *combine_crc32(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned int first, second;
    long long second_bytes;
    if (!PyArg_ParseTuple(args, "IIL", &first, &second, &second_bytes))
        return NULL;
    if (blobmsg_crc32.combine == NULL)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLong(blobmsg_crc32.combine(first, second, second_bytes));
}

/* --- rows -------------------------------------------------------------------------------------- */

int blobmsg_rows_add(Rows *rows, Cell key, Cell value, long long timestamp_ms, PyObject *headers,
                     PyObject *callback)
{
    Py_ssize_t records = rows->record_count;
    if (cells_reserve(&rows->keys, key, records) < 0 ||
        cells_reserve(&rows->values, value, records) < 0 ||
        column_reserve(&rows->timestamps, 8) < 0)
        return -1;
    if (rows->width == WIDE) {
        if (PyList_Append(rows->headers, headers) < 0)
            return -1;
        if (PyList_Append(rows->callbacks, callback) < 0) {
            PyObject *type, *error, *traceback;
            PyErr_Fetch(&type, &error, &traceback);
            PyList_SetSlice(rows->headers, records, PY_SSIZE_T_MAX, NULL);
            PyErr_Restore(type, error, traceback);
            return -1;
        }
    }
    int64_t timestamp = timestamp_ms;
    column_write(&rows->timestamps, (const char *)&timestamp, 8);
    cells_write(&rows->keys, key, records);
    cells_write(&rows->values, value, records);
    const Column *written = &rows->values.data;
    if (blobmsg_crc32.of && written->size - rows->values_checksum.bytes >= CHECK_BYTES)
        rows->values_checksum =
            blobmsg_column_checksum(written, rows->values_checksum, blobmsg_crc32);
    if (!records || timestamp_ms < rows->first_timestamp_ms)
        rows->first_timestamp_ms = timestamp_ms;
    if (!records || timestamp_ms > rows->last_timestamp_ms)
        rows->last_timestamp_ms = timestamp_ms;
    rows->record_count = records + 1;
    return 0;
}

/* A cell of an object; 0 with an exception when it is neither bytes nor None. */
static int cell_of(PyObject *object, Cell *cell)
{
    if (PyBytes_Check(object))
        *cell = (Cell){PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object)};
    else if (object == Py_None)
        *cell = (Cell){NULL, 0};
    else {
        PyErr_Format(PyExc_TypeError, "a key or value is bytes or None, not %.200s",
                     Py_TYPE(object)->tp_name);
        return 0;
    }
    return 1;
}

static PyObject *rows_extend(Rows *self, PyObject *row)
{
    if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != self->width) {
        PyErr_Format(PyExc_TypeError, "a row is a tuple of %zd", self->width);
        return NULL;
    }
    if (self->is_read) {
        PyErr_SetString(PyExc_RuntimeError, "these rows are a segment already");
        return NULL;
    }
    Cell key, value;
    if (!cell_of(PyTuple_GET_ITEM(row, 0), &key) || !cell_of(PyTuple_GET_ITEM(row, 1), &value))
        return NULL;
    long long timestamp_ms = PyLong_AsLongLong(PyTuple_GET_ITEM(row, 2));
    if (timestamp_ms == -1 && PyErr_Occurred())
        return NULL;
    int is_wide = self->width == WIDE;
    if (blobmsg_rows_add(self, key, value, timestamp_ms,
                         is_wide ? PyTuple_GET_ITEM(row, 3) : NULL,
                         is_wide ? PyTuple_GET_ITEM(row, 4) : NULL) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *timestamp_at(const Rows *self, Py_ssize_t index)
{
    int64_t timestamp;
    column_read(&self->timestamps, 8 * index, &timestamp, 8);
    return PyLong_FromLongLong(timestamp);
}

static PyObject *rows_record(Rows *self, PyObject *argument)
{
    Py_ssize_t index = PyLong_AsSsize_t(argument);
    if (index == -1 && PyErr_Occurred())
        return NULL;
    if (index < 0 || index >= self->record_count) {
        PyErr_SetString(PyExc_IndexError, "there is no such record");
        return NULL;
    }
    PyObject *headers = self->headers ? PyList_GetItem(self->headers, index) : Py_None;
    if (headers == NULL)
        return NULL;
    PyObject *key = cells_get(&self->keys, index), *value = cells_get(&self->values, index);
    PyObject *timestamp = timestamp_at(self, index);
    if (key == NULL || value == NULL || timestamp == NULL) {
        Py_XDECREF(key);
        Py_XDECREF(value);
        Py_XDECREF(timestamp);
        return NULL;
    }
    return Py_BuildValue("(NNNO)", key, value, timestamp, headers);
}

static PyObject *list_of(Rows *self, PyObject *(*get)(const void *, Py_ssize_t), const void *column)
{
    PyObject *list = PyList_New(self->record_count);
    for (Py_ssize_t index = 0; list != NULL && index < PyList_GET_SIZE(list); index++) {
        PyObject *cell = get(column, index);
        if (cell == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, index, cell);
    }
    return list;
}

static PyObject *cells_getter(const void *cells, Py_ssize_t index)
{
    return cells_get(cells, index);
}

static PyObject *timestamp_getter(const void *rows, Py_ssize_t index)
{
    return timestamp_at(rows, index);
}

static PyObject *get_keys(Rows *self, void *Py_UNUSED(closure))
{
    return list_of(self, cells_getter, &self->keys);
}

static PyObject *get_values(Rows *self, void *Py_UNUSED(closure))
{
    return list_of(self, cells_getter, &self->values);
}

static PyObject *get_timestamps(Rows *self, void *Py_UNUSED(closure))
{
    return list_of(self, timestamp_getter, self);
}

/* The list, or None when there is none, or only None in it. */
static PyObject *get_headers(Rows *self, void *Py_UNUSED(closure))
{
    if (self->headers != NULL)
        for (Py_ssize_t index = 0; index < PyList_GET_SIZE(self->headers); index++)
            if (PyList_GET_ITEM(self->headers, index) != Py_None)
                return PyList_GetSlice(self->headers, 0, PY_SSIZE_T_MAX);
    Py_RETURN_NONE;
}

static PyObject *get_callbacks(Rows *self, void *Py_UNUSED(closure))
{
    return self->callbacks ? PyList_GetSlice(self->callbacks, 0, PY_SSIZE_T_MAX) : PyList_New(0);
}

static PyObject *rows_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"width", NULL};
    Py_ssize_t width;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n", names, &width))
        return NULL;
    if (width != NARROW && width != WIDE) {
        PyErr_SetString(PyExc_ValueError, "rows are 3 or 5 cells wide");
        return NULL;
    }
    Rows *self = (Rows *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->width = width;
    if (width == WIDE) {
        self->headers = PyList_New(0);
        self->callbacks = PyList_New(0);
        if (self->headers == NULL || self->callbacks == NULL) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static int rows_traverse(Rows *self, visitproc visit, void *arg)
{
    Py_VISIT(self->headers);
    Py_VISIT(self->callbacks);
    return 0;
}

/* The lists stay: who is still called may have to add to them. */
static int rows_clear(Rows *self)
{
    if (self->headers != NULL)
        PyList_SetSlice(self->headers, 0, PY_SSIZE_T_MAX, NULL);
    if (self->callbacks != NULL)
        PyList_SetSlice(self->callbacks, 0, PY_SSIZE_T_MAX, NULL);
    return 0;
}

static void rows_dealloc(Rows *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->headers);
    Py_CLEAR(self->callbacks);
    column_free(&self->timestamps);
    cells_free(&self->keys);
    cells_free(&self->values);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef rows_methods[] = {
    {"extend", (PyCFunction)rows_extend, METH_O, NULL},
    {"record", (PyCFunction)rows_record, METH_O, NULL},
    {NULL},
};

static PyMemberDef rows_members[] = {
    {"width", T_PYSSIZET, offsetof(Rows, width), READONLY, NULL},
    {"record_count", T_PYSSIZET, offsetof(Rows, record_count), READONLY, NULL},
    {"first_timestamp_ms", T_LONGLONG, offsetof(Rows, first_timestamp_ms), READONLY, NULL},
    {"last_timestamp_ms", T_LONGLONG, offsetof(Rows, last_timestamp_ms), READONLY, NULL},
    {NULL},
};

static PyGetSetDef rows_getters[] = {
    {"keys", (getter)get_keys, NULL, NULL, NULL},
    {"values", (getter)get_values, NULL, NULL, NULL},
    {"timestamps_ms", (getter)get_timestamps, NULL, NULL, NULL},
    {"headers", (getter)get_headers, NULL, NULL, NULL},
    {"callbacks", (getter)get_callbacks, NULL, NULL, NULL},
    {NULL},
};

PyTypeObject blobmsg_rows_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "blobmsg.native._native.Rows",
    .tp_basicsize = sizeof(Rows),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = rows_methods,
    .tp_members = rows_members,
    .tp_getset = rows_getters,
    .tp_new = rows_new,
    .tp_traverse = (traverseproc)rows_traverse,
    .tp_clear = (inquiry)rows_clear,
    .tp_dealloc = (destructor)rows_dealloc,
};

/* (bytes) -> None: keep up to so much free memory for the next rows */
static PyObject *keep_free(PyObject *Py_UNUSED(module), PyObject *argument)
{
    Py_ssize_t bytes = PyLong_AsSsize_t(argument);
    if (bytes == -1 && PyErr_Occurred())
        return NULL;
    keep_bytes = Py_MAX(keep_bytes, bytes);
    Py_RETURN_NONE;
}

/* Less is not worth the walk through the allocator's heaps. */
#define TRIM_BYTES (4 << 20)

/* glibc keeps what was freed, also gigabytes of it, unless they lie at the end of its heap. */
static void trim(void)
{
#ifdef __GLIBC__
    Py_BEGIN_ALLOW_THREADS
    malloc_trim(0);
    Py_END_ALLOW_THREADS
#endif
}

/* () -> bytes: give back the free memory that was not needed since the last call */
static PyObject *drop_unused(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    Py_ssize_t dropped = 0;
    for (int size = SIZES - 1; size >= 0; size--)
        while (free_chunks[size] != NULL && dropped + CHUNK_BYTES(size) <= least_free_bytes) {
            dropped += CHUNK_BYTES(size);
            FreeChunk *chunk = free_chunks[size];
            free_chunks[size] = chunk->next;
            PyMem_RawFree(chunk);
        }
    free_bytes -= dropped;
    least_free_bytes = free_bytes;
    if (dropped >= TRIM_BYTES)
        trim();
    return PyLong_FromSsize_t(dropped);
}

/* () -> None: give back what the allocator keeps */
static PyObject *trim_heap(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    trim();
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"keep_free", keep_free, METH_O, NULL},
    {"drop_unused", drop_unused, METH_NOARGS, NULL},
    {"trim_heap", trim_heap, METH_NOARGS, NULL},
    {"use_crc32", use_crc32, METH_VARARGS, NULL},
    {"combine_crc32", combine_crc32, METH_VARARGS, NULL},
    {NULL},
};

int blobmsg_add_rows(PyObject *module)
{
    if (PyModule_AddFunctions(module, functions) < 0 ||
        PyModule_AddIntMacro(module, NARROW) < 0 || PyModule_AddIntMacro(module, WIDE) < 0)
        return -1;
    return PyModule_AddType(module, &blobmsg_rows_type);
}
