package sys

import "unsafe"

// Table has the driver's entry points, named without their prefix.
type Table struct {
	Init             func(flags uint32) Result
	DriverGetVersion func(version *int32) Result
	GetErrorName     func(code Result, name **byte) Result
	GetErrorString   func(code Result, text **byte) Result

	DeviceGetCount          func(count *int32) Result
	DeviceGet               func(device *Device, ordinal int32) Result
	DeviceGetName           func(name *byte, length int32, device Device) Result
	DeviceGetUUID           func(uuid *UUID, device Device) Result
	DeviceGetPCIBusID       func(id *byte, length int32, device Device) Result
	DeviceGetAttribute      func(value *int32, attribute int32, device Device) Result
	DeviceTotalMem          func(bytes *uint64, device Device) Result
	DeviceCanAccessPeer     func(can *int32, device, peer Device) Result
	DeviceGetP2PAttribute   func(value *int32, attribute int32, from, to Device) Result
	DevicePrimaryCtxRetain  func(context *Context, device Device) Result
	DevicePrimaryCtxRelease func(device Device) Result

	CtxSetCurrent             func(context Context) Result
	CtxGetCurrent             func(context *Context) Result
	CtxSynchronize            func(in Context) Result
	CtxGetStreamPriorityRange func(in Context, least, greatest *int32) Result
	CtxEnablePeerAccess       func(in, peer Context, flags uint32) Result
	CtxDisablePeerAccess      func(in, peer Context) Result

	StreamCreateWithPriority func(in Context, stream *Stream, flags uint32, priority int32) Result
	StreamDestroy            func(in Context, stream Stream) Result
	StreamSynchronize        func(in Context, stream Stream) Result
	StreamQuery              func(in Context, stream Stream) Result
	StreamWaitEvent          func(in Context, stream Stream, event Event, flags uint32) Result
	StreamGetPriority        func(in Context, stream Stream, priority *int32) Result
	StreamGetCaptureInfo     func(in Context, stream Stream, status *int32, id *uint64) Result
	StreamBeginCapture       func(in Context, stream Stream, mode int32) Result
	StreamEndCapture         func(in Context, stream Stream, graph *Graph) Result

	ThreadExchangeStreamCaptureMode func(mode *int32) Result

	EventCreate      func(in Context, event *Event, flags uint32) Result
	EventDestroy     func(in Context, event Event) Result
	EventRecord      func(in Context, event Event, stream Stream) Result
	EventQuery       func(in Context, event Event) Result
	EventSynchronize func(in Context, event Event) Result
	EventElapsedTime func(in Context, milliseconds *float32, start, end Event) Result

	MemAlloc                func(in Context, p *Pointer, size uint64) Result
	MemFree                 func(in Context, p Pointer) Result
	MemGetInfo              func(in Context, free, total *uint64) Result
	MemHostAlloc            func(in Context, p *unsafe.Pointer, size uint64, flags uint32) Result
	MemFreeHost             func(in Context, p unsafe.Pointer) Result
	MemHostRegister         func(in Context, p unsafe.Pointer, size uint64, flags uint32) Result
	MemHostUnregister       func(in Context, p unsafe.Pointer) Result
	MemHostGetDevicePointer func(in Context, p *Pointer, host unsafe.Pointer, flags uint32) Result

	MemcpyHtoD      func(in Context, dst Pointer, src unsafe.Pointer, size uint64) Result
	MemcpyDtoH      func(in Context, dst unsafe.Pointer, src Pointer, size uint64) Result
	MemcpyHtoDAsync func(in Context, dst Pointer, src unsafe.Pointer, size uint64, stream Stream) Result
	MemcpyDtoHAsync func(in Context, dst unsafe.Pointer, src Pointer, size uint64, stream Stream) Result
	MemcpyDtoDAsync func(in Context, dst, src Pointer, size uint64, stream Stream) Result
	MemcpyPeerAsync func(in Context, dst Pointer, dstContext Context, src Pointer, srcContext Context,
		size uint64, stream Stream) Result
	MemsetD8Async  func(in Context, dst Pointer, value uint8, count uint64, stream Stream) Result
	MemsetD32Async func(in Context, dst Pointer, value uint32, count uint64, stream Stream) Result

	PointerGetAttributes func(in Context, count uint32, attributes *int32, data *unsafe.Pointer, p Pointer) Result
	MemGetAddressRange   func(in Context, base *Pointer, size *uint64, p Pointer) Result

	MemGetHandleForAddressRange func(in Context, out unsafe.Pointer, p Pointer, size uint64, kind int32,
		flags uint64) Result
	FlushGPUDirectRDMAWrites func(in Context, target, scope int32) Result

	MemGetAllocationGranularity func(granularity *uint64, prop *AllocationProp, option int32) Result
	MemCreate                   func(in Context, handle *Allocation, size uint64, prop *AllocationProp,
		flags uint64) Result
	MemRelease        func(handle Allocation) Result
	MemAddressReserve func(p *Pointer, size, alignment uint64, hint Pointer, flags uint64) Result
	MemAddressFree    func(p Pointer, size uint64) Result
	MemMap            func(in Context, p Pointer, size, offset uint64, handle Allocation,
		flags uint64) Result
	MemUnmap                             func(in Context, p Pointer, size uint64) Result
	MemSetAccess                         func(in Context, p Pointer, size uint64, access *AccessDesc, count uint64) Result
	MemExportToShareableHandle           func(out unsafe.Pointer, handle Allocation, kind int32, flags uint64) Result
	MemImportFD                          func(in Context, handle *Allocation, fd uintptr, kind int32) Result
	MemImportFabric                      func(in Context, handle *Allocation, shared *FabricHandle, kind int32) Result
	MemRetainAllocationHandle            func(handle *Allocation, address Pointer) Result
	MemGetAllocationPropertiesFromHandle func(prop *AllocationProp, handle Allocation) Result

	MulticastGetGranularity func(granularity *uint64, prop *MulticastProp, option int32) Result
	MulticastCreate         func(handle *Allocation, prop *MulticastProp) Result
	MulticastAddDevice      func(handle Allocation, device Device) Result
	MulticastBindMem        func(in Context, handle Allocation, offset uint64, memory Allocation, memoryOffset, size,
		flags uint64) Result
	MulticastUnbind func(handle Allocation, device Device, offset, size uint64) Result

	IpcGetMemHandle   func(in Context, handle *IpcHandle, p Pointer) Result
	IpcOpenMemHandle  func(in Context, p *Pointer, handle IpcHandle, flags uint32) Result
	IpcCloseMemHandle func(in Context, p Pointer) Result

	ModuleLoadDataEx  func(in Context, module *Module, image *byte, count uint32, options *int32, values *JITValues) Result
	ModuleUnload      func(in Context, module Module) Result
	ModuleGetFunction func(in Context, function *Function, module Module, name *byte) Result
	ModuleGetGlobal   func(in Context, p *Pointer, size *uint64, module Module, name *byte) Result

	FuncLoad         func(in Context, function Function) Result
	FuncGetAttribute func(in Context, value *int32, attribute int32, function Function) Result
	FuncSetAttribute func(in Context, function Function, attribute, value int32) Result
	FuncGetParamInfo func(in Context, function Function, index uint64, offset,
		size *uint64) Result
	OccupancyMaxActiveBlocksPerMultiprocessor func(in Context, blocks *int32, function Function, threads int32,
		shared uint64) Result
	OccupancyMaxActiveClusters func(in Context, clusters *int32, function Function,
		config *LaunchConfig) Result

	LaunchKernel func(in Context, function Function, gridX, gridY, gridZ, blockX, blockY, blockZ, shared uint32,
		stream Stream,
		params *unsafe.Pointer, extra *unsafe.Pointer) Result
	LaunchKernelEx func(in Context, config *LaunchConfig, function Function, params *unsafe.Pointer,
		extra *unsafe.Pointer) Result

	GraphGetNodes             func(graph Graph, nodes *uintptr, count *uint64) Result
	GraphInstantiateWithFlags func(in Context, exec *GraphExec, graph Graph, flags uint64) Result
	GraphLaunch               func(in Context, exec GraphExec, stream Stream) Result
	GraphUpload               func(in Context, exec GraphExec, stream Stream) Result
	GraphDestroy              func(graph Graph) Result
	GraphExecDestroy          func(exec GraphExec) Result
}

// entries ties every field to its symbol. The version is that of the CUDA release that brought the
// form of the function which is declared above, in the driver's notation (12040 for 12.4); the
// suffix makes the exported name of that form.
func (t *Table) entries() []entry {
	return []entry{
		call1("cuInit", "", 2000, &t.Init),
		call1("cuDriverGetVersion", "", 2020, &t.DriverGetVersion),
		call2("cuGetErrorName", "", 6000, &t.GetErrorName),
		call2("cuGetErrorString", "", 6000, &t.GetErrorString),

		call1("cuDeviceGetCount", "", 2000, &t.DeviceGetCount),
		call2("cuDeviceGet", "", 2000, &t.DeviceGet),
		call3("cuDeviceGetName", "", 2000, &t.DeviceGetName),
		call2("cuDeviceGetUuid", "_v2", 11040, &t.DeviceGetUUID),
		call3("cuDeviceGetPCIBusId", "", 4010, &t.DeviceGetPCIBusID),
		call3("cuDeviceGetAttribute", "", 2000, &t.DeviceGetAttribute),
		call2("cuDeviceTotalMem", "_v2", 3020, &t.DeviceTotalMem),
		call3("cuDeviceCanAccessPeer", "", 4000, &t.DeviceCanAccessPeer),
		call4("cuDeviceGetP2PAttribute", "", 8000, &t.DeviceGetP2PAttribute),
		call2("cuDevicePrimaryCtxRetain", "", 7000, &t.DevicePrimaryCtxRetain),
		call1("cuDevicePrimaryCtxRelease", "_v2", 11000, &t.DevicePrimaryCtxRelease),

		call1("cuCtxSetCurrent", "", 4000, &t.CtxSetCurrent),
		call1("cuCtxGetCurrent", "", 4000, &t.CtxGetCurrent),
		in0("cuCtxSynchronize", "", 2000, &t.CtxSynchronize),
		in2("cuCtxGetStreamPriorityRange", "", 5050, &t.CtxGetStreamPriorityRange),
		in2("cuCtxEnablePeerAccess", "", 4000, &t.CtxEnablePeerAccess),
		in1("cuCtxDisablePeerAccess", "", 4000, &t.CtxDisablePeerAccess),

		in3("cuStreamCreateWithPriority", "", 5050, &t.StreamCreateWithPriority),
		in1("cuStreamDestroy", "_v2", 4000, &t.StreamDestroy),
		in1("cuStreamSynchronize", "", 2000, &t.StreamSynchronize),
		in1("cuStreamQuery", "", 2000, &t.StreamQuery),
		in3("cuStreamWaitEvent", "", 3020, &t.StreamWaitEvent),
		in2("cuStreamGetPriority", "", 5050, &t.StreamGetPriority),
		in3("cuStreamGetCaptureInfo", "", 10010, &t.StreamGetCaptureInfo),
		in2("cuStreamBeginCapture", "_v2", 10010, &t.StreamBeginCapture),
		in2("cuStreamEndCapture", "", 10000, &t.StreamEndCapture),
		call1("cuThreadExchangeStreamCaptureMode", "", 10010, &t.ThreadExchangeStreamCaptureMode),

		in2("cuEventCreate", "", 2000, &t.EventCreate),
		in1("cuEventDestroy", "_v2", 4000, &t.EventDestroy),
		in2("cuEventRecord", "", 2000, &t.EventRecord),
		in1("cuEventQuery", "", 2000, &t.EventQuery),
		in1("cuEventSynchronize", "", 2000, &t.EventSynchronize),
		in3("cuEventElapsedTime", "", 2000, &t.EventElapsedTime),

		in2("cuMemAlloc", "_v2", 3020, &t.MemAlloc),
		in1("cuMemFree", "_v2", 3020, &t.MemFree),
		in2("cuMemGetInfo", "_v2", 3020, &t.MemGetInfo),
		in3("cuMemHostAlloc", "", 2020, &t.MemHostAlloc),
		in1("cuMemFreeHost", "", 2000, &t.MemFreeHost),
		in3("cuMemHostRegister", "_v2", 6050, &t.MemHostRegister),
		in1("cuMemHostUnregister", "", 4000, &t.MemHostUnregister),
		in3("cuMemHostGetDevicePointer", "_v2", 3020, &t.MemHostGetDevicePointer),

		in3("cuMemcpyHtoD", "_v2", 3020, &t.MemcpyHtoD),
		in3("cuMemcpyDtoH", "_v2", 3020, &t.MemcpyDtoH),
		in4("cuMemcpyHtoDAsync", "_v2", 3020, &t.MemcpyHtoDAsync),
		in4("cuMemcpyDtoHAsync", "_v2", 3020, &t.MemcpyDtoHAsync),
		in4("cuMemcpyDtoDAsync", "_v2", 3020, &t.MemcpyDtoDAsync),
		in6("cuMemcpyPeerAsync", "", 4000, &t.MemcpyPeerAsync),
		in4("cuMemsetD8Async", "", 3020, &t.MemsetD8Async),
		in4("cuMemsetD32Async", "", 3020, &t.MemsetD32Async),

		in4("cuPointerGetAttributes", "", 7000, &t.PointerGetAttributes),
		in3("cuMemGetAddressRange", "_v2", 3020, &t.MemGetAddressRange),

		in5("cuMemGetHandleForAddressRange", "", 11070, &t.MemGetHandleForAddressRange),
		in2("cuFlushGPUDirectRDMAWrites", "", 11030, &t.FlushGPUDirectRDMAWrites),

		call3("cuMemGetAllocationGranularity", "", 10020, &t.MemGetAllocationGranularity),
		in4("cuMemCreate", "", 10020, &t.MemCreate),
		call1("cuMemRelease", "", 10020, &t.MemRelease),
		call5("cuMemAddressReserve", "", 10020, &t.MemAddressReserve),
		call2("cuMemAddressFree", "", 10020, &t.MemAddressFree),
		in5("cuMemMap", "", 10020, &t.MemMap),
		in2("cuMemUnmap", "", 10020, &t.MemUnmap),
		in4("cuMemSetAccess", "", 10020, &t.MemSetAccess),
		call4("cuMemExportToShareableHandle", "", 10020, &t.MemExportToShareableHandle),
		in3("cuMemImportFromShareableHandle", "", 10020, &t.MemImportFD),
		in3("cuMemImportFromShareableHandle", "", 10020, &t.MemImportFabric),
		call2("cuMemRetainAllocationHandle", "", 11000, &t.MemRetainAllocationHandle),
		call2("cuMemGetAllocationPropertiesFromHandle", "", 10020, &t.MemGetAllocationPropertiesFromHandle),

		call3("cuMulticastGetGranularity", "", 12010, &t.MulticastGetGranularity),
		call2("cuMulticastCreate", "", 12010, &t.MulticastCreate),
		call2("cuMulticastAddDevice", "", 12010, &t.MulticastAddDevice),
		in6("cuMulticastBindMem", "", 12010, &t.MulticastBindMem),
		call4("cuMulticastUnbind", "", 12010, &t.MulticastUnbind),

		in2("cuIpcGetMemHandle", "", 4010, &t.IpcGetMemHandle),
		byValue("cuIpcOpenMemHandle", "_v2", 11000, &t.IpcOpenMemHandle),
		in1("cuIpcCloseMemHandle", "", 4010, &t.IpcCloseMemHandle),

		in5("cuModuleLoadDataEx", "", 2010, &t.ModuleLoadDataEx),
		in1("cuModuleUnload", "", 2000, &t.ModuleUnload),
		in3("cuModuleGetFunction", "", 2000, &t.ModuleGetFunction),
		in4("cuModuleGetGlobal", "_v2", 3020, &t.ModuleGetGlobal),

		in1("cuFuncLoad", "", 12040, &t.FuncLoad),
		in3("cuFuncGetAttribute", "", 2020, &t.FuncGetAttribute),
		in3("cuFuncSetAttribute", "", 9000, &t.FuncSetAttribute),
		in4("cuFuncGetParamInfo", "", 12040, &t.FuncGetParamInfo),
		in4("cuOccupancyMaxActiveBlocksPerMultiprocessor", "", 6050, &t.OccupancyMaxActiveBlocksPerMultiprocessor),
		in3("cuOccupancyMaxActiveClusters", "", 11070, &t.OccupancyMaxActiveClusters),

		in11("cuLaunchKernel", "", 4000, &t.LaunchKernel),
		in4("cuLaunchKernelEx", "", 11060, &t.LaunchKernelEx),

		call3("cuGraphGetNodes", "", 10000, &t.GraphGetNodes),
		in3("cuGraphInstantiateWithFlags", "", 11040, &t.GraphInstantiateWithFlags),
		in2("cuGraphLaunch", "", 10000, &t.GraphLaunch),
		in2("cuGraphUpload", "", 11010, &t.GraphUpload),
		call1("cuGraphDestroy", "", 10000, &t.GraphDestroy),
		call1("cuGraphExecDestroy", "", 10000, &t.GraphExecDestroy),
	}
}
