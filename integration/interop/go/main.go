// A producer and a consumer on the published Go client, for tests of other clients.
//
//	interop publish -lookupd=host:port -topic=t    reads messages, one JSON object a line, and publishes each
//	interop consume -lookupd=host:port -topic=t -channel=c -count=n    prints n messages, one JSON object a line
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spaolacci/murmur3"
	nsq "github.com/youzan/go-nsq"
)

// Outgoing is a message to publish. Key is null for none; Ext is whether it has headers, a tag or a trace id in them.
type Outgoing struct {
	Body    []byte                 `json:"body"`
	Key     *string                `json:"key"`
	Trace   uint64                 `json:"trace_id"`
	Ext     bool                   `json:"ext"`
	Tag     string                 `json:"tag"`
	Headers map[string]interface{} `json:"headers"`
}

// Receipt is the answer to one publish.
type Receipt struct {
	ID      uint64 `json:"internal_id"`
	Offset  uint64 `json:"offset"`
	RawSize uint32 `json:"raw_size"`
	Error   string `json:"error"`
}

// Incoming is a message that was delivered. Ext is its extension header as it came.
type Incoming struct {
	Body     []byte `json:"body"`
	Part     string `json:"partition"`
	ID       uint64 `json:"internal_id"`
	Trace    uint64 `json:"trace_id"`
	Offset   uint64 `json:"offset"`
	RawSize  uint32 `json:"raw_size"`
	Attempts uint16 `json:"attempts"`
	Ext      string `json:"ext"`
	Tag      string `json:"tag"`
}

var (
	lookupd  = flag.String("lookupd", "", "addresses of nsqlookupds, separated by commas")
	topic    = flag.String("topic", "", "topic")
	channel  = flag.String("channel", "", "channel")
	count    = flag.Int("count", 1, "how many messages to consume")
	limit    = flag.Duration("limit", 30*time.Second, "how long to wait for them")
	ordered  = flag.Bool("ordered", false, "consume in order")
	trace    = flag.Bool("trace", false, "consume with offsets")
	tag      = flag.String("tag", "", "consume messages with this tag")
	compress = flag.String("compress", "", "publish bodies compressed: gzip, snappy or lz4")
)

func main() {
	if len(os.Args) < 2 {
		log.Fatal("publish or consume?")
	}
	flag.CommandLine.Parse(os.Args[2:])
	work := map[string]func(*nsq.Config) error{"publish": publish, "consume": consume}[os.Args[1]]
	if work == nil {
		log.Fatalf("publish or consume, not %s", os.Args[1])
	}
	if err := work(config()); err != nil {
		log.Fatal(err)
	}
}

func config() *nsq.Config {
	config := nsq.NewConfig()
	config.Hasher = murmur3.New32()
	config.LookupdSeeds = strings.Split(*lookupd, ",")
	options := map[string]interface{}{
		"lookupd_poll_interval": "1s",
		"lookupd_poll_jitter":   0.0,
		"enable_ordered":        *ordered,
		"enable_trace":          *trace,
	}
	if *tag != "" {
		options["desired_tag"] = *tag
	}
	if *compress != "" {
		options["client_compress_decodec"] = *compress
		config.TopicsForCompress = []string{*topic}
		config.MessageSizeForCompress = 1
	}
	if secret := os.Getenv("NSQ_HA_TEST_AUTH_SECRET"); secret != "" {
		options["auth_secret"] = secret
	}
	switch os.Getenv("NSQ_HA_TEST_COMPRESSION") {
	case "snappy":
		options["snappy"] = true
	case "deflate":
		options["deflate"] = true
	}
	for name, value := range options {
		if err := config.Set(name, value); err != nil {
			log.Fatal(err)
		}
	}
	return config
}

func logger() *log.Logger { return log.New(os.Stderr, "", log.Ltime) }

func publish(config *nsq.Config) error {
	producer, err := nsq.NewTopicProducerMgr([]string{*topic}, config)
	if err != nil {
		return err
	}
	producer.SetLogger(logger(), nsq.LogLevelError)
	if err := producer.ConnectToSeeds(); err != nil {
		return err
	}
	defer producer.Stop()
	output := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 2<<20)
	for lines.Scan() {
		var message Outgoing
		if err := json.Unmarshal(lines.Bytes(), &message); err != nil {
			return err
		}
		if err := output.Encode(send(producer, &message)); err != nil {
			return err
		}
	}
	return lines.Err()
}

func send(producer *nsq.TopicProducerMgr, message *Outgoing) Receipt {
	var id nsq.NewMessageID
	var offset uint64
	var size uint32
	var err error
	headers := message.Headers
	if headers == nil { // the client writes into it
		headers = map[string]interface{}{}
	}
	ext := &nsq.MsgExt{TraceID: message.Trace, DispatchTag: message.Tag, Custom: headers}
	switch {
	case message.Key != nil && message.Ext:
		id, offset, size, err = producer.PublishOrderedWithJsonExt(*topic, []byte(*message.Key), message.Body, ext)
	case message.Key != nil:
		id, offset, size, err = producer.PublishOrdered(*topic, []byte(*message.Key), message.Body)
	case message.Ext:
		id, offset, size, err = producer.PublishWithJsonExt(*topic, message.Body, ext)
	case message.Trace != 0:
		id, offset, size, err = producer.PublishAndTrace(*topic, message.Trace, message.Body)
	default:
		err = producer.Publish(*topic, message.Body)
	}
	receipt := Receipt{ID: uint64(id), Offset: offset, RawSize: size}
	if err != nil {
		receipt.Error = err.Error()
	}
	return receipt
}

func consume(config *nsq.Config) error {
	consumer, err := nsq.NewConsumer(*topic, *channel, config)
	if err != nil {
		return err
	}
	consumer.SetLogger(logger(), nsq.LogLevelError)
	var guard sync.Mutex
	output := json.NewEncoder(os.Stdout)
	seen := 0
	done := make(chan struct{})
	consumer.AddHandler(nsq.HandlerFunc(func(message *nsq.Message) error {
		guard.Lock()
		defer guard.Unlock()
		if seen >= *count {
			return errors.New("enough")
		}
		if err := output.Encode(incoming(message)); err != nil {
			return err
		}
		if seen++; seen == *count {
			close(done)
		}
		return nil
	}))
	if err := consumer.ConnectToSeeds(); err != nil {
		return err
	}
	select {
	case <-done:
	case <-time.After(*limit):
		err = fmt.Errorf("got %d messages of %d in %s", seen, *count, *limit)
	}
	consumer.Stop()
	<-consumer.StopChan
	return err
}

func incoming(message *nsq.Message) Incoming {
	found := Incoming{
		Body:     message.Body,
		Part:     message.Partition,
		ID:       uint64(nsq.GetNewMessageID(message.ID[:])),
		Trace:    message.GetTraceID(),
		Offset:   message.Offset,
		RawSize:  message.RawSize,
		Attempts: message.Attempts,
		Ext:      string(message.ExtBytes),
	}
	if ext, err := message.GetJsonExt(); err == nil {
		found.Tag = ext.DispatchTag
	}
	return found
}
