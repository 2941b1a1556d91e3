// What "weft bench fabric" measures, from C: two processes, one provider of libfabric, the same bursts, batches
// and statistics, the best burst by its median. Both poll without a pause. Beside that, streams both ways at once.
//   cc -O2 fabric.c -lfabric && ./a.out PROVIDER ADDRESS [BYTES...]
//
// With OTHER_ADDRESS and OTHER_NAMESPACE, a file like /proc/PID/ns/net, in the environment the second process is there.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

enum { BURSTS = 30, EACH = 100, DEPTH = 8, TOKENS = 1024, SMALL = 48 };

struct card {
	char name[256];
	size_t length;
	uint64_t base, key;
};

static struct fi_info *info;
static struct fid_ep *endpoint;
static struct fid_cq *queue;
static struct fid_mr *region;
static struct fid_av *table;
static fi_addr_t peer;
static struct card theirs;
static struct fi_context2 contexts[TOKENS];
static char *memory;
static size_t bytes;
static uint64_t posted, completed, arrived;

static void check(long rc, const char *call) {
	if (rc >= 0) return;
	fprintf(stderr, "%s: %s\n", call, fi_strerror((int)-rc));
	exit(1);
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void poll_queue(void) {
	struct fi_cq_data_entry entries[16];
	ssize_t n = fi_cq_read(queue, entries, 16);
	if (n == -FI_EAGAIN) return;
	check(n, "fi_cq_read");
	for (ssize_t i = 0; i < n; i++) {
		if (entries[i].flags & FI_REMOTE_CQ_DATA)
			arrived++;
		else
			completed++;
	}
}

// put posts a write, with data for the peer's queue if asked.
static void put(size_t from, size_t to, size_t n, int data) {
	ssize_t rc;
	void *context = &contexts[posted % TOKENS];
	do {
		if (data)
			rc = fi_writedata(endpoint, memory + from, n, fi_mr_desc(region), 1, peer, theirs.base + to, theirs.key, context);
		else
			rc = fi_write(endpoint, memory + from, n, fi_mr_desc(region), peer, theirs.base + to, theirs.key, context);
		if (rc == -FI_EAGAIN) poll_queue();
	} while (rc == -FI_EAGAIN);
	check(rc, "fi_write");
	posted++;
}

static void flush(void) {
	while (completed < posted) poll_queue();
}

static void open_endpoint(const char *provider, const char *address) {
	struct fi_info *hints = fi_allocinfo();
	hints->caps = FI_MSG | FI_RMA;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
	hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_WAW;
	hints->fabric_attr->prov_name = strdup(provider);
	check(fi_getinfo(FI_VERSION(1, 17), address, NULL, FI_SOURCE, hints, &info), "fi_getinfo");
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fi_cq_attr cq = {.size = 4096, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD};
	struct fi_av_attr av = {.count = 2};
	check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
	check(fi_cq_open(domain, &cq, &queue, NULL), "fi_cq_open");
	check(fi_av_open(domain, &av, &table, NULL), "fi_av_open");
	check(fi_endpoint(domain, info, &endpoint, NULL), "fi_endpoint");
	check(fi_ep_bind(endpoint, &table->fid, 0), "fi_ep_bind");
	check(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
	check(fi_enable(endpoint), "fi_enable");
	check(fi_mr_reg(domain, memory, bytes, FI_READ | FI_WRITE | FI_REMOTE_WRITE, 0, 7, 0, &region, NULL), "fi_mr_reg");
	if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		check(fi_mr_bind(region, &endpoint->fid, 0), "fi_mr_bind");
		check(fi_mr_enable(region), "fi_mr_enable");
	}
}

static void meet(int wire) {
	struct card mine = {.length = sizeof mine.name};
	check(fi_getname(&endpoint->fid, mine.name, &mine.length), "fi_getname");
	mine.base = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)memory : 0;
	mine.key = fi_mr_key(region);
	if (write(wire, &mine, sizeof mine) != sizeof mine || read(wire, &theirs, sizeof theirs) != sizeof theirs) exit(1);
	if (fi_av_insert(table, theirs.name, 1, &peer, 0, NULL) != 1) exit(1);
}

// pause_at waits for the other process, and moves this one's endpoint meanwhile.
static void pause_at(int wire) {
	char c = 0;
	if (write(wire, &c, 1) != 1) exit(1);
	for (ssize_t n; (n = recv(wire, &c, 1, MSG_DONTWAIT)) != 1; poll_queue())
		if (n == 0 || errno != EAGAIN) exit(1);
}

static int ascending(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *times, int n) {
	qsort(times, (size_t)n, sizeof *times, ascending);
	return times[n / 2];
}

static void say(const char *what, size_t n, int batch, double p50) {
	printf("{\"op\":\"fabric-c\",\"provider\":\"%s\",\"what\":\"%s\",\"bytes\":%zu,\"batch\":%d,\"bursts\":%d,"
				 "\"p50_us\":%.3f,\"gbps\":%.4f}\n",
				 info->fabric_attr->prov_name, what, n, batch, BURSTS, p50, (double)n / p50 / 1e3);
}

static double least(double a, double b) { return a < b ? a : b; }

static void measure(int first, int wire, int sizes, char **size) {
	double times[EACH], best = 1e18;
	put(0, 0, 8, 0);  // connects
	flush();
	pause_at(wire);
	for (int burst = 0; first && burst < BURSTS; burst++) {
		for (int i = 0; i < EACH; i++) {
			double begun = now();
			put(0, 0, 8, 0);
			flush();
			times[i] = now() - begun;
		}
		best = least(best, median(times, EACH));
	}
	if (first) say("write", 8, 1, best);
	pause_at(wire);
	best = 1e18;
	for (int burst = 0; burst < BURSTS; burst++) {  // as a signal: a request and its data
		for (int i = 0; i < EACH; i++) {
			uint64_t wanted = arrived + 1;
			double begun = now();
			if (first) put(0, 0, SMALL, 1);
			while (arrived < wanted) poll_queue();
			if (!first) put(0, 0, SMALL, 1);
			times[i] = (now() - begun) / 2;
		}
		best = least(best, median(times, EACH));
	}
	flush();
	if (first) say("signal", 0, 1, best);
	for (int s = 0; s < sizes; s++) {
		size_t n = (size_t)atol(size[s]);
		best = 1e18;
		pause_at(wire);
		for (int burst = 0; first && burst < BURSTS; burst++) {
			double begun = now();
			for (int i = 0; i < DEPTH; i++) put((size_t)i * n, bytes / 2 + (size_t)i * n, n, 0);
			flush();
			best = least(best, (now() - begun) / DEPTH);
		}
		if (first) say("stream", n, DEPTH, best);
		best = 1e18;
		for (int burst = 0; burst < BURSTS; burst++) {  // streams both ways at once
			pause_at(wire);
			double begun = now();
			for (int i = 0; i < DEPTH; i++) put((size_t)i * n, bytes / 2 + (size_t)i * n, n, 0);
			flush();
			best = least(best, (now() - begun) / DEPTH);
		}
		if (first) say("exchange", n, DEPTH, best);
		pause_at(wire);
	}
}

int main(int argc, char **argv) {
	if (argc < 3) {
		fprintf(stderr, "usage: %s PROVIDER ADDRESS [BYTES...]\n", argv[0]);
		return 2;
	}
	size_t longest = 4096;
	for (int i = 3; i < argc; i++)
		if ((size_t)atol(argv[i]) > longest) longest = (size_t)atol(argv[i]);
	bytes = 2 * DEPTH * longest;
	int wire[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, wire)) return 1;
	pid_t child = fork();
	if (child < 0) return 1;
	int first = child != 0;
	const char *address = argv[2], *other = getenv("OTHER_NAMESPACE");
	if (!first && other != NULL) {
		int fd = open(other, O_RDONLY);
		if (fd < 0 || setns(fd, CLONE_NEWNET)) {
			perror(other);
			return 1;
		}
		address = getenv("OTHER_ADDRESS");
	}
	memory = calloc(1, bytes);
	memset(memory, 1, bytes);
	open_endpoint(argv[1], address);
	meet(wire[first]);
	measure(first, wire[first], argc - 3, argv + 3);
	int status = 0;
	if (first && (waitpid(child, &status, 0) != child || status)) return 1;
	return 0;
}
