package main

import (
	"encoding/json"
	"os"
	"sync"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
)

// history writes one line of JSON for each event (src/history.rs).
type history struct {
	mu   sync.Mutex
	file *os.File
}

type version struct {
	Commit epicepoch.Timestamp `json:"commit"`
	Start  epicepoch.Timestamp `json:"start"`
	Value  int64               `json:"value"`
}

type seen struct {
	Row     string   `json:"row"`
	Version *version `json:"version"`
}

type written struct {
	Row   string `json:"row"`
	Value int64  `json:"value"`
}

type trying struct {
	Line   string              `json:"line"`
	Client string              `json:"client"`
	Start  epicepoch.Timestamp `json:"start"`
	Writes []written           `json:"writes"`
}

type outcome struct {
	Is     string               `json:"is"`
	Commit *epicepoch.Timestamp `json:"commit,omitempty"`
	Why    string               `json:"why,omitempty"`
}

type figures struct {
	Forward int64 `json:"forward"`
	Back    int64 `json:"back"`
}

type ended struct {
	Line    string              `json:"line"`
	Client  string              `json:"client"`
	Kind    string              `json:"kind"`
	Start   epicepoch.Timestamp `json:"start"`
	Reads   []seen              `json:"reads"`
	Writes  []written           `json:"writes"`
	Outcome outcome             `json:"outcome"`
	Figures figures             `json:"figures"`
}

type noTimestamp struct {
	Line string `json:"line"`
	Why  string `json:"why"`
}

// record writes the whole line at once. So a kill leaves complete lines.
func (h *history) record(line any) error {
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err = h.file.Write(append(text, '\n'))
	return err
}
