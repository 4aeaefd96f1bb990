/* Records laid out as segments; blobmsg/format/segment.py describes them and is the twin.
 *
 * A segment is read in one pass over its objects under the GIL. The copy and the checksum need no
 * GIL, and those of all segments of a call come in one go: each time that a thread takes the GIL
 * back it waits for 5 ms while the application computes.
 */

#include "native.h"

#define MAGIC "BMSG"
#define VERSION 1
#define KEYS 1
#define KEY_NULLS 2
#define VALUES 4
#define VALUE_NULLS 8
#define HEADER_BYTES 32

typedef struct {
    const char *data; /* NULL for null */
    Py_ssize_t size;
} Cell;

typedef struct {
    Cell *cells;
    Py_ssize_t bytes, nulls;
} Column;

typedef struct {
    Py_ssize_t records, length;
    Column keys, values;
    int64_t *timestamps, first, last;
    const char *headers;
    Py_ssize_t headers_bytes;
} Plan;

/* Records wait in memory, not in the cache: fetched this many cells before they are needed. */
#define OBJECTS_AHEAD 16
#define DATA_AHEAD 2
#define MAX_DATA_AHEAD_BYTES 1024

static void prefetch(const void *start, Py_ssize_t size)
{
#ifdef __GNUC__
    for (Py_ssize_t place = 0; place < size; place += 64)
        __builtin_prefetch((const char *)start + place);
#else
    (void)start, (void)size;
#endif
}

static Py_ssize_t padded(Py_ssize_t size)
{
    return (size + 7) & ~(Py_ssize_t)7;
}

/* Read a column; 0 when a cell is neither bytes nor None, or there are too many bytes. */
static int read_column(Column *column, PyObject *list, Py_ssize_t start, Py_ssize_t step,
                       Py_ssize_t records, Py_ssize_t max_bytes)
{
    for (Py_ssize_t index = 0; index < records; index++) {
        PyObject *cell = PyList_GET_ITEM(list, start + index * step);
        if (index + OBJECTS_AHEAD < records)
            prefetch(PyList_GET_ITEM(list, start + (index + OBJECTS_AHEAD) * step), 1);
        if (PyBytes_Check(cell)) {
            column->cells[index].data = PyBytes_AS_STRING(cell);
            column->cells[index].size = PyBytes_GET_SIZE(cell);
            column->bytes += column->cells[index].size;
            if (column->bytes > max_bytes)
                return 0;
        }
        else if (cell == Py_None) {
            column->cells[index] = (Cell){NULL, 0};
            column->nulls++;
        }
        else
            return 0;
    }
    return 1;
}

static int read_timestamps(Plan *plan, PyObject *list, Py_ssize_t start, Py_ssize_t step)
{
    for (Py_ssize_t index = 0; index < plan->records; index++) {
        PyObject *cell = PyList_GET_ITEM(list, start + index * step);
        int overflow = 0;
        int64_t timestamp = PyLong_Check(cell) ? PyLong_AsLongLongAndOverflow(cell, &overflow) : 0;
        if (!PyLong_Check(cell) || overflow)
            return 0;
        plan->timestamps[index] = timestamp;
        if (!index || timestamp < plan->first)
            plan->first = timestamp;
        if (!index || timestamp > plan->last)
            plan->last = timestamp;
    }
    return 1;
}

static Py_ssize_t column_bytes(const Column *column, Py_ssize_t records)
{
    if (column->nulls == records)
        return 0;
    return (column->nulls ? padded((records + 7) / 8) : 0) + padded(4 * (records + 1)) +
           padded(column->bytes);
}

static char *pad(char *place, const char *start)
{
    Py_ssize_t rest = -(place - start) & 7;
    memset(place, 0, rest);
    return place + rest;
}

static char *write_column(char *place, const char *start, const Column *column, Py_ssize_t records)
{
    if (column->nulls == records)
        return place;
    if (column->nulls) {
        memset(place, 0, (records + 7) / 8);
        for (Py_ssize_t index = 0; index < records; index++)
            if (column->cells[index].data != NULL)
                place[index >> 3] |= (char)(1 << (index & 7));
        place = pad(place + (records + 7) / 8, start);
    }
    int32_t offset = 0;
    for (Py_ssize_t index = 0; index <= records; index++, place += 4) {
        memcpy(place, &offset, 4);
        if (index < records)
            offset += (int32_t)column->cells[index].size;
    }
    place = pad(place, start);
    for (Py_ssize_t index = 0; index < records; index++) {
        const Cell *cell = &column->cells[index];
        if (index + DATA_AHEAD < records)
            prefetch(cell[DATA_AHEAD].data, Py_MIN(cell[DATA_AHEAD].size, MAX_DATA_AHEAD_BYTES));
        if (cell->size)
            memcpy(place, cell->data, cell->size);
        place += cell->size;
    }
    return pad(place, start);
}

static int flags_of(const Column *column, Py_ssize_t records)
{
    return column->nulls == records ? 0 : column->nulls ? KEYS | KEY_NULLS : KEYS;
}

static void write_plan(const Plan *plan, char *start)
{
    uint32_t sizes[6] = {(uint32_t)plan->records,      (uint32_t)plan->keys.bytes,
                         (uint32_t)plan->values.bytes, (uint32_t)plan->headers_bytes, 0, 0};
    int flags = flags_of(&plan->keys, plan->records) | flags_of(&plan->values, plan->records) << 2;
    memcpy(start, MAGIC, 4);
    start[4] = VERSION;
    start[5] = (char)flags;
    start[6] = start[7] = 0;
    memcpy(start + 8, sizes, sizeof sizes);
    char *place = start + HEADER_BYTES;
    memcpy(place, plan->timestamps, 8 * plan->records);
    place = write_column(place + 8 * plan->records, start, &plan->keys, plan->records);
    place = write_column(place, start, &plan->values, plan->records);
    memcpy(place, plan->headers, plan->headers_bytes);
    pad(place + plan->headers_bytes, start);
}

static void free_plan(Plan *plan)
{
    PyMem_Free(plan->keys.cells);
    PyMem_Free(plan->values.cells);
    PyMem_Free(plan->timestamps);
}

/* Whether a list has so many cells at these places. */
static int reaches(PyObject *list, Py_ssize_t start, Py_ssize_t step, Py_ssize_t records)
{
    Py_ssize_t last = PyList_GET_SIZE(list) - 1 - start; /* place of the last cell behind start */
    return start >= 0 && step > 0 && records > 0 && last >= 0 && records - 1 <= last / step;
}

/* Read the arguments behind the first; 1 when they can be written, 0 when only the twin can say what
 * is wrong, -1 for an exception. */
static int make_plan(Plan *plan, PyObject *args)
{
    PyObject *keys, *values, *timestamps;
    Py_ssize_t key_start, value_start, timestamp_start, step, records, max_bytes;
    if (!PyArg_ParseTuple(args, "nnO!nO!nO!ny#n", &records, &step, &PyList_Type, &keys, &key_start,
                          &PyList_Type, &values, &value_start, &PyList_Type, &timestamps,
                          &timestamp_start, &plan->headers, &plan->headers_bytes, &max_bytes))
        return -1;
    if (!reaches(keys, key_start, step, records) || !reaches(values, value_start, step, records) ||
        !reaches(timestamps, timestamp_start, step, records))
        return 0;
    plan->records = records;
    plan->keys.cells = PyMem_New(Cell, records);
    plan->values.cells = PyMem_New(Cell, records);
    plan->timestamps = PyMem_New(int64_t, records);
    if (!plan->keys.cells || !plan->values.cells || !plan->timestamps) {
        PyErr_NoMemory();
        return -1;
    }
    if (!read_column(&plan->keys, keys, key_start, step, records, max_bytes) ||
        !read_column(&plan->values, values, value_start, step, records, max_bytes) ||
        !read_timestamps(plan, timestamps, timestamp_start, step))
        return 0;
    plan->length = HEADER_BYTES + 8 * records + column_bytes(&plan->keys, records) +
                   column_bytes(&plan->values, records) + padded(plan->headers_bytes);
    return plan->length <= max_bytes;
}

/* (records, step, keys, start, values, start, timestamps, start, headers, max_bytes)
 * -> (segment, first timestamp, last timestamp), or None */
static PyObject *encode_segment(PyObject *Py_UNUSED(module), PyObject *args)
{
    Plan plan = {0};
    PyObject *result = NULL;
    int can = make_plan(&plan, args);
    if (can == 0)
        result = Py_NewRef(Py_None);
    else if (can > 0) {
        PyObject *segment = PyBytes_FromStringAndSize(NULL, plan.length);
        if (segment != NULL) {
            char *start = PyBytes_AS_STRING(segment);
            Py_BEGIN_ALLOW_THREADS
            write_plan(&plan, start);
            Py_END_ALLOW_THREADS
            result = Py_BuildValue("(NLL)", segment, (long long)plan.first, (long long)plan.last);
        }
    }
    free_plan(&plan);
    return result;
}

typedef uint32_t (*Crc32)(uint32_t crc, const unsigned char *data, uint32_t size);

/* The first plans that can be written into so many bytes; -1 for an exception. */
static Py_ssize_t make_plans(Plan *plans, PyObject *segments, Py_ssize_t room)
{
    Py_ssize_t count = 0;
    while (count < PyList_GET_SIZE(segments)) {
        PyObject *arguments = PyList_GET_ITEM(segments, count);
        if (!PyTuple_Check(arguments)) {
            PyErr_SetString(PyExc_TypeError, "a segment is a tuple of arguments");
            return -1;
        }
        int can = make_plan(&plans[count], arguments);
        if (can < 0)
            return -1;
        if (!can || plans[count].length > room)
            break;
        room -= plans[count++].length;
    }
    return count;
}

static PyObject *written_segments(const Plan *plans, const uint32_t *checksums, Py_ssize_t count)
{
    PyObject *result = PyList_New(count);
    for (Py_ssize_t index = 0; result != NULL && index < count; index++) {
        const Plan *plan = &plans[index];
        PyObject *checksum =
            checksums ? PyLong_FromUnsignedLong(checksums[index]) : Py_NewRef(Py_None);
        PyObject *written = checksum ? Py_BuildValue("(nLLN)", plan->length, (long long)plan->first,
                                                     (long long)plan->last, checksum)
                                     : NULL;
        if (written == NULL)
            Py_CLEAR(result);
        else
            PyList_SET_ITEM(result, index, written);
    }
    return result;
}

/* (target, place, [arguments of encode_segment, ...], address of zng_crc32 or 0)
 * -> [(length, first timestamp, last timestamp, CRC-32 or None), ...] of those that were written:
 * the first ones, one behind the other, none when only the twin can say what is wrong */
static PyObject *write_segments(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer target;
    Py_ssize_t place;
    PyObject *segments, *result = NULL;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "w*nO!K", &target, &place, &PyList_Type, &segments, &address))
        return NULL;
    Crc32 crc32 = (Crc32)(uintptr_t)address;
    Py_ssize_t size = PyList_GET_SIZE(segments);
    Plan *plans = PyMem_Calloc(size, sizeof *plans);
    uint32_t *checksums = PyMem_New(uint32_t, size);
    if (plans == NULL || checksums == NULL)
        PyErr_NoMemory();
    else {
        Py_ssize_t room = place < 0 ? -1 : target.len - place;
        Py_ssize_t count = make_plans(plans, segments, room);
        if (count >= 0) {
            char *start = (char *)target.buf + place;
            Py_BEGIN_ALLOW_THREADS
            for (Py_ssize_t index = 0; index < count; start += plans[index++].length) {
                write_plan(&plans[index], start);
                if (crc32)
                    checksums[index] = crc32(0, (unsigned char *)start, plans[index].length);
            }
            Py_END_ALLOW_THREADS
            result = written_segments(plans, crc32 ? checksums : NULL, count);
        }
        for (Py_ssize_t index = 0; index < size; index++)
            free_plan(&plans[index]);
    }
    PyMem_Free(plans);
    PyMem_Free(checksums);
    PyBuffer_Release(&target);
    return result;
}

static PyMethodDef functions[] = {
    {"encode_segment", encode_segment, METH_VARARGS, NULL},
    {"write_segments", write_segments, METH_VARARGS, NULL},
    {NULL},
};

int blobmsg_add_segment(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
