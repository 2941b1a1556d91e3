package cuda

// Attribute names an integer property of a device.
type Attribute int32

// The attributes that a program which moves data asks for. Sizes are bytes, rates are kHz, widths
// are bits; capabilities are 1 or 0.
const (
	MaxThreadsPerBlock            Attribute = 1   // CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
	MaxGridX                      Attribute = 5   // CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X
	SharedMemoryPerBlock          Attribute = 8   // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK
	SharedMemoryPerBlockOptIn     Attribute = 97  // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
	SharedMemoryPerMultiprocessor Attribute = 81  // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
	ReservedSharedMemoryPerBlock  Attribute = 111 // CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK
	WarpSize                      Attribute = 10  // CU_DEVICE_ATTRIBUTE_WARP_SIZE
	RegistersPerBlock             Attribute = 12  // CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK
	RegistersPerMultiprocessor    Attribute = 82  // CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR
	ThreadsPerMultiprocessor      Attribute = 39  // CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR
	BlocksPerMultiprocessor       Attribute = 106 // CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR
	MultiprocessorCount           Attribute = 16  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
	ComputeCapabilityMajor        Attribute = 75  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
	ComputeCapabilityMinor        Attribute = 76  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
	ClockRate                     Attribute = 13  // CU_DEVICE_ATTRIBUTE_CLOCK_RATE
	MemoryClockRate               Attribute = 36  // CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE
	MemoryBusWidth                Attribute = 37  // CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH
	L2CacheSize                   Attribute = 38  // CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
	Integrated                    Attribute = 18  // CU_DEVICE_ATTRIBUTE_INTEGRATED
	ComputeMode                   Attribute = 20  // CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
	ECCEnabled                    Attribute = 32  // CU_DEVICE_ATTRIBUTE_ECC_ENABLED
	KernelTimeout                 Attribute = 17  // CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT
	CopyEngines                   Attribute = 40  // CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT
	PCIDomainID                   Attribute = 50  // CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID
	PCIBusNumber                  Attribute = 33  // CU_DEVICE_ATTRIBUTE_PCI_BUS_ID
	PCIDeviceNumber               Attribute = 34  // CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID
	StreamPriorities              Attribute = 78  // CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
	CooperativeLaunch             Attribute = 95  // CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
	ClusterLaunch                 Attribute = 120 // CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH
	CanMapHostMemory              Attribute = 19  // CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
	HostRegister                  Attribute = 99  // CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
	ReadOnlyHostRegister          Attribute = 113 // CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
	HostPointerForRegistered      Attribute = 91  // CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
	HostNativeAtomics             Attribute = 86  // CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED
	PageableMemoryAccess          Attribute = 88  // CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS
	UnifiedAddressing             Attribute = 41  // CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
	ManagedMemory                 Attribute = 83  // CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
	VirtualMemory                 Attribute = 102 // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
	HandleTypeFD                  Attribute = 103 // CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
	HandleTypeFabric              Attribute = 128 // CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
	GPUDirectRDMA                 Attribute = 116 // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED
	GPUDirectRDMAVirtual          Attribute = 110 // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
	GPUDirectRDMAOrdering         Attribute = 118 // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING
	DMABuf                        Attribute = 124 // CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
	TensorMap                     Attribute = 127 // CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED
	Multicast                     Attribute = 132 // CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
	MPSEnabled                    Attribute = 133 // CU_DEVICE_ATTRIBUTE_MPS_ENABLED
	HostNUMANode                  Attribute = 134 // CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID
)
