package doctor

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/cmd/weft/internal/topology"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/fabric/ibgda"
	"github.com/weftgo/weft/internal/pythons"
	"github.com/weftgo/weft/internal/shm"
	"github.com/weftgo/weft/internal/simd"
)

// System is this machine, seen from this process. version is the program's own.
func System(version string) Sources {
	return Sources{
		Root:   os.DirFS("/"),
		Getenv: os.Getenv, Environ: os.Environ(),
		Weft: version, Go: runtime.Version(), Arch: runtime.GOARCH,
		SIMD: simd.Path(), Pages: shm.HugeStatus,
		Launch: func() (string, error) {
			e, err := bootstrap.Detect(os.Getenv)
			if err == nil {
				err = weft.CheckEnvironment()
			}
			return e.String(), err
		},
		Allowed: topology.Allowed, Limits: limits, Kernel: release,
		CUDA: func() CUDA { return describe(cuda.Open()) }, Compiler: compiler, Caches: caches,
		Fabric: func() Fabric { return openFabric(os.Getenv("WEFT_INTERFACE")) },
		Cards:  ibgda.List,
		Own:    pythons.Own(), Python: python(),
	}
}

func limits() Limits {
	soft := func(resource int) (cur, most int64) {
		var l unix.Rlimit
		if err := unix.Getrlimit(resource, &l); err != nil {
			return 0, 0
		}
		return signed(l.Cur), signed(l.Max)
	}
	var l Limits
	l.LockedMemory, _ = soft(unix.RLIMIT_MEMLOCK)
	l.OpenFiles, l.OpenFilesMax = soft(unix.RLIMIT_NOFILE)
	return l
}

func signed(v uint64) int64 {
	if v > math.MaxInt64 {
		return -1
	}
	return int64(v)
}

func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// python finds the interpreter that a user would get, through symbolic links: its
// packages lie beside it.
func python() string {
	for _, name := range []string{os.Getenv("WEFT_PYTHON"), "python3"} {
		if name == "" {
			continue
		}
		p, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if real, err := filepath.EvalSymlinks(p); err == nil {
			return real
		}
		return p
	}
	return ""
}
