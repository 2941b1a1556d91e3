package libfabric

import (
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft/internal/abitest"
)

func TestLayouts(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("the layouts are those of 64-bit systems")
	}
	var (
		fab  fabricObject
		dom  domainObject
		ep   endpointObject
		cq   queueObject
		av   addressObject
		mr   memoryObject
		i    info
		tx   transferAttr
		ea   endpointAttr
		da   domainAttr
		fa   fabricAttr
		cqa  cqAttr
		ava  avAttr
		e    cqEntry
		fail cqError
		iov  vector
		buf  dmaBuf
		mra  memoryAttr
		msg  message
	)
	all := abitest.Read(t, "testdata/abi.txt")
	sizes := map[string]uint64{
		"fi_cq_attr": uint64(unsafe.Sizeof(cqa)), "fi_av_attr": uint64(unsafe.Sizeof(ava)),
		"fi_cq_data_entry": uint64(unsafe.Sizeof(e)), "fi_context2": contextLen,
		"iovec": uint64(unsafe.Sizeof(iov)), "fi_mr_dmabuf": uint64(unsafe.Sizeof(buf)),
		"fi_mr_attr": uint64(unsafe.Sizeof(mra)),
	}
	if diff := cmp.Diff(all["size"], sizes); diff != "" {
		t.Errorf("sizes (-C +Go):\n%s", diff)
	}
	offsets := map[string]uintptr{
		"fid.fclass": unsafe.Offsetof(fab.class), "fid.context": unsafe.Offsetof(fab.context),
		"fid.ops": unsafe.Offsetof(fab.ops), "fid_fabric.ops": unsafe.Offsetof(fab.fabric),
		"fid_domain.ops": unsafe.Offsetof(dom.domain), "fid_domain.mr": unsafe.Offsetof(dom.mr),
		"fid_ep.ops": unsafe.Offsetof(ep.ep), "fid_ep.cm": unsafe.Offsetof(ep.cm),
		"fid_ep.msg": unsafe.Offsetof(ep.msg), "fid_ep.rma": unsafe.Offsetof(ep.rma),
		"fid_cq.ops": unsafe.Offsetof(cq.cq), "fid_av.ops": unsafe.Offsetof(av.av),
		"fid_mr.mem_desc": unsafe.Offsetof(mr.descriptor), "fid_mr.key": unsafe.Offsetof(mr.key),

		"fi_info.next": unsafe.Offsetof(i.next), "fi_info.caps": unsafe.Offsetof(i.caps),
		"fi_info.mode": unsafe.Offsetof(i.mode), "fi_info.addr_format": unsafe.Offsetof(i.addressFormat),
		"fi_info.src_addrlen": unsafe.Offsetof(i.sourceLength), "fi_info.dest_addrlen": unsafe.Offsetof(i.destLength),
		"fi_info.src_addr": unsafe.Offsetof(i.source), "fi_info.dest_addr": unsafe.Offsetof(i.dest),
		"fi_info.handle": unsafe.Offsetof(i.handle), "fi_info.tx_attr": unsafe.Offsetof(i.tx),
		"fi_info.rx_attr": unsafe.Offsetof(i.rx), "fi_info.ep_attr": unsafe.Offsetof(i.ep),
		"fi_info.domain_attr": unsafe.Offsetof(i.domain), "fi_info.fabric_attr": unsafe.Offsetof(i.fabric),
		"fi_info.nic": unsafe.Offsetof(i.networkHardware),

		"fi_tx_attr.caps": unsafe.Offsetof(tx.caps), "fi_tx_attr.mode": unsafe.Offsetof(tx.mode),
		"fi_tx_attr.op_flags": unsafe.Offsetof(tx.opFlags), "fi_tx_attr.msg_order": unsafe.Offsetof(tx.order),
		"fi_tx_attr.comp_order": unsafe.Offsetof(tx.compOrder), "fi_tx_attr.inject_size": unsafe.Offsetof(tx.injectSize),
		"fi_tx_attr.size": unsafe.Offsetof(tx.size),
		"fi_rx_attr.caps": unsafe.Offsetof(tx.caps), "fi_rx_attr.mode": unsafe.Offsetof(tx.mode),
		"fi_rx_attr.op_flags": unsafe.Offsetof(tx.opFlags), "fi_rx_attr.msg_order": unsafe.Offsetof(tx.order),
		"fi_rx_attr.comp_order": unsafe.Offsetof(tx.compOrder),
		"fi_ep_attr.type":       unsafe.Offsetof(ea.kind), "fi_ep_attr.max_msg_size": unsafe.Offsetof(ea.maxMessage),
		"fi_ep_attr.max_order_waw_size": unsafe.Offsetof(ea.maxOrderedWW),

		"fi_domain_attr.domain": unsafe.Offsetof(da.domain), "fi_domain_attr.name": unsafe.Offsetof(da.name),
		"fi_domain_attr.threading":        unsafe.Offsetof(da.threading),
		"fi_domain_attr.control_progress": unsafe.Offsetof(da.controlProgress),
		"fi_domain_attr.data_progress":    unsafe.Offsetof(da.dataProgress),
		"fi_domain_attr.resource_mgmt":    unsafe.Offsetof(da.resourceMgmt),
		"fi_domain_attr.av_type":          unsafe.Offsetof(da.avType), "fi_domain_attr.mr_mode": unsafe.Offsetof(da.mrMode),
		"fi_domain_attr.mr_key_size":  unsafe.Offsetof(da.mrKeySize),
		"fi_domain_attr.cq_data_size": unsafe.Offsetof(da.cqDataSize), "fi_domain_attr.caps": unsafe.Offsetof(da.caps),
		"fi_fabric_attr.name": unsafe.Offsetof(fa.name), "fi_fabric_attr.prov_name": unsafe.Offsetof(fa.provider),
		"fi_fabric_attr.prov_version": unsafe.Offsetof(fa.providerVersion),
		"fi_fabric_attr.api_version":  unsafe.Offsetof(fa.apiVersion),

		"fi_cq_attr.size": unsafe.Offsetof(cqa.size), "fi_cq_attr.flags": unsafe.Offsetof(cqa.flags),
		"fi_cq_attr.format": unsafe.Offsetof(cqa.format), "fi_cq_attr.wait_obj": unsafe.Offsetof(cqa.wait),
		"fi_av_attr.type": unsafe.Offsetof(ava.kind), "fi_av_attr.count": unsafe.Offsetof(ava.count),
		"fi_cq_data_entry.op_context": unsafe.Offsetof(e.context), "fi_cq_data_entry.flags": unsafe.Offsetof(e.flags),
		"fi_cq_data_entry.len": unsafe.Offsetof(e.length), "fi_cq_data_entry.buf": unsafe.Offsetof(e.buffer),
		"fi_cq_data_entry.data":      unsafe.Offsetof(e.data),
		"fi_cq_err_entry.op_context": unsafe.Offsetof(fail.context), "fi_cq_err_entry.flags": unsafe.Offsetof(fail.flags),
		"fi_cq_err_entry.data": unsafe.Offsetof(fail.data), "fi_cq_err_entry.olen": unsafe.Offsetof(fail.overflow),
		"fi_cq_err_entry.err":           unsafe.Offsetof(fail.code),
		"fi_cq_err_entry.prov_errno":    unsafe.Offsetof(fail.providerCode),
		"fi_cq_err_entry.err_data":      unsafe.Offsetof(fail.detail),
		"fi_cq_err_entry.err_data_size": unsafe.Offsetof(fail.detailLength),

		"iovec.iov_base": unsafe.Offsetof(iov.base), "iovec.iov_len": unsafe.Offsetof(iov.length),
		"fi_mr_dmabuf.fd": unsafe.Offsetof(buf.fd), "fi_mr_dmabuf.offset": unsafe.Offsetof(buf.offset),
		"fi_mr_dmabuf.len": unsafe.Offsetof(buf.length), "fi_mr_dmabuf.base_addr": unsafe.Offsetof(buf.base),
		"fi_mr_attr.mr_iov": unsafe.Offsetof(mra.where), "fi_mr_attr.iov_count": unsafe.Offsetof(mra.count),
		"fi_mr_attr.access": unsafe.Offsetof(mra.access), "fi_mr_attr.offset": unsafe.Offsetof(mra.offset),
		"fi_mr_attr.requested_key": unsafe.Offsetof(mra.key), "fi_mr_attr.context": unsafe.Offsetof(mra.context),
		"fi_mr_attr.auth_key_size": unsafe.Offsetof(mra.authKeyLength),
		"fi_mr_attr.auth_key":      unsafe.Offsetof(mra.authKey), "fi_mr_attr.iface": unsafe.Offsetof(mra.device),
		"fi_mr_attr.device": unsafe.Offsetof(mra.ordinal), "fi_mr_attr.hmem_data": unsafe.Offsetof(mra.data),
		"fi_mr_attr.page_size": unsafe.Offsetof(mra.pageSize), "fi_mr_attr.base_mr": unsafe.Offsetof(mra.base),
		"fi_mr_attr.sub_mr_cnt": unsafe.Offsetof(mra.parts),

		"fi_ops.close": opClose, "fi_ops.bind": opBind, "fi_ops.control": opControl,
		"fi_ops_fabric.domain": opDomain, "fi_ops_fabric.trywait": opTrywait,
		"fi_ops_domain.av_open": opAVOpen, "fi_ops_domain.cq_open": opCQOpen, "fi_ops_domain.endpoint": opEndpoint,
		"fi_ops_mr.reg": opRegister, "fi_ops_mr.regattr": opRegAttr,
		"fi_ops_cm.getname": opGetname, "fi_ops_av.insert": opInsert,
		"fi_ops_av.remove": opRemove, "fi_ops_rma.write": opWrite, "fi_ops_rma.writedata": opWriteData,
		"fi_ops_rma.writemsg": opWriteMsg, "fi_msg_rma.msg_iov": unsafe.Offsetof(msg.local),
		"fi_msg_rma.desc": unsafe.Offsetof(msg.descriptor), "fi_msg_rma.iov_count": unsafe.Offsetof(msg.locals),
		"fi_msg_rma.addr": unsafe.Offsetof(msg.to), "fi_msg_rma.rma_iov": unsafe.Offsetof(msg.remote),
		"fi_msg_rma.rma_iov_count": unsafe.Offsetof(msg.remotes), "fi_msg_rma.context": unsafe.Offsetof(msg.context),
		"fi_msg_rma.data": unsafe.Offsetof(msg.data),
		"fi_ops_cq.read":  opRead, "fi_ops_cq.readerr": opReadErr, "fi_ops_cq.strerror": opStrerror,
	}
	got := map[string]uint64{}
	for name, offset := range offsets {
		got[name] = uint64(offset)
	}
	if diff := cmp.Diff(all["offset"], got); diff != "" {
		t.Errorf("offsets (-C +Go):\n%s", diff)
	}
}

// TestConstants reads the source: every line that names a constant of the library's must have its value.
func TestConstants(t *testing.T) {
	got := abitest.Constants(t, "abi.go", "FI_")
	if diff := cmp.Diff(abitest.Read(t, "testdata/abi.txt")["value"], got); diff != "" {
		t.Errorf("-C +Go:\n%s", diff)
	}
}

// TestTable: what lies beyond a table's end does not exist.
func TestTable(t *testing.T) {
	short := &table{size: 32}
	short.slots[2], short.slots[3] = 7, 9
	if short.at(24) != 7 || short.at(32) != 0 || (*table)(nil).at(8) != 0 {
		t.Errorf("%d, %d, %d", short.at(24), short.at(32), (*table)(nil).at(8))
	}
}
