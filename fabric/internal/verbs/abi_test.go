package verbs

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft/internal/abitest"
)

var update = flag.Bool("update", false, "write testdata/abi.txt anew")

func TestLayouts(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("the layouts are those of 64-bit systems")
	}
	var (
		dev  device
		port portAttr
		gid  gidEntry
		mr   memoryRegion
		c    queueCap
		init queueInit
		qp   queuePair
		r    route
		ah   addressVector
		attr queueAttr
		q    mlx5Queue
		cq   mlx5Completions
		o    mlx5Object
	)
	all := abitest.Read(t, "testdata/abi.txt")
	sizes := map[string]uint64{
		"ibv_gid_entry": uint64(unsafe.Sizeof(gid)), "ibv_qp_cap": uint64(unsafe.Sizeof(c)),
		"ibv_qp_init_attr": uint64(unsafe.Sizeof(init)), "ibv_global_route": uint64(unsafe.Sizeof(r)),
		"ibv_ah_attr": uint64(unsafe.Sizeof(ah)), "ibv_qp_attr": uint64(unsafe.Sizeof(attr)),
	}
	if diff := cmp.Diff(all["size"], sizes); diff != "" {
		t.Errorf("sizes (-C +Go):\n%s", diff)
	}
	got := map[string]uint64{}
	for name, offset := range map[string]uintptr{
		"ibv_device.name": unsafe.Offsetof(dev.name), "ibv_device.dev_name": unsafe.Offsetof(dev.node),
		"ibv_device.dev_path": unsafe.Offsetof(dev.nodePath), "ibv_device.ibdev_path": unsafe.Offsetof(dev.path),

		"ibv_port_attr.state": unsafe.Offsetof(port.state), "ibv_port_attr.active_mtu": unsafe.Offsetof(port.activeMTU),
		"ibv_port_attr.gid_tbl_len": unsafe.Offsetof(port.gids), "ibv_port_attr.lid": unsafe.Offsetof(port.lid),
		"ibv_port_attr.link_layer": unsafe.Offsetof(port.linkLayer),

		"ibv_gid_entry.gid": unsafe.Offsetof(gid.gid), "ibv_gid_entry.gid_index": unsafe.Offsetof(gid.index),
		"ibv_gid_entry.port_num": unsafe.Offsetof(gid.port), "ibv_gid_entry.gid_type": unsafe.Offsetof(gid.kind),

		"ibv_mr.lkey": unsafe.Offsetof(mr.localKey), "ibv_mr.rkey": unsafe.Offsetof(mr.remoteKey),

		"ibv_qp_cap.max_send_wr": unsafe.Offsetof(c.sends), "ibv_qp_cap.max_recv_wr": unsafe.Offsetof(c.receives),
		"ibv_qp_cap.max_send_sge": unsafe.Offsetof(c.sendParts), "ibv_qp_cap.max_recv_sge": unsafe.Offsetof(c.recvParts),
		"ibv_qp_cap.max_inline_data": unsafe.Offsetof(c.inline),

		"ibv_qp_init_attr.send_cq": unsafe.Offsetof(init.sendCompletions),
		"ibv_qp_init_attr.recv_cq": unsafe.Offsetof(init.recvComplete), "ibv_qp_init_attr.srq": unsafe.Offsetof(init.shared),
		"ibv_qp_init_attr.cap": unsafe.Offsetof(init.cap), "ibv_qp_init_attr.qp_type": unsafe.Offsetof(init.kind),
		"ibv_qp_init_attr.sq_sig_all": unsafe.Offsetof(init.allSignalled), "ibv_qp.qp_num": unsafe.Offsetof(qp.number),

		"ibv_global_route.dgid": unsafe.Offsetof(r.gid), "ibv_global_route.flow_label": unsafe.Offsetof(r.flow),
		"ibv_global_route.sgid_index": unsafe.Offsetof(r.gidIndex), "ibv_global_route.hop_limit": unsafe.Offsetof(r.hops),
		"ibv_global_route.traffic_class": unsafe.Offsetof(r.trafficClass),

		"ibv_ah_attr.grh": unsafe.Offsetof(ah.route), "ibv_ah_attr.dlid": unsafe.Offsetof(ah.lid),
		"ibv_ah_attr.sl": unsafe.Offsetof(ah.level), "ibv_ah_attr.is_global": unsafe.Offsetof(ah.global),
		"ibv_ah_attr.port_num": unsafe.Offsetof(ah.port),

		"ibv_qp_attr.qp_state": unsafe.Offsetof(attr.state), "ibv_qp_attr.path_mtu": unsafe.Offsetof(attr.mtu),
		"ibv_qp_attr.rq_psn": unsafe.Offsetof(attr.recvNumber), "ibv_qp_attr.sq_psn": unsafe.Offsetof(attr.sendNumber),
		"ibv_qp_attr.dest_qp_num": unsafe.Offsetof(attr.peer), "ibv_qp_attr.qp_access_flags": unsafe.Offsetof(attr.access),
		"ibv_qp_attr.ah_attr": unsafe.Offsetof(attr.address), "ibv_qp_attr.pkey_index": unsafe.Offsetof(attr.partition),
		"ibv_qp_attr.max_rd_atomic":      unsafe.Offsetof(attr.atomics),
		"ibv_qp_attr.max_dest_rd_atomic": unsafe.Offsetof(attr.peerAtomics),
		"ibv_qp_attr.min_rnr_timer":      unsafe.Offsetof(attr.notReadyTimer),
		"ibv_qp_attr.port_num":           unsafe.Offsetof(attr.port), "ibv_qp_attr.timeout": unsafe.Offsetof(attr.timeout),
		"ibv_qp_attr.retry_cnt": unsafe.Offsetof(attr.retries),
		"ibv_qp_attr.rnr_retry": unsafe.Offsetof(attr.notReadyRetries),

		"mlx5dv_qp.dbrec":      unsafe.Offsetof(q.record),
		"mlx5dv_qp.sq.buf":     unsafe.Offsetof(q.send) + unsafe.Offsetof(q.send.at),
		"mlx5dv_qp.sq.wqe_cnt": unsafe.Offsetof(q.send) + unsafe.Offsetof(q.send.count),
		"mlx5dv_qp.sq.stride":  unsafe.Offsetof(q.send) + unsafe.Offsetof(q.send.stride),
		"mlx5dv_qp.bf.reg":     unsafe.Offsetof(q.register), "mlx5dv_qp.bf.size": unsafe.Offsetof(q.half),
		"mlx5dv_qp.comp_mask": unsafe.Offsetof(q.mask),

		"mlx5dv_cq.buf": unsafe.Offsetof(cq.at), "mlx5dv_cq.dbrec": unsafe.Offsetof(cq.record),
		"mlx5dv_cq.cqe_cnt": unsafe.Offsetof(cq.count), "mlx5dv_cq.cqe_size": unsafe.Offsetof(cq.size),
		"mlx5dv_cq.cqn": unsafe.Offsetof(cq.number), "mlx5dv_cq.comp_mask": unsafe.Offsetof(cq.mask),

		"mlx5dv_obj.qp.in": unsafe.Offsetof(o.queue), "mlx5dv_obj.qp.out": unsafe.Offsetof(o.queueOut),
		"mlx5dv_obj.cq.in": unsafe.Offsetof(o.completions), "mlx5dv_obj.cq.out": unsafe.Offsetof(o.completionsOut),
	} {
		got[name] = uint64(offset)
	}
	if diff := cmp.Diff(all["offset"], got); diff != "" {
		t.Errorf("offsets (-C +Go):\n%s", diff)
	}
}

// TestConstants reads the source: every line that names a constant of the libraries' must have its value.
func TestConstants(t *testing.T) {
	got := abitest.Constants(t, "abi.go", "IBV_", "MLX5DV_")
	if diff := cmp.Diff(abitest.Read(t, "testdata/abi.txt")["value"], got); diff != "" {
		t.Errorf("-C +Go:\n%s", diff)
	}
}

// TestHeaders compares testdata/abi.txt with the headers that are installed, if some are. With -update it writes it.
func TestHeaders(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	program := filepath.Join(t.TempDir(), "abi")
	out, err := exec.CommandContext(t.Context(), cc, "-o", program, "testdata/abi.c").CombinedOutput()
	if err != nil && bytes.Contains(out, []byte("infiniband/mlx5dv.h: No such file")) {
		t.Skip("needs the headers of libibverbs and libmlx5 (Debian: libibverbs-dev)")
	}
	if err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	if out, err = exec.CommandContext(t.Context(), program).Output(); err != nil {
		t.Fatal(err)
	}
	if *update {
		const head = "# What a C compiler makes of the headers of libibverbs and libmlx5 of rdma-core 44 on 64-bit " +
			"Linux, by abi.c.\n"
		if err := os.WriteFile("testdata/abi.txt", append([]byte(head), out...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(abitest.Parse(t, bytes.NewReader(out)), abitest.Read(t, "testdata/abi.txt")); diff != "" {
		t.Errorf("-headers +abi.txt:\n%s", diff)
	}
}
