package sys

// Memory that a [Location] or an [AllocationProp] speaks of.
const (
	MemLocationTypeDevice     = 1 // CU_MEM_LOCATION_TYPE_DEVICE
	MemAllocationTypePinned   = 1 // CU_MEM_ALLOCATION_TYPE_PINNED
	MemHandleTypeNone         = 0 // CU_MEM_HANDLE_TYPE_NONE
	MemHandleTypePosixFD      = 1 // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
	MemHandleTypeFabric       = 8 // CU_MEM_HANDLE_TYPE_FABRIC
	MemAccessProtRead         = 1 // CU_MEM_ACCESS_FLAGS_PROT_READ
	MemAccessProtReadWrite    = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	MemGranularityMinimum     = 0 // CU_MEM_ALLOC_GRANULARITY_MINIMUM
	MemGranularityRecommended = 1 // CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
	MulticastGranularityLeast = 0 // CU_MULTICAST_GRANULARITY_MINIMUM
	MemRangeHandleDMABuf      = 1 // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
)

// What a flush of a network adapter's writes is for, and how far they are to be seen.
const (
	FlushTargetContext = 0   // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX
	FlushToOwner       = 100 // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER
	WritesOrderedOwner = 100 // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
)

// Flags of host memory.
const (
	MemHostAllocPortable      = 1 // CU_MEMHOSTALLOC_PORTABLE
	MemHostAllocDeviceMap     = 2 // CU_MEMHOSTALLOC_DEVICEMAP
	MemHostAllocWriteCombined = 4 // CU_MEMHOSTALLOC_WRITECOMBINED
	MemHostRegisterPortable   = 1 // CU_MEMHOSTREGISTER_PORTABLE
	MemHostRegisterDeviceMap  = 2 // CU_MEMHOSTREGISTER_DEVICEMAP
	MemHostRegisterIOMemory   = 4 // CU_MEMHOSTREGISTER_IOMEMORY
	MemHostRegisterReadOnly   = 8 // CU_MEMHOSTREGISTER_READ_ONLY
)

// Attributes of pointers, and the values of the memory type's attribute.
const (
	PointerContext            = 1  // CU_POINTER_ATTRIBUTE_CONTEXT
	PointerMemoryType         = 2  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
	PointerDevicePointer      = 3  // CU_POINTER_ATTRIBUTE_DEVICE_POINTER
	PointerIsManaged          = 8  // CU_POINTER_ATTRIBUTE_IS_MANAGED
	PointerDeviceOrdinal      = 9  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
	PointerRangeStart         = 11 // CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
	PointerRangeSize          = 12 // CU_POINTER_ATTRIBUTE_RANGE_SIZE
	PointerMapped             = 13 // CU_POINTER_ATTRIBUTE_MAPPED
	PointerAllowedHandleTypes = 14 // CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
	PointerIsLegacyIPCCapable = 10 // CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
	MemoryTypeHost            = 1  // CU_MEMORYTYPE_HOST
	MemoryTypeDevice          = 2  // CU_MEMORYTYPE_DEVICE
)

// Streams, events, capture.
const (
	StreamNonBlocking       = 1 // CU_STREAM_NON_BLOCKING
	EventBlockingSync       = 1 // CU_EVENT_BLOCKING_SYNC
	EventDisableTiming      = 2 // CU_EVENT_DISABLE_TIMING
	CaptureGlobal           = 0 // CU_STREAM_CAPTURE_MODE_GLOBAL
	CaptureThreadLocal      = 1 // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
	CaptureRelaxed          = 2 // CU_STREAM_CAPTURE_MODE_RELAXED
	CaptureNone             = 0 // CU_STREAM_CAPTURE_STATUS_NONE
	CaptureActive           = 1 // CU_STREAM_CAPTURE_STATUS_ACTIVE
	CaptureInvalidated      = 2 // CU_STREAM_CAPTURE_STATUS_INVALIDATED
	IpcLazyEnablePeerAccess = 1 // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
)

// Modules and launches.
const (
	JITErrorLogBuffer                     = 5  // CU_JIT_ERROR_LOG_BUFFER
	JITErrorLogBufferSizeBytes            = 6  // CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
	FuncMaxThreadsPerBlock                = 0  // CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
	FuncSharedSizeBytes                   = 1  // CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
	FuncConstSizeBytes                    = 2  // CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES
	FuncLocalSizeBytes                    = 3  // CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
	FuncNumRegs                           = 4  // CU_FUNC_ATTRIBUTE_NUM_REGS
	FuncPTXVersion                        = 5  // CU_FUNC_ATTRIBUTE_PTX_VERSION
	FuncBinaryVersion                     = 6  // CU_FUNC_ATTRIBUTE_BINARY_VERSION
	FuncMaxDynamicSharedSizeBytes         = 8  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
	FuncPreferredSharedMemoryCarveout     = 9  // CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
	FuncNonPortableClusterSizeAllowed     = 14 // CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
	LaunchCooperative                     = 2  // CU_LAUNCH_ATTRIBUTE_COOPERATIVE
	LaunchClusterDimension                = 4  // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
	LaunchProgrammaticStreamSerialization = 6  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
)

// Between two devices.
const (
	P2PPerformanceRank       = 1 // CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK
	P2PAccessSupported       = 2 // CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
	P2PNativeAtomicSupported = 3 // CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
)
