package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// How long a mount may take to tell its space.
const spaceTimeout = 10 * time.Second

// node mounts exports at staging paths, through a mounter, and their subtrees for pods.
type node struct {
	csi.UnimplementedNodeServer
	id      string
	mounter Mounter
	// Paths for pods and of staging are below it.
	kubeletDir string
	busy       busy
}

// volumeOf is the volume of an identifier. One that an administrator has written says in its context where it is.
func volumeOf(id string, given map[string]string) (Volume, error) {
	server, isStatic := given["server"]
	if !isStatic {
		return ParseID(id)
	}
	dir, found := given["path"]
	if !found {
		dir = "/"
	}
	return NewVolume(server, dir)
}

// own refuses paths outside the kubelet's directory, where only a mistaken or a hostile caller wants a mount.
func (s *node) own(name, dir string) (string, error) {
	if dir == "" {
		return "", invalid("the %s is missing", name)
	}
	clean := filepath.Clean(dir)
	if clean != s.kubeletDir && !strings.HasPrefix(clean, strings.TrimSuffix(s.kubeletDir, "/")+"/") {
		return "", invalid("the %s %q is not below %s", name, dir, s.kubeletDir)
	}
	return clean, nil
}

func (s *node) NodeStageVolume(
	ctx context.Context, request *csi.NodeStageVolumeRequest,
) (*csi.NodeStageVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, invalid("no volume is named")
	}
	if request.GetVolumeCapability() == nil {
		return nil, invalid("the volume's capability is missing")
	}
	if err := checkCapabilities([]*csi.VolumeCapability{request.GetVolumeCapability()}); err != nil {
		return nil, err
	}
	target, err := s.own("staging path", request.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	volume, err := volumeOf(request.GetVolumeId(), request.GetVolumeContext())
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "%v", err)
	}
	release, err := s.busy.take(target)
	if err != nil {
		return nil, err
	}
	defer release()
	wanted := MountRequest{
		Server:  volume.Server,
		Target:  target,
		Options: request.GetVolumeCapability().GetMount().GetMountFlags(),
		Key:     request.GetSecrets()["key"],
	}
	if err := s.mounter.Mount(ctx, wanted); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (s *node) NodeUnstageVolume(
	ctx context.Context, request *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, invalid("no volume is named")
	}
	target, err := s.own("staging path", request.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	release, err := s.busy.take(target)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := s.mounter.Unmount(ctx, target); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// openBelow opens a directory of a mount. Its path follows no symbolic link: pods may have put one there.
func openBelow(root, dir string) (int, error) {
	top, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(top)
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	return unix.Openat2(top, "."+filepath.Clean("/"+dir), &how)
}

func isSame(descriptor int, target string) bool {
	var one, other unix.Stat_t
	return unix.Fstat(descriptor, &one) == nil && unix.Stat(target, &other) == nil &&
		one.Dev == other.Dev && one.Ino == other.Ino
}

// bind mounts an open directory on another.
func bind(descriptor int, target string, isReadOnly bool) error {
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", descriptor), target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", target, err)
	}
	if !isReadOnly {
		return nil
	}
	if err := makeReadOnly(target); err != nil {
		unix.Unmount(target, unix.MNT_DETACH)
		return err
	}
	return nil
}

// makeReadOnly has a bind refuse changes.
func makeReadOnly(target string) error {
	// A bind takes its flags in a second step, which must repeat those of the mount.
	flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY)
	var space unix.Statfs_t
	if err := unix.Statfs(target, &space); err == nil {
		for _, same := range [][2]uintptr{
			{unix.ST_NOSUID, unix.MS_NOSUID}, {unix.ST_NODEV, unix.MS_NODEV}, {unix.ST_NOEXEC, unix.MS_NOEXEC},
			{unix.ST_NOATIME, unix.MS_NOATIME}, {unix.ST_NODIRATIME, unix.MS_NODIRATIME},
		} {
			if uintptr(space.Flags)&same[0] != 0 {
				flags |= same[1]
			}
		}
	}
	if err := unix.Mount("", target, "", flags, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", target, err)
	}
	return nil
}

func (s *node) NodePublishVolume(
	_ context.Context, request *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, invalid("no volume is named")
	}
	if request.GetVolumeCapability() == nil {
		return nil, invalid("the volume's capability is missing")
	}
	if err := checkCapabilities([]*csi.VolumeCapability{request.GetVolumeCapability()}); err != nil {
		return nil, err
	}
	staging, err := s.own("staging path", request.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	target, err := s.own("target path", request.GetTargetPath())
	if err != nil {
		return nil, err
	}
	volume, err := volumeOf(request.GetVolumeId(), request.GetVolumeContext())
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "%v", err)
	}
	release, err := s.busy.take(target)
	if err != nil {
		return nil, err
	}
	defer release()
	if server, err := mountedOn(staging); err != nil || server == "" {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is not staged at %s", request.GetVolumeId(), staging)
	}
	source, err := openBelow(staging, volume.Path)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, status.Errorf(codes.NotFound, "%s of %s: %v", volume.Path, volume.Server, err)
	case err != nil:
		return nil, status.Errorf(codes.Unavailable, "%s of %s: %v", volume.Path, volume.Server, err)
	}
	defer unix.Close(source)
	if !isFerrite(source) {
		return nil, status.Errorf(codes.Unavailable, "the mount at %s is being replaced", staging)
	}
	mode := request.GetVolumeCapability().GetAccessMode().GetMode()
	if mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		release, err := s.busy.take("the only pod of " + staging)
		if err != nil {
			return nil, err
		}
		defer release()
		if err := isFree(staging, volume.Path, target); err != nil {
			return nil, err
		}
	}
	isReadOnly := request.GetReadonly() ||
		mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY ||
		mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	if err := publish(source, target, isReadOnly); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// isFree refuses if a directory of a staged mount is published at another path than target.
func isFree(staging, dir, target string) error {
	found, err := mounts()
	if err != nil {
		return internal(err)
	}
	device := ""
	for _, one := range found {
		// The last one hides those before.
		if one.target == staging {
			device = one.device
		}
	}
	for _, one := range found {
		if one.device == device && one.root == dir && one.target != staging && one.target != target {
			return status.Errorf(codes.FailedPrecondition, "the volume is for one pod, and is in use at %s", one.target)
		}
	}
	return nil
}

// isFerrite says whether a directory is of a mount: in the moment in which one is replaced, its path leads to the disk
// of the node.
func isFerrite(descriptor int) bool {
	var space unix.Statfs_t
	return unix.Fstatfs(descriptor, &space) == nil && space.Type == unix.FUSE_SUPER_MAGIC
}

func isReadOnly(descriptor int) bool {
	var space unix.Statfs_t
	return unix.Fstatfs(descriptor, &space) == nil && space.Flags&unix.ST_RDONLY != 0
}

// publish binds a directory to a pod's path, unless it is there already.
func publish(source int, target string, wantsReadOnly bool) error {
	if isSame(source, target) {
		bound, err := unix.Open(target, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return internal(err)
		}
		defer unix.Close(bound)
		switch is := isReadOnly(bound); {
		case wantsReadOnly && !is:
			// The call before ended between its two steps.
			return internal(makeReadOnly(target))
		case !wantsReadOnly && is && !isReadOnly(source):
			return status.Errorf(codes.AlreadyExists, "%s is published for reading alone", target)
		}
		return nil
	}
	// A mount there is of a process that has died.
	if mounted, err := mountedOn(target); err == nil && mounted != "" {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			return internal(err)
		}
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return internal(err)
	}
	return internal(bind(source, target, wantsReadOnly))
}

func (s *node) NodeUnpublishVolume(
	_ context.Context, request *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, invalid("no volume is named")
	}
	target, err := s.own("target path", request.GetTargetPath())
	if err != nil {
		return nil, err
	}
	release, err := s.busy.take(target)
	if err != nil {
		return nil, err
	}
	defer release()
	for {
		mounted, err := mountedOn(target)
		if err != nil {
			return nil, internal(err)
		}
		if mounted == "" {
			break
		}
		// The kubelet has stopped the pod. A program that still has the volume open keeps it, without its name.
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			return nil, internal(fmt.Errorf("unmount %s: %w", target, err))
		}
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, internal(err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// space asks a mount for its space. One that does not answer holds one thread, and fails the next call at once.
func (s *node) space(ctx context.Context, dir string) (unix.Statfs_t, error) {
	type answer struct {
		space unix.Statfs_t
		err   error
	}
	release, err := s.busy.take("space of " + dir)
	if err != nil {
		return unix.Statfs_t{}, err
	}
	answered := make(chan answer, 1)
	go func() {
		defer release()
		var found answer
		found.err = unix.Statfs(dir, &found.space)
		answered <- found
	}()
	ctx, cancel := context.WithTimeout(ctx, spaceTimeout)
	defer cancel()
	select {
	case found := <-answered:
		return found.space, found.err
	case <-ctx.Done():
		return unix.Statfs_t{}, ctx.Err()
	}
}

func (s *node) NodeGetVolumeStats(
	ctx context.Context, request *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, invalid("no volume is named")
	}
	dir := request.GetVolumePath()
	if dir == "" {
		return nil, invalid("the volume path is missing")
	}
	mounted, err := mountedOn(dir)
	if err != nil {
		return nil, internal(err)
	}
	if mounted == "" {
		return nil, status.Errorf(codes.NotFound, "no volume is at %s", dir)
	}
	space, err := s.space(ctx, dir)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "the mount at %s does not answer: %v", dir, err)
	}
	block := space.Bsize
	return &csi.NodeGetVolumeStatsResponse{
		Usage: []*csi.VolumeUsage{
			{
				Unit:      csi.VolumeUsage_BYTES,
				Total:     int64(space.Blocks) * block,
				Available: int64(space.Bavail) * block,
				Used:      int64(space.Blocks-space.Bfree) * block,
			},
			{
				Unit:      csi.VolumeUsage_INODES,
				Total:     int64(space.Files),
				Available: int64(space.Ffree),
				Used:      int64(space.Files - space.Ffree),
			},
		},
	}, nil
}

func (s *node) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	reply := &csi.NodeGetCapabilitiesResponse{}
	for _, kind := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		reply.Capabilities = append(reply.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: kind}},
		})
	}
	return reply, nil
}

func (s *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: s.id}, nil
}
