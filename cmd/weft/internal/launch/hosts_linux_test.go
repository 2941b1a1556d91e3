package launch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/hosts"
)

// needHosts skips a test where neither network namespaces nor user namespaces can be made.
func needHosts(t *testing.T) {
	t.Helper()
	p := start(t, testJob{Job: Job{Args: []string{"rank:env"}, Size: 1, Hosts: 1}})
	if p.finish() != codeForbidden {
		return
	}
	if os.Getenv("WEFT_REQUIRE_NETNS") == "1" {
		t.Fatalf("network namespaces are forbidden, and WEFT_REQUIRE_NETNS=1: %s", &p.err)
	}
	t.Skipf("network namespaces are forbidden here: %s", &p.err)
}

// TestPlaces: hosts have consecutive ranks, and none has two more than another.
func TestPlaces(t *testing.T) {
	for size := 1; size <= 9; size++ {
		for n := 0; n <= size; n++ {
			j, next := &Job{Size: size, Hosts: n}, 0
			counts := make([]int, max(n, 1))
			for r := range size {
				host, local, locals := j.place(r)
				if counts[host] != local || locals < size/max(n, 1) || locals > size/max(n, 1)+1 || host < next {
					t.Errorf("rank %d of %d on %d hosts: host %d, %d of %d", r, size, n, host, local, locals)
				}
				next = host
				counts[host]++
				if local == locals-1 {
					next++
				}
			}
			if slices.Min(counts) == 0 {
				t.Errorf("%d ranks on %d hosts: %v", size, n, counts)
			}
		}
	}
}

// TestHosts: ranks find themselves on different hosts, and reach each other by their addresses.
func TestHosts(t *testing.T) {
	needHosts(t)
	p := start(t, testJob{Job: Job{Args: []string{"rank:host"}, Size: 3, Hosts: 2}})
	places := p.until(3, `place (.*)`)
	slices.Sort(places)
	for i, want := range []string{
		"0 of 1 at [127.0.0.1/8 10.77.0.2/24", "0 of 2 at [127.0.0.1/8 10.77.0.1/24", "1 of 2 at [127.0.0.1/8 10.77.0.1/24",
	} {
		if !strings.HasPrefix(places[i], want) {
			t.Errorf("place %q, want %q", places[i], want)
		}
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.finish()
	start(t, testJob{Job: Job{Args: []string{"rank:meet"}, Size: 5, Hosts: 3}}).want(0, `met \[1 2 3 4\]`)
}

// TestHostsLeaveNothing: whichever of the launcher's processes is killed, no process stays in a host.
func TestHostsLeaveNothing(t *testing.T) {
	needHosts(t)
	for _, victim := range []string{"guard", "supervisor"} {
		t.Run(victim, func(t *testing.T) {
			p := start(t, testJob{Job: Job{Args: []string{"rank:host"}, Size: 2, Hosts: 2}})
			lines := p.until(4, `(?:in|ready) (.*)`)
			var spaces, ranks []string
			for _, line := range lines {
				if strings.HasPrefix(line, "net:") {
					spaces = append(spaces, line)
				} else {
					ranks = append(ranks, line)
				}
			}
			target := p.Process.Pid
			if victim == "supervisor" {
				target = childOf(t, target)
			}
			if err := syscall.Kill(target, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			p.finish()
			gone(t, pids(t, ranks))
			for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				inside := inhabitants(spaces)
				if len(inside) == 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("processes %v are still in %v", inside, spaces)
				}
			}
		})
	}
}

// inhabitants are the processes in network namespaces.
func inhabitants(spaces []string) (all []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, link := range links {
		if space, err := os.Readlink(link); err == nil && slices.Contains(spaces, space) {
			all = append(all, link)
		}
	}
	return all
}

// TestHostsWithoutPrivilege: who is not root gets a user namespace.
func TestHostsWithoutPrivilege(t *testing.T) {
	needHosts(t)
	if os.Geteuid() != 0 {
		t.Skip("TestHosts ran without privilege already")
	}
	p := command(t, testJob{Job: Job{Args: []string{"rank:meet"}, Size: 3, Hosts: 2}})
	p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	p.begin()
	p.want(0, `met \[1 2\]`)
}

// TestHostsForbidden: the kernel allows neither kind of namespace.
func TestHostsForbidden(t *testing.T) {
	needHosts(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const limits = `for k in net user; do echo 0 >/proc/sys/user/max_${k}_namespaces || exit 9; done; exec "$0"`
	p := command(t, testJob{Job: Job{Args: []string{"rank:env"}, Size: 2, Hosts: 2}})
	p.Path, p.Args = "/bin/sh", []string{"sh", "-c", limits, self}
	p.SysProcAttr = &syscall.SysProcAttr{}
	hosts.Privileges(p.SysProcAttr)
	p.SysProcAttr.Cloneflags &^= syscall.CLONE_NEWNET
	p.begin()
	if code := p.finish(); code == 9 {
		t.Skip("this kernel lets no user namespace lower its limits")
	} else if code != codeForbidden {
		t.Errorf("exit status %d, want %d", code, codeForbidden)
	}
	if strings.Contains(strings.TrimSpace(p.err.String()), "\n") ||
		!strings.Contains(p.err.String(), hosts.ErrForbidden.Error()) {
		t.Errorf("said %q, want one sentence", &p.err)
	}
	if p.out.Len() > 0 {
		t.Errorf("a rank ran: %s", &p.out)
	}
}

func TestHostsThatMakeNoSense(t *testing.T) {
	for _, n := range []int{-1, 3, mostHosts + 1} {
		j := Job{Size: 2, Hosts: n, Bind: BindOff}
		if err := j.Validate(); err == nil || !strings.Contains(err.Error(), "a rank on each") {
			t.Errorf("%d hosts: %v", n, err)
		}
	}
}
