package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The extended attribute in which the directory of a volume says how it was made. A directory without it is not the
// driver's, which never deletes it. Pods must not change it, and programs that copy attributes must not copy it.
const recordName = "trusted.csi.ferrite"

// The extended attribute by which a directory gets a quota.
const quotaName = "ferrite.quota"

const (
	// A volume that is being made, or deleted, has these in front of its name. A call that is repeated continues.
	creatingPrefix = ".creating-"
	deletingPrefix = ".deleting-"
)

type record struct {
	CapacityBytes int64 `json:"capacity_bytes"`
	// IsRetained says that a deleted volume leaves its directory.
	IsRetained bool `json:"is_retained"`
	// Source is what it was made of, if anything.
	Source string `json:"source,omitempty"`
}

// export is a mounted export. Nothing leads out of it: pods may have put symbolic links where volumes are made.
type export struct {
	root *os.Root
}

// below is a path of a volume as os.Root takes it.
func below(dir string) string {
	return "." + path.Clean("/"+dir)
}

// recordOf fails with os.ErrNotExist for a directory that is not there.
func (e export) recordOf(dir string) (*record, error) {
	opened, err := e.root.Open(below(dir))
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	text := make([]byte, 4096)
	count, err := unix.Fgetxattr(int(opened.Fd()), recordName, text)
	if err != nil {
		return nil, err
	}
	found := &record{}
	return found, json.Unmarshal(text[:count], found)
}

func (e export) setRecord(dir string, of record) error {
	opened, err := e.root.Open(below(dir))
	if err != nil {
		return err
	}
	defer opened.Close()
	return setRecord(opened, of)
}

// setRecord also makes the capacity a limit, where the file system has quotas.
func setRecord(opened *os.File, of record) error {
	text, err := json.Marshal(of)
	if err != nil {
		return err
	}
	if err := unix.Fsetxattr(int(opened.Fd()), recordName, text, 0); err != nil {
		return err
	}
	if of.CapacityBytes == 0 {
		return nil
	}
	limits := fmt.Sprintf("limit_bytes=%d", of.CapacityBytes)
	return ignore(unix.Fsetxattr(int(opened.Fd()), quotaName, []byte(limits), 0), unix.EOPNOTSUPP)
}

// make makes the directory of a volume, complete, in one step: it has another name until it has its record. Fails with
// os.ErrExist if there is one.
func (e export) make(dir string, of record, mode uint32, like *source) error {
	parentDir, name := below(path.Dir(dir)), path.Base(dir)
	if err := e.root.MkdirAll(parentDir, 0o755); err != nil {
		return err
	}
	parent, err := e.root.OpenRoot(parentDir)
	if err != nil {
		return err
	}
	defer parent.Close()
	begun := creatingPrefix + name
	if err := e.begin(parent, begun, like); err != nil {
		return err
	}
	if err := finish(parent, begun, name, of, mode, like); err != nil {
		// Left behind, it would be in everybody's way.
		return errors.Join(err, removeTree(parent, begun))
	}
	return nil
}

// finish gives the directory of a volume its record, and then its name.
func finish(parent *os.Root, begun, name string, of record, mode uint32, like *source) error {
	made, err := parent.Open(begun)
	if err != nil {
		return err
	}
	defer made.Close()
	if err := setRecord(made, of); err != nil {
		return err
	}
	// One that was made of another has its mode, too.
	if like == nil {
		if err := unix.Fchmod(int(made.Fd()), mode); err != nil {
			return err
		}
	}
	opened, err := parent.Open(".")
	if err != nil {
		return err
	}
	defer opened.Close()
	at := int(opened.Fd())
	return unix.Renameat2(at, begun, at, name, unix.RENAME_NOREPLACE)
}

// begin makes the directory of a volume that nobody knows yet: an empty one, or one like another.
func (e export) begin(parent *os.Root, name string, like *source) error {
	// Of a call that did not come to its end, which may have been for another volume of that name.
	if err := removeTree(parent, name); err != nil {
		return err
	}
	if like == nil {
		return parent.Mkdir(name, 0o700)
	}
	from, err := e.open(like)
	if errors.Is(err, os.ErrNotExist) {
		return status.Errorf(codes.NotFound, "%s is not there", like.text())
	}
	if err != nil {
		return err
	}
	defer from.Close()
	if err := clone(from, parent, name); err != nil {
		return snapshotError(err)
	}
	return nil
}

// delete deletes a directory that the driver has made. Others see it whole or not at all.
func (e export) delete(dir string) error {
	doomed := below(path.Join(path.Dir(dir), deletingPrefix+path.Base(dir)))
	found, err := e.recordOf(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		// It was deleted, perhaps not to the end; or it was never made to the end.
		begun := below(path.Join(path.Dir(dir), creatingPrefix+path.Base(dir)))
		return internal(errors.Join(removeTree(e.root, doomed), removeTree(e.root, begun)))
	case errors.Is(err, unix.ENODATA):
		return status.Errorf(codes.FailedPrecondition, "the driver has not made %s, and does not delete it", dir)
	case err != nil:
		return internal(err)
	case found.IsRetained:
		return nil
	}
	if err := e.checkHasNoSnapshots(dir); err != nil {
		return err
	}
	if err := removeTree(e.root, doomed); err != nil {
		return internal(err)
	}
	if err := e.root.Rename(below(dir), doomed); err != nil {
		return internal(err)
	}
	return internal(removeTree(e.root, doomed))
}
