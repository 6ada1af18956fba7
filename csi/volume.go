package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"strings"
)

// Lengths that the specification of CSI allows for an identifier.
const idBytesMax = 128

// Volume is a subtree of a server's export.
type Volume struct {
	// Server is an address such as tcp://server:7447/data.
	Server string
	// Path begins at the root of the export.
	Path string
}

// ID names a volume that the driver made. It says where the volume is, so that the driver keeps no state of its own.
func (v Volume) ID() (string, error) {
	id := v.Server + "#" + v.Path
	if len(id) > idBytesMax {
		return "", fmt.Errorf("the volume's identifier %q has %d bytes, and CSI allows %d: use a shorter name for the "+
			"server, or a shorter directory", id, len(id), idBytesMax)
	}
	return id, nil
}

// ParseID is the inverse of ID.
func ParseID(id string) (Volume, error) {
	server, dir, found := strings.Cut(id, "#")
	if !found {
		return Volume{}, fmt.Errorf("%q is no volume of this driver, which are SERVER#PATH", id)
	}
	return NewVolume(server, dir)
}

// NewVolume checks both parts, which come from users.
func NewVolume(server, dir string) (Volume, error) {
	if !strings.HasPrefix(server, "tcp://") && !strings.HasPrefix(server, "fabric://") {
		return Volume{}, fmt.Errorf("the server %q does not begin with tcp:// or fabric://", server)
	}
	if strings.ContainsAny(server, "?# \t\n\x00") {
		return Volume{}, fmt.Errorf("the server %q contains blanks, ? or #; options belong into mountOptions, and "+
			"keys into secrets", server)
	}
	if !strings.HasPrefix(dir, "/") || strings.ContainsRune(dir, 0) {
		return Volume{}, fmt.Errorf("the path %q does not begin with /", dir)
	}
	for _, part := range strings.Split(dir, "/") {
		if part == ".." {
			return Volume{}, fmt.Errorf("the path %q contains ..", dir)
		}
	}
	return Volume{Server: server, Path: path.Clean(dir)}, nil
}

// nameOf is a file's name for the name of a volume, which may be any text. Plain names stay as they are.
func nameOf(name string) string {
	isStrange := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	}
	if name != "" && len(name) <= 64 && name[0] != '.' && strings.IndexFunc(name, isStrange) < 0 {
		return name
	}
	return "volume-" + hashOf(name, 16)
}

func hashOf(name string, bytes int) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:bytes])
}
