package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Longest body of a request to a mounter.
const bodyBytesMax = 64 << 10

// refusal is an error as it travels to a mounter's clients.
type refusal struct {
	Code    codes.Code `json:"code"`
	Message string     `json:"message"`
}

// serveMounts answers requests for mounts over a socket. So the driver can be replaced while mounts go on: their
// processes are children of this one.
func serveMounts(ctx context.Context, listener net.Listener, mounter Mounter) error {
	answer := func(work func(context.Context, *http.Request) error) http.HandlerFunc {
		return func(out http.ResponseWriter, request *http.Request) {
			request.Body = http.MaxBytesReader(out, request.Body, bodyBytesMax)
			if err := work(request.Context(), request); err != nil {
				out.WriteHeader(http.StatusConflict)
				found := status.Convert(err)
				json.NewEncoder(out).Encode(refusal{found.Code(), found.Message()})
			}
		}
	}
	handler := http.NewServeMux()
	handler.HandleFunc("POST /mount", answer(func(ctx context.Context, request *http.Request) error {
		var wanted MountRequest
		if err := json.NewDecoder(request.Body).Decode(&wanted); err != nil {
			return invalid("%v", err)
		}
		if err := checkOptions(wanted.Options); err != nil {
			return err
		}
		if _, err := NewVolume(wanted.Server, "/"); err != nil {
			return invalid("%v", err)
		}
		return mounter.Mount(ctx, wanted)
	}))
	handler.HandleFunc("POST /unmount", answer(func(ctx context.Context, request *http.Request) error {
		var wanted MountRequest
		if err := json.NewDecoder(request.Body).Decode(&wanted); err != nil {
			return invalid("%v", err)
		}
		return mounter.Unmount(ctx, wanted.Target)
	}))
	handler.HandleFunc("GET /check", answer(func(context.Context, *http.Request) error { return mounter.Check() }))
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10}
	go func() {
		<-ctx.Done()
		server.Close()
	}()
	if err := server.Serve(listener); err != http.ErrServerClosed {
		return err
	}
	return nil
}

// listenPrivately listens on a socket that only its user can connect to.
func listenPrivately(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(path, 0o600)
}

// Remote asks a mounter that another process is.
type Remote struct {
	client http.Client
	path   string
}

// NewRemote is the mounter at a socket.
func NewRemote(path string) *Remote {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	return &Remote{client: http.Client{Transport: &http.Transport{DialContext: dial}}, path: path}
}

func (m *Remote) call(ctx context.Context, method, name string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return internal(err)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://mounter/"+name, bytes.NewReader(text))
	if err != nil {
		return internal(err)
	}
	reply, err := m.client.Do(request)
	if err != nil {
		return status.Errorf(codes.Unavailable, "the mounter at %s does not answer: %v", m.path, err)
	}
	defer reply.Body.Close()
	if reply.StatusCode == http.StatusOK {
		return nil
	}
	var found refusal
	if err := json.NewDecoder(io.LimitReader(reply.Body, bodyBytesMax)).Decode(&found); err != nil {
		return status.Errorf(codes.Internal, "the mounter at %s: %v", m.path, fmt.Sprint(reply.Status))
	}
	return status.Error(found.Code, found.Message)
}

// Mount is as the mounter's.
func (m *Remote) Mount(ctx context.Context, request MountRequest) error {
	return m.call(ctx, "POST", "mount", request)
}

// Unmount is as the mounter's.
func (m *Remote) Unmount(ctx context.Context, target string) error {
	return m.call(ctx, "POST", "unmount", MountRequest{Target: target})
}

// Check asks whether the mounter is there and can work.
func (m *Remote) Check() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return m.call(ctx, "GET", "check", nil)
}
