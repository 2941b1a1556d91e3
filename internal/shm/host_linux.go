package shm

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"sync"
)

// thisProcess identifies a process of the host, because process ids may be reused.
var thisProcess = sync.OnceValue(random)

func random() (b [16]byte) {
	rand.Read(b[:]) // never fails: the runtime ends the process first
	return b
}

// hostIdentity names the set of processes that can reach each other's abstract sockets and resolve
// each other's process ids: one boot of one kernel, one network namespace, one process id
// namespace. The host's name is in it because clones of a virtual machine share the rest. The
// environment may give another name, so that one machine is several hosts, or clones are told apart.
func hostIdentity(name string) (string, error) {
	name, err := HostName(name)
	if err != nil {
		return "", err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("identify host: %w", err)
	}
	parts := []string{name, strings.TrimSpace(string(boot))}
	for _, kind := range []string{"net", "pid"} {
		ns, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return "", fmt.Errorf("identify host: %w", err)
		}
		parts = append(parts, ns)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	if len(name) > 64 {
		name = name[:64]
	}
	return name + "/" + hex.EncodeToString(sum[:12]), nil
}
