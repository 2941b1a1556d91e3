#include <string.h>

#include "internal.h"

static const int32_t types[] = {
	[NCCL_EP_INT8] = WEFT_INT8,
	[NCCL_EP_UINT8] = WEFT_UINT8,
	[NCCL_EP_INT32] = WEFT_INT32,
	[NCCL_EP_UINT32] = WEFT_UINT32,
	[NCCL_EP_INT64] = WEFT_INT64,
	[NCCL_EP_UINT64] = WEFT_UINT64,
	[NCCL_EP_FLOAT16] = WEFT_FLOAT16,
	[NCCL_EP_FLOAT32] = WEFT_FLOAT32,
	[NCCL_EP_FLOAT64] = WEFT_FLOAT64,
	[NCCL_EP_BFLOAT16] = WEFT_BFLOAT16,
	[NCCL_EP_FLOAT8_E4M3] = WEFT_FLOAT8_E4M3,
	[NCCL_EP_FLOAT8_E5M2] = WEFT_FLOAT8_E5M2,
};

int64_t nep_bytes_of(int32_t type) {
	switch (type) {
	case WEFT_FLOAT64:
	case WEFT_INT64:
	case WEFT_UINT64: return 8;
	case WEFT_FLOAT32:
	case WEFT_INT32:
	case WEFT_UINT32: return 4;
	case WEFT_BFLOAT16:
	case WEFT_FLOAT16:
	case WEFT_INT16:
	case WEFT_UINT16: return 2;
	default: return 1;
	}
}

int64_t nep_elements(const weft_tensor *t) {
	int64_t n = 1;
	for (int32_t i = 0; i < t->dims; i++) {
		n *= t->shape[i];
	}
	return n;
}

/* Where a tensor with a window lies. */
static ncclEpResult_t follow(const nep_group *g, const ncclEpTensor_t *t, const char *name, size_t bytes, void **data) {
	if (!nep_is_weft(t->win_hdl)) {
		if (t->data != NULL) {
			return NCCL_EP_SUCCESS;
		}
		NEP_TRY(nep_nccl_window(g, t->win_hdl, data));
		*data = (char *)*data + t->win_offset;
		return NCCL_EP_SUCCESS;
	}
	weft_window_info info = {.size = sizeof info};
	NEP_WEFT(nep_lib.weft_window_get((weft_window)t->win_hdl, &info));
	if (t->win_offset > info.bytes || bytes > info.bytes - t->win_offset) {
		return nep_invalid("%s: %zu bytes at offset %llu do not fit into its window of %llu", name, bytes,
						   (unsigned long long)t->win_offset, (unsigned long long)info.bytes);
	}
	*data = (char *)info.memory + t->win_offset;
	return NCCL_EP_SUCCESS;
}

ncclEpResult_t nep_tensor(const nep_group *g, const ncclEpTensor_t *t, unsigned dims, const char *name,
						  weft_tensor *out) {
	*out = (weft_tensor){.size = sizeof *out};
	if (t == NULL) {
		return nep_invalid("%s is NULL", name);
	}
	if (t->magic != NCCL_EP_TENSOR_MAGIC && t->magic != NCCL_EP_TENSOR_MAGIC_LIBRARY) {
		return nep_invalid(
			"%s has the magic number 0x%X, not 0x%X: set size to sizeof and magic to NCCL_EP_TENSOR_MAGIC", name,
			t->magic, NCCL_EP_TENSOR_MAGIC);
	}
	if (t->size < sizeof *t) {
		return nep_invalid("%s has a size of %u, and must have at least %zu: set it to sizeof", name, t->size,
						   sizeof *t);
	}
	if (t->ndim != dims || t->sizes == NULL) {
		return nep_invalid("%s has %u dimensions%s, and needs %u", name, t->ndim,
						   t->sizes == NULL ? " and no sizes" : "", dims);
	}
	if (t->datatype < 0 || t->datatype >= (int)(sizeof types / sizeof *types)) {
		return nep_invalid("%s has the data type %d, which is none of ncclDataType_t", name, t->datatype);
	}
	out->dtype = types[t->datatype];
	out->dims = (int32_t)dims;
	size_t bytes = (size_t)nep_bytes_of(out->dtype);
	for (unsigned i = 0; i < dims; i++) {
		if (__builtin_mul_overflow(bytes, t->sizes[i], &bytes) || bytes > INT64_MAX) {
			return nep_invalid("%s is larger than memory can be", name);
		}
		out->shape[i] = (int64_t)t->sizes[i];
	}
	out->data = t->data;
	if (t->win_hdl != NULL) {
		NEP_TRY(follow(g, t, name, bytes, &out->data));
	}
	if (out->data == NULL && bytes > 0) {
		return nep_invalid("%s: %zu bytes at NULL", name, bytes);
	}
	return NCCL_EP_SUCCESS;
}
