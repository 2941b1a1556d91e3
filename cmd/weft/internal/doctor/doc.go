// Package doctor examines a machine and says what each finding means for Weft.
//
// Collect reads files below a root and asks a handful of functions, so that every finding can be
// tested on a machine that lacks it. It loads CUDA's driver and NVRTC to ask them, but makes no
// context on a device and nothing that outlives it. Findings is a pure function from the collected
// facts to lines for a person.
package doctor
