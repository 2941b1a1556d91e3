package verbs

// The libraries' structs, as far as this package reads and writes them. Those that the library makes end where the
// last field is that is read.

type device struct { // ibv_device
	_        [2]uintptr // _ops
	_        [2]int32   // node_type, transport_type
	name     [64]byte
	node     [64]byte  // dev_name
	nodePath [256]byte // dev_path
	path     [256]byte // ibdev_path
}

type portAttr struct { // ibv_port_attr, and room for what it may grow by
	state     int32
	_         int32 // max_mtu
	activeMTU int32
	gids      int32     // gid_tbl_len
	_         [4]uint32 // port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr
	_         uint16    // pkey_tbl_len
	lid       uint16
	_         uint16   // sm_lid
	_         [8]uint8 // lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, _speed, phys_state
	linkLayer uint8
	_         [64]byte
}

type gidEntry struct { // ibv_gid_entry
	gid   [16]byte
	index uint32
	port  uint32
	kind  uint32 // gid_type
	_     uint32 // ndev_ifindex
}

type memoryRegion struct { // ibv_mr
	_         [4]uintptr // context, pd, addr, length
	_         uint32     // handle
	localKey  uint32
	remoteKey uint32
}

type queueCap struct { // ibv_qp_cap
	sends, receives      uint32
	sendParts, recvParts uint32
	inline               uint32
}

type queueInit struct { // ibv_qp_init_attr
	_                             uintptr // qp_context
	sendCompletions, recvComplete uintptr
	shared                        uintptr
	cap                           queueCap
	kind                          int32
	allSignalled                  int32
}

type queuePair struct { // ibv_qp
	_      [6]uintptr // context, qp_context, pd, send_cq, recv_cq, srq
	_      uint32     // handle
	number uint32
}

type route struct { // ibv_global_route
	gid          [16]byte
	flow         uint32
	gidIndex     uint8
	hops         uint8
	trafficClass uint8
	_            uint8
}

type addressVector struct { // ibv_ah_attr
	route  route
	lid    uint16
	level  uint8
	_      [2]uint8 // src_path_bits, static_rate
	global uint8
	port   uint8
	_      uint8
}

type queueAttr struct { // ibv_qp_attr
	_                      [0]uint64 // which aligns it
	state                  int32
	_                      int32 // cur_qp_state
	mtu                    int32
	_                      int32  // path_mig_state
	_                      uint32 // qkey
	recvNumber, sendNumber uint32 // of packets
	peer                   uint32
	access                 uint32
	_                      queueCap
	address                addressVector
	_                      addressVector // alt_ah_attr
	partition              uint16
	_                      uint16   // alt_pkey_index
	_                      [2]uint8 // en_sqd_async_notify, sq_draining
	atomics, peerAtomics   uint8    // max_rd_atomic, max_dest_rd_atomic
	notReadyTimer          uint8
	port                   uint8
	timeout, retries       uint8
	notReadyRetries        uint8
	_                      [2]uint8 // alt_port_num, alt_timeout
	_                      uint32   // rate_limit
}

type mlx5Queue struct { // mlx5dv_qp, and room for what it may grow by
	record   uintptr // dbrec
	send     mlx5Ring
	_        mlx5Ring // rq
	register uintptr  // bf.reg
	half     uint32   // bf.size
	_        uint32
	mask     uint64
	_        [16]uint64
}

type mlx5Ring struct {
	at     uintptr
	count  uint32
	stride uint32
}

type mlx5Completions struct { // mlx5dv_cq, and room for what it may grow by
	at     uintptr
	record uintptr
	count  uint32
	size   uint32
	_      uintptr // cq_uar
	number uint32
	_      uint32
	mask   uint64
	_      [16]uint64
}

type mlx5Object struct { // mlx5dv_obj, and room for what it may grow by
	queue, queueOut             uintptr
	completions, completionsOut uintptr
	_                           [16]uintptr
}

// The libraries' constants.
const (
	objectQueue       = 0x1 // MLX5DV_OBJ_QP
	objectCompletions = 0x2 // MLX5DV_OBJ_CQ

	reliable = 0x2 // IBV_QPT_RC

	stateInit    = 0x1 // IBV_QPS_INIT
	stateReceive = 0x2 // IBV_QPS_RTR
	stateSend    = 0x3 // IBV_QPS_RTS

	maskState         = 0x1      // IBV_QP_STATE
	maskAccess        = 0x8      // IBV_QP_ACCESS_FLAGS
	maskPartition     = 0x10     // IBV_QP_PKEY_INDEX
	maskPort          = 0x20     // IBV_QP_PORT
	maskAddress       = 0x80     // IBV_QP_AV
	maskMTU           = 0x100    // IBV_QP_PATH_MTU
	maskTimeout       = 0x200    // IBV_QP_TIMEOUT
	maskRetries       = 0x400    // IBV_QP_RETRY_CNT
	maskNotReady      = 0x800    // IBV_QP_RNR_RETRY
	maskRecvNumber    = 0x1000   // IBV_QP_RQ_PSN
	maskAtomics       = 0x2000   // IBV_QP_MAX_QP_RD_ATOMIC
	maskNotReadyTimer = 0x8000   // IBV_QP_MIN_RNR_TIMER
	maskSendNumber    = 0x10000  // IBV_QP_SQ_PSN
	maskPeerAtomics   = 0x20000  // IBV_QP_MAX_DEST_RD_ATOMIC
	maskPeer          = 0x100000 // IBV_QP_DEST_QPN

	accessLocalWrite   = 0x1 // IBV_ACCESS_LOCAL_WRITE
	accessRemoteWrite  = 0x2 // IBV_ACCESS_REMOTE_WRITE
	accessRemoteAtomic = 0x8 // IBV_ACCESS_REMOTE_ATOMIC

	portActive = 0x4 // IBV_PORT_ACTIVE

	linkInfiniBand = 0x1 // IBV_LINK_LAYER_INFINIBAND
	linkEthernet   = 0x2 // IBV_LINK_LAYER_ETHERNET

	gidInfiniBand = 0x0 // IBV_GID_TYPE_IB
	gidRoCE1      = 0x1 // IBV_GID_TYPE_ROCE_V1
	gidRoCE2      = 0x2 // IBV_GID_TYPE_ROCE_V2

	mtu256  = 0x1 // IBV_MTU_256
	mtu4096 = 0x5 // IBV_MTU_4096
)
