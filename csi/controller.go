package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Parameters that the provisioner adds begin with it.
const provisionerPrefix = "csi.storage.k8s.io/"

// controller makes and deletes volumes: directories of an export, which it mounts for as long as that takes.
type controller struct {
	csi.UnimplementedControllerServer
	mounter Mounter
	// Where it mounts exports.
	workDir string
	busy    busy
}

// invalid is an error of the caller's.
func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// checkCapabilities refuses what a directory cannot be.
func checkCapabilities(capabilities []*csi.VolumeCapability) error {
	if len(capabilities) == 0 {
		return invalid("no capabilities of the volume are named")
	}
	for _, capability := range capabilities {
		if capability.GetBlock() != nil {
			return invalid("volumes are directories, not block devices")
		}
		if capability.GetMount() == nil || capability.GetAccessMode() == nil {
			return invalid("a capability names neither its type of access nor its mode")
		}
		if err := checkOptions(capability.GetMount().GetMountFlags()); err != nil {
			return err
		}
	}
	return nil
}

// checkOptions refuses mount options that name files of the node: storage classes are not to reach those.
func checkOptions(options []string) error {
	for _, option := range options {
		for _, one := range strings.Split(option, ",") {
			name, _, _ := strings.Cut(one, "=")
			switch name {
			case "key", "log", "trace", "metrics":
				return invalid("the mount option %q names a file of the node; a key belongs into secrets", name)
			}
		}
	}
	return nil
}

// capacityOf is the one to record, and to enforce if it is not 0.
func capacityOf(wanted *csi.CapacityRange) (int64, error) {
	least, most := wanted.GetRequiredBytes(), wanted.GetLimitBytes()
	if least < 0 || most < 0 || (most > 0 && least > most) {
		return 0, invalid("a capacity of at least %d and at most %d bytes cannot be", least, most)
	}
	return least, nil
}

func fits(capacity int64, wanted *csi.CapacityRange) bool {
	return capacity >= wanted.GetRequiredBytes() && (wanted.GetLimitBytes() == 0 || capacity <= wanted.GetLimitBytes())
}

// parameters are those of a storage class.
type parameters struct {
	server, directory string
	isRetained        bool
	mode              uint32
}

func parseParameters(given map[string]string) (parameters, error) {
	found := parameters{directory: "/", mode: 0o777}
	for name, value := range given {
		switch {
		case strings.HasPrefix(name, provisionerPrefix):
		case name == "server":
			found.server = value
		case name == "directory":
			found.directory = value
		case name == "onDelete" && (value == "delete" || value == "retain"):
			found.isRetained = value == "retain"
		case name == "mode":
			if _, err := fmt.Sscanf(value, "%o", &found.mode); err != nil || found.mode > 0o7777 {
				return found, invalid("the mode %q is not an octal number up to 7777", value)
			}
		default:
			return found, invalid("the parameter %s=%q is unknown; there are server, directory, mode, "+
				"and onDelete with the values delete and retain", name, value)
		}
	}
	if found.server == "" {
		return found, invalid("the parameter server is missing, such as tcp://server:7447/data")
	}
	return found, nil
}

// within mounts an export and calls work with it.
func (s *controller) within(
	ctx context.Context, server string, secrets map[string]string, work func(of export) error,
) error {
	if err := os.MkdirAll(s.workDir, 0o700); err != nil {
		return status.Errorf(codes.Internal, "%v", err)
	}
	target, err := os.MkdirTemp(s.workDir, "export-")
	if err != nil {
		return status.Errorf(codes.Internal, "%v", err)
	}
	// Only an empty directory is removed, so nothing is lost if the export is still mounted on it.
	defer os.Remove(target)
	wanted := MountRequest{Server: server, Target: target, Key: secrets["key"], IsBrief: true}
	if err := s.mounter.Mount(ctx, wanted); err != nil {
		return err
	}
	defer func() {
		if err := s.mounter.Unmount(context.WithoutCancel(ctx), target); err != nil {
			slog.Error("an export stays mounted", "target", target, "error", err)
		}
	}()
	root, err := os.OpenRoot(target)
	if err != nil {
		return internal(err)
	}
	defer root.Close()
	opened, err := root.Open(".")
	if err != nil {
		return internal(err)
	}
	defer opened.Close()
	if !isFerrite(int(opened.Fd())) {
		return status.Errorf(codes.Unavailable, "the mount of %s has ended", server)
	}
	return work(export{root})
}

func (s *controller) CreateVolume(
	ctx context.Context, request *csi.CreateVolumeRequest,
) (*csi.CreateVolumeResponse, error) {
	if request.GetName() == "" {
		return nil, invalid("the volume has no name")
	}
	if err := checkCapabilities(request.GetVolumeCapabilities()); err != nil {
		return nil, err
	}
	like, err := sourceOf(request.GetVolumeContentSource())
	if err != nil {
		return nil, err
	}
	capacity, err := capacityOf(request.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	wanted, err := parseParameters(request.GetParameters())
	if err != nil {
		return nil, err
	}
	volume, err := NewVolume(wanted.server, path.Join(wanted.directory, nameOf(request.GetName())))
	if err != nil {
		return nil, invalid("%v", err)
	}
	if like != nil && like.of.Server != volume.Server {
		return nil, invalid("a volume on %s cannot be made of one on %s", volume.Server, like.of.Server)
	}
	id, err := volume.ID()
	if err != nil {
		return nil, invalid("%v", err)
	}
	release, err := s.busy.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	err = s.within(ctx, volume.Server, request.GetSecrets(), func(of export) error {
		existing, err := of.recordOf(volume.Path)
		if errors.Is(err, os.ErrNotExist) {
			err = of.make(volume.Path, record{capacity, wanted.isRetained, like.text()}, wanted.mode, like)
			if !errors.Is(err, os.ErrExist) {
				return internal(err)
			}
			existing, err = of.recordOf(volume.Path)
		}
		if errors.Is(err, unix.ENODATA) {
			return status.Errorf(codes.AlreadyExists, "%s exists, and this driver has not made it", volume.Path)
		}
		if err != nil {
			return internal(err)
		}
		if !fits(existing.CapacityBytes, request.GetCapacityRange()) {
			return status.Errorf(codes.AlreadyExists, "%s exists with %d bytes", volume.Path, existing.CapacityBytes)
		}
		if existing.Source != like.text() {
			return status.Errorf(codes.AlreadyExists, "%s exists, and was made of %q", volume.Path, existing.Source)
		}
		capacity = existing.CapacityBytes
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId:      id,
		CapacityBytes: capacity,
		VolumeContext: map[string]string{"server": volume.Server, "path": volume.Path},
		ContentSource: request.GetVolumeContentSource(),
	}}, nil
}

func (s *controller) DeleteVolume(
	ctx context.Context, request *csi.DeleteVolumeRequest,
) (*csi.DeleteVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, invalid("no volume is named")
	}
	volume, err := ParseID(request.GetVolumeId())
	if err != nil {
		// As the specification wants it: a volume that cannot be is one that was deleted.
		return &csi.DeleteVolumeResponse{}, nil
	}
	if volume.Path == "/" {
		return nil, invalid("the root of an export is no volume of this driver")
	}
	release, err := s.busy.take(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	// A large tree takes longer than a call may. The deletion goes on, and a repeated call hears that it does.
	done := make(chan error, 1)
	go func() {
		defer release()
		done <- s.within(context.WithoutCancel(ctx), volume.Server, request.GetSecrets(), func(of export) error {
			return of.delete(volume.Path)
		})
	}()
	select {
	case err := <-done:
		if err != nil {
			return nil, err
		}
		return &csi.DeleteVolumeResponse{}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// known calls work with the export and the path of a volume that exists.
func (s *controller) known(
	ctx context.Context, id string, given, secrets map[string]string, work func(of export, dir string) error,
) error {
	volume, err := volumeOf(id, given)
	if err != nil {
		return status.Errorf(codes.NotFound, "%v", err)
	}
	return s.within(ctx, volume.Server, secrets, func(of export) error {
		if _, err := of.root.Stat(below(volume.Path)); err != nil {
			return status.Errorf(codes.NotFound, "%s is not there: %v", id, errors.Unwrap(err))
		}
		return work(of, volume.Path)
	})
}

func (s *controller) ValidateVolumeCapabilities(
	ctx context.Context, request *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, invalid("no volume is named")
	}
	refusal := checkCapabilities(request.GetVolumeCapabilities())
	if len(request.GetVolumeCapabilities()) == 0 {
		return nil, refusal
	}
	isThere := func(export, string) error { return nil }
	err := s.known(ctx, request.GetVolumeId(), request.GetVolumeContext(), request.GetSecrets(), isThere)
	if err != nil {
		return nil, err
	}
	if refusal != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(refusal).Message()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeContext:      request.GetVolumeContext(),
			VolumeCapabilities: request.GetVolumeCapabilities(),
			Parameters:         request.GetParameters(),
		},
	}, nil
}

func (s *controller) ControllerExpandVolume(
	ctx context.Context, request *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, invalid("no volume is named")
	}
	if request.GetCapacityRange() == nil {
		return nil, invalid("no capacity is named")
	}
	capacity, err := capacityOf(request.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	release, err := s.busy.take(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer release()
	err = s.known(ctx, request.GetVolumeId(), nil, request.GetSecrets(), func(of export, dir string) error {
		found, err := of.recordOf(dir)
		if errors.Is(err, unix.ENODATA) {
			return status.Errorf(codes.FailedPrecondition, "this driver has not made the volume %s", dir)
		}
		if err != nil {
			return internal(err)
		}
		capacity = max(capacity, found.CapacityBytes)
		found.CapacityBytes = capacity
		return internal(of.setRecord(dir, *found))
	})
	if err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: capacity}, nil
}

func (s *controller) GetCapacity(
	ctx context.Context, request *csi.GetCapacityRequest,
) (*csi.GetCapacityResponse, error) {
	if request.GetParameters()["server"] == "" {
		// Nothing can be made without.
		return &csi.GetCapacityResponse{}, nil
	}
	wanted, err := parseParameters(request.GetParameters())
	if err != nil {
		return nil, err
	}
	volume, err := NewVolume(wanted.server, wanted.directory)
	if err != nil {
		return nil, invalid("%v", err)
	}
	reply := &csi.GetCapacityResponse{MinimumVolumeSize: wrapperspb.Int64(0)}
	err = s.within(ctx, volume.Server, nil, func(of export) error {
		opened, err := of.root.Open(".")
		if err != nil {
			return internal(err)
		}
		defer opened.Close()
		var space unix.Statfs_t
		if err := unix.Fstatfs(int(opened.Fd()), &space); err != nil {
			return internal(err)
		}
		reply.AvailableCapacity = int64(space.Bavail) * space.Bsize
		return nil
	})
	if err != nil {
		return nil, err
	}
	return reply, nil
}

func (s *controller) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	reply := &csi.ControllerGetCapabilitiesResponse{}
	for _, kind := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		reply.Capabilities = append(reply.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: kind}},
		})
	}
	return reply, nil
}
