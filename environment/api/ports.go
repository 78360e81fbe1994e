package api

// MethodPublish gives ports of an environment a place on this machine.
const MethodPublish = "publish"

// Port is a port inside, and the one of the host's loopback where it is or is to
// be; 0 for any.
type Port struct {
	Host   uint16 `json:"host"`
	Inside uint16 `json:"inside"`
}

// Publish are the parameters of MethodPublish.
type Publish struct {
	Caller Caller `json:"caller"`
	Env    string `json:"env"`
	Ports  []Port `json:"ports"`
}

// Ports is the answer to Publish: where they are.
type Ports struct {
	Ports []Port `json:"ports"`
}
