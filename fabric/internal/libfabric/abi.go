package libfabric

import (
	"unsafe"

	"github.com/weftgo/weft/internal/dl"
)

// The library's structs, as far as this package reads and writes them: libfabric has only appended
// fields to them from 1.17 to 2.6. All but cqEntry, cqError, cqAttr and avAttr are made by the library.

// A table of functions begins with its own size in bytes.
type table struct {
	size  uint64
	slots [15]dl.Func
}

// at is the function at an offset, or 0 if the provider's table ends before it.
func (t *table) at(offset uintptr) dl.Func {
	if t == nil || t.size < uint64(offset)+8 {
		return 0
	}
	return t.slots[offset/8-1]
}

// object is what all objects of the library begin with.
type object struct {
	class   uint64
	context uintptr
	ops     *table
}

type (
	fabricObject struct {
		object
		fabric *table
	}
	domainObject struct {
		object
		domain *table
		mr     *table
	}
	endpointObject struct {
		object
		ep, cm, msg, rma *table
	}
	queueObject struct { // fid_cq
		object
		cq *table
	}
	addressObject struct { // fid_av
		object
		av *table
	}
	memoryObject struct { // fid_mr
		object
		descriptor uintptr
		key        uint64
	}
)

type info struct {
	next            *info
	caps, mode      uint64
	addressFormat   uint32
	_               uint32
	sourceLength    uint64
	destLength      uint64
	source, dest    unsafe.Pointer
	handle          uintptr
	tx, rx          *transferAttr
	ep              *endpointAttr
	domain          *domainAttr
	fabric          *fabricAttr
	networkHardware uintptr
}

// transferAttr is fi_tx_attr and, up to compOrder, fi_rx_attr.
type transferAttr struct {
	caps, mode, opFlags uint64
	order, compOrder    uint64
	injectSize          uint64
	size                uint64
}

type endpointAttr struct {
	kind         uint32
	_            [3]uint32
	maxMessage   uint64
	_            [3]uint64
	maxOrderedWW uint64 // max_order_waw_size
}

type domainAttr struct {
	domain          uintptr
	name            *byte
	threading       uint32
	controlProgress uint32
	dataProgress    uint32
	resourceMgmt    uint32
	avType          uint32
	mrMode          uint32
	mrKeySize       uint64
	cqDataSize      uint64
	_               [10]uint64
	caps            uint64
}

type fabricAttr struct {
	_               uintptr // fabric
	name            *byte
	provider        *byte
	providerVersion uint32
	apiVersion      uint32
}

type cqAttr struct {
	size   uint64
	flags  uint64
	format uint32
	wait   uint32
	_      [2]uint64
}

type avAttr struct {
	kind  uint32
	_     uint32
	count uint64
	_     [4]uint64
}

// message is fi_msg_rma, of one part here and one there.
type message struct {
	local       *iovec
	descriptor  *uintptr
	locals      uint64
	to          uint64
	remote      *remoteIovec
	remotes     uint64
	context     uintptr
	data        uint64
	localPart   iovec // what the pointers point at
	remotePart  remoteIovec
	descriptors [1]uintptr
}

type iovec struct {
	base   unsafe.Pointer
	length uint64
}

type remoteIovec struct { // fi_rma_iov
	address, length, key uint64
}

type cqEntry struct { // fi_cq_data_entry
	context uintptr
	flags   uint64
	length  uint64
	buffer  uintptr
	data    uint64
}

type cqError struct { // fi_cq_err_entry, with room for fields to come
	context      uintptr
	flags        uint64
	_            [2]uint64 // length and buffer
	data         uint64
	_            uint64 // tag
	overflow     uint64
	code         int32
	providerCode int32
	detail       uintptr
	detailLength uint64
	_            [6]uint64
}

// vector is struct iovec.
type vector struct {
	base   uintptr
	length uint64
}

type dmaBuf struct { // fi_mr_dmabuf
	fd     int32
	_      uint32
	offset uint64
	length uint64
	base   uintptr // of the dma-buf, whose bytes have the address of the first one and on
}

// memoryAttr is fi_mr_attr. Versions before 1.20 read less of it.
type memoryAttr struct {
	where         uintptr // of vectors, or of one dmaBuf
	count         uint64
	access        uint64
	offset        uint64
	key           uint64
	context       uintptr
	authKeyLength uint64
	authKey       uintptr
	device        uint32 // its kind: iface
	_             uint32
	ordinal       uint64
	data          uintptr
	pageSize      uint64
	base          uintptr
	parts         uint64
}

// Offsets in tables of functions.
const (
	opClose   = 8  // fi_ops.close
	opBind    = 16 // fi_ops.bind
	opControl = 24 // fi_ops.control

	opDomain  = 8  // fi_ops_fabric.domain
	opTrywait = 40 // fi_ops_fabric.trywait

	opAVOpen   = 8  // fi_ops_domain.av_open
	opCQOpen   = 16 // fi_ops_domain.cq_open
	opEndpoint = 24 // fi_ops_domain.endpoint
	opRegister = 8  // fi_ops_mr.reg
	opRegAttr  = 24 // fi_ops_mr.regattr

	opGetname   = 16 // fi_ops_cm.getname
	opInsert    = 8  // fi_ops_av.insert
	opRemove    = 32 // fi_ops_av.remove
	opWrite     = 32 // fi_ops_rma.write
	opWriteMsg  = 48 // fi_ops_rma.writemsg
	opWriteData = 64 // fi_ops_rma.writedata
	opRead      = 8  // fi_ops_cq.read
	opReadErr   = 24 // fi_ops_cq.readerr
	opStrerror  = 56 // fi_ops_cq.strerror
)

// The library's constants.
const (
	capMessage = 0x2               // FI_MSG
	capRMA     = 0x4               // FI_RMA
	capDevices = 0x800000000000    // FI_HMEM
	flagSource = 0x200000000000000 // FI_SOURCE

	accessRead        = 0x100  // FI_READ
	accessWrite       = 0x200  // FI_WRITE
	accessRemoteWrite = 0x2000 // FI_REMOTE_WRITE
	bindReceive       = 0x400  // FI_RECV
	bindTransmit      = 0x800  // FI_TRANSMIT

	flagRemoteData = 0x20000    // FI_REMOTE_CQ_DATA
	flagCompletion = 0x1000000  // FI_COMPLETION
	flagDelivery   = 0x10000000 // FI_DELIVERY_COMPLETE

	flagDMABuf = 0x10000000000 // FI_MR_DMABUF
	deviceCUDA = 0x1           // FI_HMEM_CUDA

	modeContext  = 0x800000000000000 // FI_CONTEXT
	modeContext2 = 0x10000000000000  // FI_CONTEXT2

	mrLocal     = 0x4   // FI_MR_LOCAL
	mrVirtual   = 0x10  // FI_MR_VIRT_ADDR
	mrAllocated = 0x20  // FI_MR_ALLOCATED
	mrKey       = 0x40  // FI_MR_PROV_KEY
	mrEvent     = 0x100 // FI_MR_RMA_EVENT
	mrEndpoint  = 0x200 // FI_MR_ENDPOINT
	mrDevices   = 0x400 // FI_MR_HMEM

	orderWritesAfterWrites = 0x10 // FI_ORDER_WAW

	endpointReliable = 0x3 // FI_EP_RDM
	threadDomain     = 0x3 // FI_THREAD_DOMAIN
	progressManual   = 0x2 // FI_PROGRESS_MANUAL
	formatData       = 0x3 // FI_CQ_FORMAT_DATA
	waitFD           = 0x3 // FI_WAIT_FD
	controlGetWait   = 0x5 // FI_GETWAIT
	controlEnable    = 0x6 // FI_ENABLE

	codeAgain     = 0xb   // FI_EAGAIN
	codeAvailable = 0x103 // FI_EAVAIL
	codeNoData    = 0x3d  // FI_ENODATA

	codeNoFunction = 0x26 // FI_ENOSYS
)

// resourcesEnabled is FI_RM_ENABLED: a full queue answers FI_EAGAIN.
const resourcesEnabled = 2

// apiVersion is the interface that this package asks for: 1.17, as FI_VERSION makes it.
const apiVersion = 1<<16 | 17

// dmaBufVersion has dma-bufs, and is asked for where memory of GPUs is.
const dmaBufVersion = 1<<16 | 20
