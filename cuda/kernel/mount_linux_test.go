package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// mount mounts what the order wants, for this process only.
func (o *order) mount() error {
	if o.Mount == "" {
		return nil
	}
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", o.Mounted, "tmpfs", 0, o.Mount); err != nil || !o.ReadOnlyMount {
		return err
	}
	return syscall.Mount("tmpfs", o.Mounted, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, o.Mount)
}

// apart gives a process mounts of its own, as root in a user namespace if need be.
func apart() *syscall.SysProcAttr {
	if os.Geteuid() == 0 {
		return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	}
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
}

// TestFileSystemsThatFail: a full disk, one without room for names, one that is read-only. Kernels
// are there, with one warning for all.
func TestFileSystemsThatFail(t *testing.T) {
	for what, c := range map[string]struct {
		mount    string
		readOnly bool
		warning  string
	}{
		"full":         {"size=16k,mode=700", false, "no space left on device"},
		"out of names": {"nr_inodes=2,mode=700", false, "no space left on device"},
		"read-only":    {"mode=700", true, "read-only file system"},
	} {
		t.Run(what, func(t *testing.T) {
			mounted := t.TempDir()
			o := order{
				Dir: filepath.Join(mounted, "kernels"), Kernels: 3, Size: 1 << 20, Mount: c.mount,
				Mounted: mounted, ReadOnlyMount: c.readOnly,
			}
			p := start(t, o, apart())
			p.goOn(t)
			r := p.loaded(t, 3)
			if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], c.warning) || r.Compiled != 3 {
				t.Errorf("compiled %d, warnings: %q", r.Compiled, r.Warnings)
			}
			for _, name := range r.Files {
				if !strings.HasSuffix(name, lockSuffix) {
					t.Errorf("%s is left", name)
				}
			}
		})
	}
}
