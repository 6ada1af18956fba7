package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// The directory in a volume by which the file system takes snapshots of it.
	snapshotsDir = ".snapshots"
	// A symbolic link with this in front of a snapshot's name, beside the volumes, says which one it is of: names of
	// snapshots are those of all volumes together.
	takenPrefix = ".snapshot-"
	// The extended attribute by which a mount makes clones; see ferrite-fuse/src/service/space.rs.
	cloneName = "ferrite.clone"
)

// Snapshot is one of a volume.
type Snapshot struct {
	Of   Volume
	Name string
}

// NewSnapshot is the snapshot of a name, which may be any text. The name is shortened if the identifier gets too long.
func NewSnapshot(of Volume, name string) (Snapshot, error) {
	id, err := of.ID()
	if err != nil {
		return Snapshot{}, err
	}
	for _, short := range []string{nameOf(name), hashOf(name, 12)} {
		if len(id)+1+len(short) <= idBytesMax {
			return Snapshot{of, short}, nil
		}
	}
	return Snapshot{}, fmt.Errorf("the identifier of a snapshot of %q is longer than the %d bytes that CSI allows: use "+
		"a shorter name for the server, or a shorter directory", id, idBytesMax)
}

// ID names the snapshot, and where it is.
func (s Snapshot) ID() string {
	return s.Of.Server + "#" + s.Of.Path + "@" + s.Name
}

// ParseSnapshotID is the inverse of ID.
func ParseSnapshotID(id string) (Snapshot, error) {
	at := strings.LastIndex(id, "@")
	if at < 0 || nameOf(id[at+1:]) != id[at+1:] {
		return Snapshot{}, fmt.Errorf("%q is no snapshot of this driver, which are SERVER#PATH@NAME", id)
	}
	of, err := ParseID(id[:at])
	return Snapshot{of, id[at+1:]}, err
}

// taken is the link that says of which volume it is.
func (s Snapshot) taken() string {
	return path.Join(path.Dir(s.Of.Path), takenPrefix+s.Name)
}

// errNotOfSnapshots is the error of a volume in which a pod has put something else in place of its snapshots.
var errNotOfSnapshots = errors.New(snapshotsDir + " of the volume is something else, which a pod has made")

// snapshotError is an error of taking or removing one.
func snapshotError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNotOfSnapshots):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, unix.EOPNOTSUPP):
		return status.Error(codes.FailedPrecondition, "the pool of the server cannot share blocks, so it has no snapshots")
	case errors.Is(err, unix.ENOSPC):
		return status.Error(codes.ResourceExhausted, "the pool lacks inodes, names or entries of its mapping")
	}
	return internal(err)
}

// take takes a snapshot, unless it is there; when it was taken. The link comes first: a call that is repeated after a
// crash finds it, and goes on.
func (e export) take(of Snapshot) (time.Time, error) {
	err := e.root.Symlink(path.Base(of.Of.Path), below(of.taken()))
	if errors.Is(err, os.ErrExist) {
		var owner string
		if owner, err = e.ownerOf(of); err == nil && owner != path.Base(of.Of.Path) {
			return time.Time{}, status.Errorf(codes.AlreadyExists, "a snapshot %s is of the volume %s", of.Name, owner)
		}
	}
	if err != nil {
		return time.Time{}, internal(err)
	}
	// If it fails, the link stays: for the next call, or for the one that deletes the snapshot.
	taken, err := e.takeIn(of)
	return taken, snapshotError(err)
}

// ownerOf is the volume whose snapshot has this name; empty without one.
func (e export) ownerOf(of Snapshot) (string, error) {
	owner, err := e.root.Readlink(below(of.taken()))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return owner, err
}

func (e export) takeIn(of Snapshot) (taken time.Time, err error) {
	if err := e.root.Mkdir(below(path.Join(of.Of.Path, snapshotsDir)), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return taken, err
	}
	snapshots, err := e.snapshots(of.Of.Path)
	if err != nil {
		return taken, err
	}
	defer snapshots.Close()
	if err := snapshots.Mkdir(of.Name, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return taken, err
	}
	opened, err := snapshots.Open(of.Name)
	if err != nil {
		return taken, err
	}
	defer opened.Close()
	var found unix.Stat_t
	err = unix.Fstat(int(opened.Fd()), &found)
	return time.Unix(found.Ctim.Unix()), err
}

// snapshots opens the directory of a volume's snapshots. Pods may have put something else there, which could lead to
// the volumes of others: nothing but snapshots can be made in the true one.
func (e export) snapshots(dir string) (*os.Root, error) {
	volume, err := e.root.OpenRoot(below(dir))
	if err != nil {
		return nil, err
	}
	defer volume.Close()
	switch found, err := volume.Lstat(snapshotsDir); {
	case err != nil:
		return nil, err
	case !found.IsDir():
		return nil, errNotOfSnapshots
	}
	snapshots, err := volume.OpenRoot(snapshotsDir)
	if err != nil {
		return nil, err
	}
	const probe = ".ferrite-is-of-snapshots"
	if err := snapshots.Symlink(snapshotsDir, probe); !errors.Is(err, unix.EROFS) {
		defer snapshots.Close()
		if err != nil {
			return nil, err
		}
		return nil, errors.Join(errNotOfSnapshots, snapshots.Remove(probe))
	}
	return snapshots, nil
}

// removeSnapshot removes one, if it is there, and if the driver has taken it.
func (e export) removeSnapshot(of Snapshot) error {
	owner, err := e.ownerOf(of)
	if err != nil || owner != path.Base(of.Of.Path) {
		return internal(err)
	}
	snapshots, err := e.snapshots(of.Of.Path)
	if err == nil {
		defer snapshots.Close()
		err = snapshots.Remove(of.Name)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, errNotOfSnapshots) {
		return snapshotError(err)
	}
	if err := e.root.Remove(below(of.taken())); err != nil && !errors.Is(err, os.ErrNotExist) {
		return internal(err)
	}
	return nil
}

// checkHasNoSnapshots refuses a volume that has some of the driver's: they would be lost with it.
func (e export) checkHasNoSnapshots(dir string) error {
	snapshots, err := e.snapshots(dir)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, errNotOfSnapshots) {
		return nil
	}
	if err != nil {
		return internal(err)
	}
	defer snapshots.Close()
	names, err := namesIn(snapshots)
	if err != nil {
		return internal(err)
	}
	for _, name := range names {
		owner, err := e.ownerOf(Snapshot{Volume{Path: dir}, name})
		if err != nil {
			return internal(err)
		}
		if owner == path.Base(dir) {
			return status.Errorf(codes.FailedPrecondition, "%s has the snapshot %s; delete it first", dir, name)
		}
	}
	return nil
}

func namesIn(dir *os.Root) ([]string, error) {
	opened, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	return opened.Readdirnames(-1)
}

// removeTree removes a directory with all that is in it, snapshots that pods have taken among them: those are not
// listed, and RemoveAll does not find them.
func removeTree(in *os.Root, name string) error {
	err := in.RemoveAll(name)
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	dir, err := in.OpenRoot(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := removeSnapshotsBelow(dir); err != nil {
		return err
	}
	return in.RemoveAll(name)
}

func removeSnapshotsBelow(dir *os.Root) error {
	if snapshots, err := dir.OpenRoot(snapshotsDir); err == nil {
		defer snapshots.Close()
		names, err := namesIn(snapshots)
		for _, name := range names {
			// An ordinary directory of that name goes with all others.
			err = errors.Join(err, ignore(snapshots.Remove(name), unix.ENOTEMPTY))
		}
		if err = errors.Join(err, ignore(dir.Remove(snapshotsDir), unix.ENOTEMPTY)); err != nil {
			return err
		}
	}
	names, err := namesIn(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if found, err := dir.Lstat(name); err != nil || !found.IsDir() || name == snapshotsDir {
			continue
		}
		below, err := dir.OpenRoot(name)
		if err != nil {
			return err
		}
		err = removeSnapshotsBelow(below)
		below.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func ignore(err, ignored error) error {
	if errors.Is(err, ignored) {
		return nil
	}
	return err
}

// clone makes a directory of another one, or of a snapshot.
func clone(source *os.File, parent *os.Root, name string) error {
	opened, err := parent.Open(".")
	if err != nil {
		return err
	}
	defer opened.Close()
	at := int(opened.Fd())
	// Data that the kernel still has belongs to the state.
	if err := unix.Syncfs(at); err != nil {
		return err
	}
	token := make([]byte, 64)
	count, err := unix.Fgetxattr(int(source.Fd()), cloneName, token)
	if err != nil {
		return err
	}
	if err := unix.Fsetxattr(at, cloneName, append(append(token[:count], ':'), name...), 0); err != nil {
		return err
	}
	// The kernel may remember that there is nothing of that name.
	if err := parent.Mkdir(name, 0o700); !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("the clone %s has gone: %v", name, err)
	}
	return nil
}

// source is the volume, or the snapshot of one, that a new volume is to be like.
type source struct {
	of Volume
	// snapshot is its name, if it is one.
	snapshot string
}

// sourceOf is nil for a volume that is to be empty.
func sourceOf(given *csi.VolumeContentSource) (*source, error) {
	switch {
	case given == nil:
		return nil, nil
	case given.GetSnapshot() != nil:
		found, err := ParseSnapshotID(given.GetSnapshot().GetSnapshotId())
		if err != nil {
			return nil, status.Errorf(codes.NotFound, "%v", err)
		}
		return &source{found.Of, found.Name}, nil
	case given.GetVolume() != nil:
		found, err := ParseID(given.GetVolume().GetVolumeId())
		if err != nil {
			return nil, status.Errorf(codes.NotFound, "%v", err)
		}
		return &source{of: found}, nil
	}
	return nil, invalid("the source of a volume is a snapshot or another volume")
}

// text is for the record of a volume.
func (s *source) text() string {
	if s == nil {
		return ""
	}
	return s.of.Path + "@" + s.snapshot
}

// open opens the directory.
func (e export) open(of *source) (*os.File, error) {
	if of.snapshot == "" {
		return e.root.Open(below(of.of.Path))
	}
	snapshots, err := e.snapshots(of.of.Path)
	if err != nil {
		return nil, err
	}
	defer snapshots.Close()
	return snapshots.Open(of.snapshot)
}

func (s *controller) CreateSnapshot(
	ctx context.Context, request *csi.CreateSnapshotRequest,
) (*csi.CreateSnapshotResponse, error) {
	if request.GetName() == "" || request.GetSourceVolumeId() == "" {
		return nil, invalid("a snapshot needs a name and a volume")
	}
	for name := range request.GetParameters() {
		if !strings.HasPrefix(name, provisionerPrefix) {
			return nil, invalid("the parameter %s is unknown; snapshots have none", name)
		}
	}
	volume, err := ParseID(request.GetSourceVolumeId())
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "%v", err)
	}
	wanted, err := NewSnapshot(volume, request.GetName())
	if err != nil {
		return nil, invalid("%v", err)
	}
	release, err := s.busy.take(request.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	defer release()
	var taken time.Time
	err = s.known(ctx, request.GetSourceVolumeId(), nil, request.GetSecrets(), func(of export, dir string) error {
		if _, err := of.recordOf(dir); err != nil {
			return status.Errorf(codes.FailedPrecondition, "the driver has not made %s, and takes no snapshot of it", dir)
		}
		taken, err = of.take(wanted)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{
		SnapshotId:     wanted.ID(),
		SourceVolumeId: request.GetSourceVolumeId(),
		CreationTime:   timestamppb.New(taken),
		ReadyToUse:     true,
	}}, nil
}

func (s *controller) DeleteSnapshot(
	ctx context.Context, request *csi.DeleteSnapshotRequest,
) (*csi.DeleteSnapshotResponse, error) {
	if request.GetSnapshotId() == "" {
		return nil, invalid("no snapshot is named")
	}
	wanted, err := ParseSnapshotID(request.GetSnapshotId())
	if err != nil {
		// As the specification wants it: a snapshot that cannot be is one that was deleted.
		return &csi.DeleteSnapshotResponse{}, nil
	}
	release, err := s.busy.take(request.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	defer release()
	err = s.within(ctx, wanted.Of.Server, request.GetSecrets(), func(of export) error {
		return of.removeSnapshot(wanted)
	})
	if err != nil {
		return nil, err
	}
	return &csi.DeleteSnapshotResponse{}, nil
}
