//go:build cgo && linux

// The functions of weft.h that need Go. Each looks whether this process is a child of fork, where Go must not be entered, and calls its namesake in Go, which the
// linker keeps inside the library. Handles cross as the numbers that they are.

#include "_cgo_export.h"
#include "internal.h"

#define ID(handle) ((uint64_t)(uintptr_t)(handle))
#define CALL(call) (weft_status)(__builtin_expect(libweft_forked, 0) ? libweft_refuse_child() : (call))

weft_status weft_signal_check(int repair) {
	return CALL(goweft_signal_check(repair));
}

weft_status weft_comm_create(const weft_comm_options *options, weft_comm *comm) {
	return CALL(goweft_comm_create((weft_comm_options *)options, comm, libweft_timeout));
}

weft_status weft_unique_id_create(char *id, const char *interface) {
	return CALL(goweft_unique_id_create(id, (char *)interface));
}

weft_status weft_unique_id_release(const char *id) {
	return CALL(goweft_unique_id_release((char *)id));
}

weft_status weft_comm_create_with_id(const char *id, int rank, int ranks, const weft_comm_options *options, weft_comm *comm) {
	return CALL(goweft_comm_create_with_id((char *)id, rank, ranks, (weft_comm_options *)options, comm, libweft_timeout));
}

weft_status weft_comm_create_with_all_gather(weft_all_gather_fn all_gather, void *context, int rank, int ranks, const weft_comm_options *options, weft_comm *comm) {
	return CALL(goweft_comm_create_with_all_gather(all_gather, context, rank, ranks, (weft_comm_options *)options, comm, libweft_timeout));
}

weft_status weft_comm_leave(weft_comm comm) {
	return CALL(goweft_comm_leave(ID(comm)));
}

weft_status weft_comm_destroy(weft_comm comm) {
	return CALL(goweft_comm_destroy(ID(comm)));
}

weft_status weft_comm_get(weft_comm comm, weft_comm_info *info) {
	return CALL(goweft_comm_get(ID(comm), info));
}

weft_status weft_comm_error(weft_comm comm) {
	return CALL(goweft_comm_error(ID(comm)));
}

weft_status weft_comm_abort(weft_comm comm) {
	return CALL(goweft_comm_abort(ID(comm)));
}

weft_status weft_comm_set_mask(weft_comm comm, uint64_t mask) {
	return CALL(goweft_comm_set_mask(ID(comm), mask, libweft_timeout));
}

weft_status weft_comm_wait(weft_comm comm, weft_stream stream) {
	return CALL(goweft_comm_wait(ID(comm), stream, libweft_timeout));
}

weft_status weft_window_create(weft_comm comm, size_t bytes, weft_window *window) {
	return CALL(goweft_window_create(ID(comm), bytes, window, libweft_timeout));
}

weft_status weft_window_create_from_fd(weft_comm comm, int fd, size_t bytes, weft_window *window) {
	return CALL(goweft_window_create_from_fd(ID(comm), fd, bytes, window, libweft_timeout));
}

weft_status weft_window_create_from_memory(weft_comm comm, void *memory, size_t bytes, weft_window *window) {
	return CALL(goweft_window_create_from_memory(ID(comm), memory, bytes, window, libweft_timeout));
}

weft_status weft_window_get(weft_window window, weft_window_info *info) {
	return CALL(goweft_window_get(ID(window), info));
}

weft_status weft_window_peer(weft_window window, int rank, void **memory) {
	return CALL(goweft_window_peer(ID(window), rank, memory));
}

weft_status weft_window_destroy(weft_window window) {
	return CALL(goweft_window_destroy(ID(window)));
}

weft_status weft_ep_check(const weft_ep_spec *spec, int engine, int ranks) {
	return CALL(goweft_ep_check((weft_ep_spec *)spec, engine, ranks));
}

weft_status weft_ep_create(weft_comm comm, const weft_ep_spec *spec, weft_ep *ep) {
	return CALL(goweft_ep_create(ID(comm), (weft_ep_spec *)spec, ep, libweft_timeout));
}

weft_status weft_ep_destroy(weft_ep ep) {
	return CALL(goweft_ep_destroy(ID(ep)));
}

weft_status weft_ep_get(weft_ep ep, weft_ep_info *info) {
	return CALL(goweft_ep_get(ID(ep), info));
}

weft_status weft_ep_combine_buffer(weft_ep ep, weft_tensor *tensor) {
	return CALL(goweft_ep_combine_buffer(ID(ep), tensor));
}

weft_status weft_ep_gradient_buffer(weft_ep ep, weft_tensor *tensor) {
	return CALL(goweft_ep_gradient_buffer(ID(ep), tensor));
}

weft_status weft_ep_count(const weft_tensor *topk, const weft_ep_layout *layout) {
	return CALL(goweft_ep_count((weft_tensor *)topk, (weft_ep_layout *)layout));
}

weft_status weft_ep_counter_create(weft_comm comm, int64_t experts, int64_t ranks, int64_t ranks_per_node, weft_ep_counter *counter) {
	return CALL(goweft_ep_counter_create(ID(comm), experts, ranks, ranks_per_node, counter, libweft_timeout));
}

weft_status weft_ep_counter_count(weft_ep_counter counter, weft_stream stream, const weft_tensor *topk, const weft_ep_census *into) {
	return CALL(goweft_ep_counter_count(ID(counter), stream, (weft_tensor *)topk, (weft_ep_census *)into, libweft_timeout));
}

weft_status weft_ep_counter_destroy(weft_ep_counter counter) {
	return CALL(goweft_ep_counter_destroy(ID(counter)));
}

weft_status weft_ep_prepare(weft_ep ep, weft_stream stream, const weft_tensor *topk, const weft_tensor *weights, weft_routing *routing) {
	return CALL(goweft_ep_prepare(ID(ep), stream, (weft_tensor *)topk, (weft_tensor *)weights, routing, libweft_timeout));
}

weft_status weft_ep_dispatch(weft_ep ep, weft_stream stream, const weft_ep_dispatch_args *args, weft_ep_dispatch_result *result, weft_work *work) {
	return CALL(goweft_ep_dispatch(ID(ep), stream, (weft_ep_dispatch_args *)args, result, work, libweft_timeout));
}

weft_status weft_ep_combine(weft_ep ep, weft_stream stream, const weft_ep_combine_args *args, weft_work *work) {
	return CALL(goweft_ep_combine(ID(ep), stream, (weft_ep_combine_args *)args, work, libweft_timeout));
}

weft_status weft_ep_copy_received(weft_ep ep, weft_stream stream, const weft_ep_copy_args *args) {
	return CALL(goweft_ep_copy_received(ID(ep), stream, (weft_ep_copy_args *)args, libweft_timeout));
}

weft_status weft_ep_dispatch_backward(weft_ep ep, weft_stream stream, const weft_ep_dispatch_backward_args *args) {
	return CALL(goweft_ep_dispatch_backward(ID(ep), stream, (weft_ep_dispatch_backward_args *)args, libweft_timeout));
}

weft_status weft_ep_combine_backward(weft_ep ep, weft_stream stream, const weft_ep_combine_backward_args *args) {
	return CALL(goweft_ep_combine_backward(ID(ep), stream, (weft_ep_combine_backward_args *)args, libweft_timeout));
}

weft_status weft_ep_count_waits(weft_ep ep, const weft_tensor *dispatch, const weft_tensor *combine) {
	return CALL(goweft_ep_count_waits(ID(ep), (weft_tensor *)dispatch, (weft_tensor *)combine));
}

weft_status weft_work_receive(weft_work work, weft_ep_dispatch_result *result) {
	return CALL(goweft_work_receive(ID(work), result, libweft_timeout));
}

weft_status weft_work_wait(weft_work work) {
	return CALL(goweft_work_wait(ID(work), libweft_timeout));
}

weft_status weft_received_release(weft_received received) {
	return CALL(goweft_received_release(ID(received)));
}

weft_status weft_routing_get(weft_routing routing, weft_routing_info *info) {
	return CALL(goweft_routing_get(ID(routing), info));
}

weft_status weft_routing_tensor(weft_routing routing, int part, weft_tensor *tensor) {
	return CALL(goweft_routing_tensor(ID(routing), part, tensor));
}

weft_status weft_routing_describe(weft_routing routing, const weft_routing_description *description) {
	return CALL(goweft_routing_describe(ID(routing), (weft_routing_description *)description));
}

weft_status weft_routing_release(weft_routing routing) {
	return CALL(goweft_routing_release(ID(routing)));
}

weft_status weft_group_create(weft_comm comm, const weft_group_options *options, weft_group *group) {
	return CALL(goweft_group_create(ID(comm), (weft_group_options *)options, group, libweft_timeout));
}

weft_status weft_group_destroy(weft_group group) {
	return CALL(goweft_group_destroy(ID(group)));
}

weft_status weft_barrier(weft_group group, weft_stream stream) {
	return CALL(goweft_barrier(ID(group), stream, libweft_timeout));
}

weft_status weft_all_reduce(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in, int op) {
	return CALL(goweft_all_reduce(ID(group), stream, (weft_tensor *)out, (weft_tensor *)in, op, libweft_timeout));
}

weft_status weft_all_gather(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in) {
	return CALL(goweft_all_gather(ID(group), stream, (weft_tensor *)out, (weft_tensor *)in, libweft_timeout));
}

weft_status weft_broadcast(weft_group group, weft_stream stream, const weft_tensor *tensor, int root) {
	return CALL(goweft_broadcast(ID(group), stream, (weft_tensor *)tensor, root, libweft_timeout));
}
