package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/device"
)

// installed is a tree that "make install" has filled and that has been moved since.
func installed(t *testing.T) string {
	t.Helper()
	library(t) // with a compiler, in a source tree
	folder := t.TempDir()
	install := exec.Command("sh", "../scripts/install.sh")
	install.Env = append(os.Environ(), "PREFIX=/opt/weft", "DESTDIR="+folder)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	moved := filepath.Join(folder, "moved")
	if err := os.Rename(filepath.Join(folder, "opt", "weft"), moved); err != nil {
		t.Fatal(err)
	}
	return moved
}

// Programs outside of the repository compile, link and run against what was installed.
func TestInstall(t *testing.T) {
	prefix := installed(t)
	project := t.TempDir()
	source, err := os.ReadFile("../examples/c/moe_host.c")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(project, "main.c"), source, 0o600); err != nil {
		t.Fatal(err)
	}
	command := func(t *testing.T, env []string, name string, arguments ...string) string {
		t.Helper()
		cmd := exec.Command(name, arguments...)
		cmd.Dir, cmd.Env = project, append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
		return string(out)
	}

	t.Run("command", func(t *testing.T) {
		if said := command(t, nil, filepath.Join(prefix, "bin", "weft"), "--version"); !strings.HasPrefix(
			said, "weft version "+weft.Version()) {
			t.Errorf("the command is %q, and this is %s", said, weft.Version())
		}
	})

	t.Run("device headers", func(t *testing.T) {
		for name, text := range device.Headers() {
			got, err := os.ReadFile(filepath.Join(prefix, "include", "weft", name))
			if err != nil || string(got) != text {
				t.Errorf("%s is not what the library compiles: %v", name, err)
			}
		}
	})

	t.Run("pkg-config", func(t *testing.T) {
		tool, err := exec.LookPath("pkg-config")
		if err != nil {
			t.Skip("no pkg-config")
		}
		env := []string{"PKG_CONFIG_PATH=" + filepath.Join(prefix, "lib", "pkgconfig")}
		for _, name := range []string{"weft", "nccl_ep"} {
			if got := strings.TrimSpace(command(t, env, tool, "--modversion", name)); got != weft.Version() {
				t.Errorf("version %q of %s, want %s", got, name, weft.Version())
			}
		}
		// Where PKG_CONFIG_PATH is relative, programs need the place of the installation, too.
		if libs := command(t, env, tool, "--libs", "weft"); !strings.Contains(libs, "-Wl,-rpath,/opt/weft/lib ") {
			t.Errorf("%q does not search /opt/weft/lib", libs)
		}
		flags := strings.Fields(command(t, env, tool, "--cflags", "--libs", "weft", "nccl_ep"))
		command(t, nil, compiler(t), append([]string{"-o", "program", "main.c"}, flags...)...)
		command(t, nil, filepath.Join(project, "program"), "1")
	})

	t.Run("CMake", func(t *testing.T) {
		tool, err := exec.LookPath("cmake")
		if err != nil {
			t.Skip("no cmake")
		}
		const lists = "cmake_minimum_required(VERSION 3.16)\nproject(layer C)\nfind_package(weft 0.1 REQUIRED)\n" +
			"add_executable(layer main.c)\ntarget_link_libraries(layer weft::weft)\n"
		if err := os.WriteFile(filepath.Join(project, "CMakeLists.txt"), []byte(lists), 0o600); err != nil {
			t.Fatal(err)
		}
		command(t, nil, tool, "-B", "build", "-DCMAKE_PREFIX_PATH="+prefix, "-DCMAKE_C_COMPILER="+compiler(t))
		command(t, nil, tool, "--build", "build")
		command(t, nil, filepath.Join(project, "build", "layer"), "1")

		// A version that is yet to come is refused.
		later := strings.Replace(lists, "weft 0.1", "weft 99", 1)
		if err := os.WriteFile(filepath.Join(project, "CMakeLists.txt"), []byte(later), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(tool, "-B", "later", "-DCMAKE_PREFIX_PATH="+prefix, "-DCMAKE_C_COMPILER="+compiler(t))
		cmd.Dir = project
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "version: "+weft.Version()) {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// A prefix that is no whole path is refused before anything is built.
func TestInstallRefuses(t *testing.T) {
	sourceTree(t)
	install := exec.Command("sh", "../scripts/install.sh")
	install.Env = append(os.Environ(), "PREFIX=opt/weft")
	out, err := install.CombinedOutput()
	if want := "weft: needs the whole path of a folder in PREFIX, not opt/weft\n"; err == nil || string(out) != want {
		t.Errorf("%v, %q, want %q", err, out, want)
	}
}
