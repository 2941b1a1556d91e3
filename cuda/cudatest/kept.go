package cudatest

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
)

// Kept is a folder of tests' compiled code, in weft of the user's cache directory: all clones,
// packages and processes of the user share it, through a cache of package kernel. Whatever else
// makes what is compiled different is of it, so that it names the folder.
func Kept(what string, of ...string) string {
	dir, err := os.UserCacheDir()
	if err != nil { // the cache believes nothing in it that others could have written
		dir = os.TempDir()
	}
	hash := sha256.New()
	for _, text := range of {
		hash.Write([]byte(strconv.Itoa(len(text)) + " " + text))
	}
	return filepath.Join(dir, "weft", what, hex.EncodeToString(hash.Sum(nil)[:8]))
}
