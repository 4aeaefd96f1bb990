/* Rows laid out as segments; blobmsg/format/segment.py describes them and is the twin.
 *
 * Copies, and what is left to check, need no GIL, and those of all segments of a call come in one
 * go: each time that a thread takes the GIL back it waits for 5 ms while the application computes.
 */

#include "native.h"

#define MAGIC "BMSG"
#define VERSION 1
#define KEYS 1
#define KEY_NULLS 2
#define VALUES 4
#define VALUE_NULLS 8
#define HEADER_BYTES 32

/* A segment to write. */
typedef struct {
    Rows *rows;
    const char *headers;
    Py_ssize_t headers_bytes, length;
} Plan;

static Py_ssize_t padded(Py_ssize_t size)
{
    return (size + 7) & ~(Py_ssize_t)7;
}

static Py_ssize_t cells_bytes(const Cells *cells, Py_ssize_t records)
{
    if (cells->nulls == records)
        return 0;
    return (cells->nulls ? padded((records + 7) / 8) : 0) + padded(4 * (records + 1)) +
           padded(cells->data.size);
}

/* Fill up to a multiple of 8 bytes behind so many. */
static char *pad(char *place, Py_ssize_t size)
{
    memset(place, 0, padded(size) - size);
    return place + (padded(size) - size);
}

/* Arrow's bitmap of a byte for each record. */
static char *write_bits(char *place, const Column *bytes)
{
    memset(place, 0, (bytes->size + 7) / 8);
    for (Py_ssize_t index = 0, chunk = 0; index < bytes->size; index++) {
        if (index == bytes->chunks[chunk].start + bytes->chunks[chunk].capacity)
            chunk++;
        if (bytes->chunks[chunk].data[index - bytes->chunks[chunk].start])
            place[index >> 3] |= (char)(1 << (index & 7));
    }
    return place + (bytes->size + 7) / 8;
}

/* All of a column of cells but their data. */
static char *write_offsets(char *place, const Cells *cells, Py_ssize_t records)
{
    if (cells->nulls == records)
        return place;
    if (cells->nulls)
        place = pad(write_bits(place, &cells->valid), (records + 7) / 8);
    memset(place, 0, 4); /* the first offset */
    place = blobmsg_column_copy(&cells->ends, cells->ends.count, place + 4);
    return pad(place, 4 * (records + 1));
}

static int flags_of(const Cells *cells, Py_ssize_t records)
{
    return cells->nulls == records ? 0 : cells->nulls ? KEYS | KEY_NULLS : KEYS;
}

/* All before the values' data, and so many chunks of that. */
static char *write_head(const Plan *plan, char *place, Py_ssize_t value_chunks)
{
    const Rows *rows = plan->rows;
    Py_ssize_t records = rows->record_count;
    uint32_t sizes[6] = {(uint32_t)records, (uint32_t)rows->keys.data.size,
                         (uint32_t)rows->values.data.size, (uint32_t)plan->headers_bytes};
    memcpy(place, MAGIC, 4);
    place[4] = VERSION;
    place[5] = (char)(flags_of(&rows->keys, records) | flags_of(&rows->values, records) << 2);
    place[6] = place[7] = 0;
    memcpy(place + 8, sizes, sizeof sizes);
    place = blobmsg_column_copy(&rows->timestamps, rows->timestamps.count, place + HEADER_BYTES);
    place = write_offsets(place, &rows->keys, records);
    place = blobmsg_column_copy(&rows->keys.data, rows->keys.data.count, place);
    place = write_offsets(pad(place, rows->keys.data.size), &rows->values, records);
    return blobmsg_column_copy(&rows->values.data, value_chunks, place);
}

/* Bytes behind the values' data. */
static Py_ssize_t tail_bytes(const Plan *plan)
{
    Py_ssize_t size = plan->rows->values.data.size;
    return padded(size) - size + padded(plan->headers_bytes);
}

/* All behind the values' data. */
static void write_tail(const Plan *plan, char *place)
{
    place = pad(place, plan->rows->values.data.size);
    if (plan->headers_bytes)
        memcpy(place, plan->headers, plan->headers_bytes);
    pad(place + plan->headers_bytes, plan->headers_bytes);
}

/* Read (rows, encoded headers); 1 when they can be written, 0 when they are no segment, -1 for an
 * exception. No record joins them from here on. */
static int make_plan(Plan *plan, PyObject *args, Py_ssize_t max_bytes)
{
    if (!PyTuple_Check(args)) {
        PyErr_SetString(PyExc_TypeError, "a segment is a tuple of rows and headers");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "O!y#", &blobmsg_rows_type, &plan->rows, &plan->headers,
                          &plan->headers_bytes))
        return -1;
    Rows *rows = plan->rows;
    Py_ssize_t records = rows->record_count;
    plan->length = HEADER_BYTES + 8 * records + cells_bytes(&rows->keys, records) +
                   cells_bytes(&rows->values, records) + padded(plan->headers_bytes);
    if (!records || plan->length > max_bytes)
        return 0;
    rows->is_read = 1;
    return 1;
}

/* ((rows, headers), max_bytes) -> the segment; None when it would be empty or over the limit */
static PyObject *encode_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *content, *segment = NULL;
    Py_ssize_t max_bytes;
    if (!PyArg_ParseTuple(args, "On", &content, &max_bytes))
        return NULL;
    Plan plan;
    int can = make_plan(&plan, content, max_bytes);
    if (can == 0)
        Py_RETURN_NONE;
    if (can > 0 && (segment = PyBytes_FromStringAndSize(NULL, plan.length)) != NULL) {
        Py_BEGIN_ALLOW_THREADS
        write_tail(&plan, write_head(&plan, PyBytes_AS_STRING(segment),
                                     plan.rows->values.data.count));
        Py_END_ALLOW_THREADS
    }
    return segment;
}

/* --- without copying the values ---------------------------------------------------------------- */

/* Bytes of a chunk that lives as long as its rows; what a memoryview is made of. */
typedef struct {
    PyObject_HEAD
    Rows *rows;
    Chunk chunk;
} Piece;

static void piece_dealloc(Piece *self)
{
    Py_CLEAR(self->rows);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int piece_buffer(Piece *self, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, (PyObject *)self, self->chunk.data, self->chunk.capacity, 1,
                             flags);
}

static PyBufferProcs piece_as_buffer = {.bf_getbuffer = (getbufferproc)piece_buffer};

static PyTypeObject piece_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "blobmsg.native._native.Piece",
    .tp_basicsize = sizeof(Piece),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_as_buffer = &piece_as_buffer,
    .tp_dealloc = (destructor)piece_dealloc,
};

/* The written part of a chunk as a memoryview. */
static PyObject *view_of(Rows *rows, const Column *column, Py_ssize_t index)
{
    Piece *piece = PyObject_New(Piece, &piece_type);
    if (piece == NULL)
        return NULL;
    piece->rows = (Rows *)Py_NewRef(rows);
    piece->chunk = column->chunks[index];
    piece->chunk.capacity = Py_MIN(piece->chunk.capacity, column->size - piece->chunk.start);
    PyObject *view = PyMemoryView_FromObject((PyObject *)piece);
    Py_DECREF(piece);
    return view;
}

/* Chunks below this are copied: a piece is an object, and a place in each call of the socket. */
#define LEAST_PIECE_BYTES (64 << 10)
/* Pieces hold all of their rows, of which the other columns are copied: so they must be most of it. */
#define LEAST_VIEWED_SHARE 3 / 4

typedef struct {
    Plan plan;
    Py_ssize_t copied; /* chunks of values before the first large one */
    PyObject *pieces;  /* bytes, memoryviews, and bytes again if anything is behind them */
    uint32_t checksum;
} Gathered;

/* Make the pieces, bytes with nothing in them yet; -1 for an exception. */
static int make_pieces(Gathered *gathered)
{
    const Plan *plan = &gathered->plan;
    const Column *values = &plan->rows->values.data;
    Py_ssize_t copied = 0, views = 0, viewed = 0, behind = 0;
    while (copied < values->count && values->chunks[copied].capacity < LEAST_PIECE_BYTES)
        copied++;
    while (copied + views < values->count && values->chunks[copied + views].start < values->size)
        views++;
    if (views)
        viewed = values->size - values->chunks[copied].start;
    if (viewed < plan->length * LEAST_VIEWED_SHARE) {
        copied = values->count;
        views = viewed = 0;
    }
    else {
        behind = tail_bytes(plan);
    }
    gathered->copied = copied;
    gathered->pieces = PyTuple_New(1 + views + (behind > 0));
    for (Py_ssize_t index = 0; gathered->pieces != NULL && index < 1 + views + (behind > 0); index++) {
        PyObject *piece =
            index == 0 ? PyBytes_FromStringAndSize(NULL, plan->length - viewed - behind)
            : index <= views ? view_of(plan->rows, values, copied + index - 1)
                             : PyBytes_FromStringAndSize(NULL, behind);
        if (piece == NULL)
            Py_CLEAR(gathered->pieces);
        else
            PyTuple_SET_ITEM(gathered->pieces, index, piece);
    }
    return gathered->pieces == NULL ? -1 : 0;
}

/* The checksum of all pieces, of which the values' is known for the most part. */
static uint32_t checksum_of(const Plan *plan, const char *head, const char *tail, Crc32 crc32)
{
    const Column *column = &plan->rows->values.data;
    Checksum values = blobmsg_column_checksum(column, plan->rows->values_checksum, crc32);
    Py_ssize_t behind = tail_bytes(plan), before = plan->length - values.bytes - behind;
    uint32_t checksum = crc32.of(0, (const unsigned char *)head, (uint32_t)before);
    checksum = crc32.combine(checksum, values.crc32, values.bytes);
    return crc32.of(checksum, (const unsigned char *)tail, (uint32_t)behind);
}

/* Write what is not viewed, and the checksum. Needs no GIL: nobody else has the pieces. */
static void fill_pieces(Gathered *gathered, Crc32 crc32)
{
    const Plan *plan = &gathered->plan;
    Py_ssize_t last = PyTuple_GET_SIZE(gathered->pieces) - 1;
    PyObject *head = PyTuple_GET_ITEM(gathered->pieces, 0);
    PyObject *tail_piece = PyTuple_GET_ITEM(gathered->pieces, last);
    char *tail = write_head(plan, PyBytes_AS_STRING(head), gathered->copied);
    if (last && PyBytes_Check(tail_piece))
        tail = PyBytes_AS_STRING(tail_piece);
    if (tail_bytes(plan))
        write_tail(plan, tail);
    if (crc32.of)
        gathered->checksum = checksum_of(plan, PyBytes_AS_STRING(head), tail, crc32);
}

/* -> [(pieces, length, CRC-32 or None), ...] */
static PyObject *gathered_list(const Gathered *gathered, Py_ssize_t count, int has_checksums)
{
    PyObject *result = PyList_New(count);
    for (Py_ssize_t index = 0; result != NULL && index < count; index++) {
        PyObject *checksum = has_checksums ? PyLong_FromUnsignedLong(gathered[index].checksum)
                                           : Py_NewRef(Py_None);
        PyObject *one = checksum ? Py_BuildValue("(OnN)", gathered[index].pieces,
                                                 gathered[index].plan.length, checksum)
                                 : NULL;
        if (one == NULL)
            Py_CLEAR(result);
        else
            PyList_SET_ITEM(result, index, one);
    }
    return result;
}

/* (((rows, headers), ...), max_bytes) -> [(pieces, length, CRC-32 or None), ...] of the first ones,
 * up to one that would be empty or over the limit */
static PyObject *gather_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *segments, *result = NULL;
    Py_ssize_t max_bytes, count = 0;
    if (!PyArg_ParseTuple(args, "O!n", &PyTuple_Type, &segments, &max_bytes))
        return NULL;
    Gathered *gathered = PyMem_Calloc(PyTuple_GET_SIZE(segments), sizeof *gathered);
    if (gathered == NULL)
        return PyErr_NoMemory();
    int can = 1;
    while (count < PyTuple_GET_SIZE(segments)) {
        can = make_plan(&gathered[count].plan, PyTuple_GET_ITEM(segments, count), max_bytes);
        if (can > 0)
            can = make_pieces(&gathered[count]) < 0 ? -1 : 1;
        if (can <= 0)
            break;
        count++;
    }
    if (can >= 0) {
        Crc32 crc32 = blobmsg_crc32;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t index = 0; index < count; index++)
            fill_pieces(&gathered[index], crc32);
        Py_END_ALLOW_THREADS
        result = gathered_list(gathered, count, crc32.of != NULL);
    }
    for (Py_ssize_t index = 0; index < count; index++)
        Py_CLEAR(gathered[index].pieces);
    PyMem_Free(gathered);
    return result;
}

static PyMethodDef functions[] = {
    {"encode_rows", encode_rows, METH_VARARGS, NULL},
    {"gather_rows", gather_rows, METH_VARARGS, NULL},
    {NULL},
};

int blobmsg_add_segment(PyObject *module)
{
    if (PyType_Ready(&piece_type) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
