package doctor

import (
	"io/fs"
	"path"
	"slices"
	"strings"
)

// The libraries that Weft opens when it finds them. None is needed for the host
// engine.
const (
	libcuda    = "libcuda.so.1"
	libnvrtc13 = "libnvrtc.so.13"
	libnvrtc12 = "libnvrtc.so.12"
	libnvml    = "libnvidia-ml.so.1"
	libfabric  = "libfabric.so.1"
	libibverbs = "libibverbs.so.1"
	libmlx5    = "libmlx5.so.1"
)

// Libraries lists them.
var Libraries = []string{libcuda, libnvrtc13, libnvrtc12, libnvml, libfabric, libibverbs, libmlx5}

// findLibrary returns the absolute path of the first dir that holds name.
func findLibrary(root fs.FS, dirs []string, name string) string {
	for _, dir := range dirs {
		if _, err := fs.Stat(root, path.Join(dir, name)); err == nil {
			return "/" + path.Join(dir, name)
		}
	}
	return ""
}

// libraryDirs lists the directories of libraries, in the order in which they are tried:
// WEFT_NVRTC's, the dynamic linker's, those of CUDA's installer, and those beside torch, whose
// packages include NVRTC. Paths have no leading slash; patterns are expanded.
func libraryDirs(s Sources) []string {
	var dirs []string
	add := func(patterns ...string) {
		for _, p := range patterns {
			p = strings.Trim(path.Clean("/"+p), "/")
			matches := []string{p}
			if strings.ContainsAny(p, "*?[") {
				matches, _ = fs.Glob(s.Root, p)
			}
			for _, m := range matches {
				if m != "" && !slices.Contains(dirs, m) {
					dirs = append(dirs, m)
				}
			}
		}
	}
	if f := s.Getenv("WEFT_NVRTC"); f != "" {
		add(f, path.Dir(f)) // a folder, or the library itself
	}
	for dir := range strings.SplitSeq(s.Getenv("LD_LIBRARY_PATH"), ":") {
		if dir != "" {
			add(dir)
		}
	}
	add(linkerDirs(s.Root, "etc/ld.so.conf", 0)...)
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[s.Arch]
	if triplet != "" {
		add("lib/"+triplet, "usr/lib/"+triplet)
	}
	add("lib64", "usr/lib64", "lib", "usr/lib", "usr/local/lib", "usr/local/nvidia/lib64", "usr/lib/wsl/lib",
		"opt/amazon/efa/lib", "opt/amazon/efa/lib64")
	add("usr/local/cuda/lib64", "usr/local/cuda-*/lib64", "usr/local/cuda-*/targets/*/lib")
	for _, site := range sitePackages(s) {
		add(site+"/nvidia/cu13/lib", site+"/nvidia/cuda_nvrtc/lib", site+"/nvidia/*/lib", site+"/torch/lib")
	}
	return dirs
}

// linkerDirs reads the directories that ldconfig indexes, following includes.
func linkerDirs(root fs.FS, file string, depth int) []string {
	if depth > 4 { // a file that includes itself
		return nil
	}
	var dirs []string
	for line := range strings.Lines(readFile(root, file)) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		switch {
		case len(words) >= 2 && words[0] == "include":
			for _, pattern := range words[1:] {
				if !strings.HasPrefix(pattern, "/") {
					pattern = path.Join("/", path.Dir(file), pattern)
				}
				files, _ := fs.Glob(root, strings.TrimPrefix(pattern, "/"))
				for _, f := range files {
					dirs = append(dirs, linkerDirs(root, f, depth+1)...)
				}
			}
		case len(words) == 1:
			dirs = append(dirs, words[0])
		}
	}
	return dirs
}

// sitePackages lists the folders in which Python packages lie: of the command's own environment, of the active
// one, of the interpreter in PATH, of the user, and of the system.
func sitePackages(s Sources) []string {
	var patterns []string
	prefix := func(dir string) {
		if dir != "" {
			patterns = append(patterns, dir+"/lib/python3*/site-packages", dir+"/lib64/python3*/site-packages",
				dir+"/lib/python3*/dist-packages")
		}
	}
	for _, dir := range s.Own {
		prefix(dir)
	}
	prefix(s.Getenv("VIRTUAL_ENV"))
	prefix(s.Getenv("CONDA_PREFIX"))
	if s.Python != "" {
		prefix(path.Dir(path.Dir(s.Python)))
	}
	if home := s.Getenv("HOME"); home != "" {
		prefix(home + "/.local")
	}
	prefix("/usr/local")
	patterns = append(patterns, "/usr/lib/python3*/site-packages", "/usr/lib/python3/dist-packages")
	var out []string
	for _, p := range patterns {
		matches, _ := fs.Glob(s.Root, strings.TrimPrefix(path.Clean(p), "/"))
		for _, m := range matches {
			if !slices.Contains(out, m) {
				out = append(out, m)
			}
		}
	}
	return out
}

// torchVersion reads the version from the name of the package's metadata.
func torchVersion(s Sources) string {
	for _, site := range sitePackages(s) {
		infos, _ := fs.Glob(s.Root, site+"/torch-*.dist-info")
		for _, info := range infos {
			return strings.TrimSuffix(strings.TrimPrefix(path.Base(info), "torch-"), ".dist-info")
		}
	}
	return ""
}
