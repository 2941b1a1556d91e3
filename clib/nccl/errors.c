/* Words lie where libweft.so keeps them: weft_error has them. */
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

static weft_status status_of(ncclEpResult_t result) {
	switch (result) {
	case NCCL_EP_SUCCESS: return WEFT_OK;
	case NCCL_EP_INVALID_ARGUMENT: return WEFT_ERROR_INVALID;
	case NCCL_EP_INVALID_USAGE: return WEFT_ERROR_UNSUPPORTED;
	case NCCL_EP_INTERNAL_ERROR: return WEFT_ERROR_INTERNAL;
	case NCCL_EP_REMOTE_ERROR: return WEFT_ERROR_ABORTED;
	default: return WEFT_ERROR_SYSTEM;
	}
}

ncclEpResult_t nep_fail(ncclEpResult_t result, const char *format, ...) {
	char words[1024];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(words, sizeof words, format, arguments);
	va_end(arguments);
	nep_lib.weft_error_set(status_of(result), -1, words);
	return result;
}

ncclEpResult_t nep_result(weft_status status) {
	switch (status) {
	case WEFT_OK: return NCCL_EP_SUCCESS;
	case WEFT_ERROR_INVALID:
	case WEFT_ERROR_HANDLE: return NCCL_EP_INVALID_ARGUMENT;
	case WEFT_ERROR_UNSUPPORTED:
	case WEFT_ERROR_MISMATCH:
	case WEFT_ERROR_MASKED:
	case WEFT_ERROR_CLOSED:
	case WEFT_ERROR_OVERFLOW:
	case WEFT_ERROR_BUSY:
	case WEFT_ERROR_FORKED: return NCCL_EP_INVALID_USAGE;
	case WEFT_ERROR_TIMEOUT:
	case WEFT_ERROR_ABORTED:
	case WEFT_ERROR_DIED:
	case WEFT_ERROR_LEFT: return NCCL_EP_REMOTE_ERROR;
	case WEFT_ERROR_SYSTEM: return NCCL_EP_SYSTEM_ERROR;
	case WEFT_ERROR_INTERNAL: break;
	}
	return NCCL_EP_INTERNAL_ERROR;
}
