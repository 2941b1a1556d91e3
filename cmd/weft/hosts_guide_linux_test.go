package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestHostsGuide runs the commands of the page about several hosts in network namespaces, each on the host that it is
// for.
func TestHostsGuide(t *testing.T) {
	page, err := os.ReadFile("../../docs/guides/hosts.md")
	if err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	join := "'" + self + "' '" + joinRank + "'"
	python := "python3"
	if named := os.Getenv("WEFT_PYTHON"); named != "" {
		python = named
	}
	for title, program := range map[string]*strings.Replacer{
		"by hand": strings.NewReplacer("10.0.0.", "10.77.0.", "python3 train.py", join),
		"torchrun": strings.NewReplacer("10.0.0.", "10.77.0.", "train.py", "--no-python "+join,
			"torchrun ", "'"+python+"' -m torch.distributed.run "),
	} {
		t.Run(title, func(t *testing.T) {
			if title == "torchrun" {
				if os.Getenv("WEFT_TEST_ALL") == "" {
					t.Skip("WEFT_TEST_ALL is not set")
				}
				if err := exec.Command(python, "-c", "import torch").Run(); err != nil {
					t.Skipf("needs PyTorch: %v", err)
				}
			}
			block := regexp.MustCompile("```sh title=\"" + title + "\"\n((?:.*\n)+?)```").FindSubmatch(page)
			if block == nil {
				t.Fatal("the page has no such commands")
			}
			script := "host=$WEFT_RANK; unset WEFT_RANK WEFT_SIZE WEFT_LOCAL_RANK WEFT_LOCAL_SIZE WEFT_ADDRESS WEFT_RUN_ENDED\n"
			lines := strings.Split(strings.TrimSpace(string(block[1])), "\n")
			for host, line := range lines {
				script += fmt.Sprintf("[ $host != %d ] || exec env %s\n", host, program.Replace(line))
			}
			if code, out := inHosts(t, len(lines), script); code != 0 || !strings.Contains(out, "[1] joining\n") {
				t.Errorf("exit status %d\n%s", code, out)
			}
		})
	}
}

// inHosts runs a script of the shell in so many namespaces, as a host each. The test is skipped where there are none.
func inHosts(t *testing.T, hosts int, script string) (code int, out string) {
	c := exec.CommandContext(t.Context(), "/proc/self/exe", "run", "--hosts-by-namespace", fmt.Sprint(hosts),
		"-n", fmt.Sprint(hosts), "--timeout", "120s", "sh", "-c", script)
	c.Env = append(os.Environ(), mainEnv+"=1", "GORACE=atexit_sleep_ms=0")
	said, _ := c.CombinedOutput()
	if code = c.ProcessState.ExitCode(); code == 2 && os.Getenv("WEFT_REQUIRE_NETNS") != "1" {
		t.Skipf("needs network namespaces: %s", said)
	}
	return code, string(said)
}
