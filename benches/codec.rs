//! Commands to bytes and bytes to replies, without a socket and without an operation.

use std::hint::black_box;

use bytes::BytesMut;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use muxlock::node::ReleaseWith;
use muxlock::proto::Command;
use muxlock::resp::{ReplyReader, encode};
use testbed::memory::Group;

/// As many commands or replies as an event loop may well find in one turn.
const BATCH: usize = 64;
/// More than a batch of the longest command.
const ENCODED_BYTES_MAX: usize = 64 * 1024;
/// What any server may say when it is busy.
const ERROR: &[u8] = b"-LOADING Redis is loading the dataset in memory\r\n";

fn encoding(criterion: &mut Criterion) {
    let (token, ttl) = Group::new(1).token_and_ttl();
    let (token, key) = (&token, b"invoice:42".as_slice());
    let mut group = criterion.benchmark_group("encode");
    let commands = [
        ("set", Command::Acquire { key, token, ttl }),
        ("extend", Command::Extend { key, token, ttl }),
        ("heal", Command::Heal { key, token, ttl }),
        ("release", Command::Release { key, token, with: ReleaseWith::Script }),
        ("release_delex", Command::Release { key, token, with: ReleaseWith::Delex }),
    ];
    for (name, command) in commands {
        bench_encode(&mut group, name, &[command]);
        bench_encode(&mut group, &format!("{name}_batch_{BATCH}"), &[command; BATCH]);
    }
    group.finish();
}

/// Encodes these commands into one buffer, which is used again and again.
fn bench_encode(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, commands: &[Command<'_>]) {
    let mut out = BytesMut::with_capacity(ENCODED_BYTES_MAX);
    let mut encode_all = || {
        out.clear();
        for command in black_box(commands) {
            encode(command, &mut out);
        }
        black_box(&out).len()
    };
    group.throughput(Throughput::Bytes(encode_all() as u64));
    group.bench_function(name, |bencher| bencher.iter(&mut encode_all));
}

fn decoding(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    let single: [(&str, &[u8]); 4] =
        [("ok", b"+OK\r\n"), ("integer", b":1\r\n"), ("nil", b"$-1\r\n"), ("error", ERROR)];
    for (name, bytes) in single {
        bench_decode(&mut group, name, bytes, 1, bytes.len());
    }
    // What pairs of acquisition and release bring.
    let pipelined = b"+OK\r\n:1\r\n".repeat(BATCH / 2);
    bench_decode(&mut group, "pipelined_64", &pipelined, BATCH, pipelined.len());
    // Every reply is cut at each of its bytes, and looked at again and again.
    bench_decode(&mut group, "pipelined_64_byte_by_byte", &pipelined, BATCH, 1);
    group.finish();
}

/// Reads a stream of this many replies that arrives in pieces of one size.
fn bench_decode(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    stream: &[u8],
    replies: usize,
    piece: usize,
) {
    let mut reader = ReplyReader::new();
    group.throughput(Throughput::Elements(replies as u64));
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            let read: usize =
                black_box(stream).chunks(piece).map(|bytes| receive(&mut reader, bytes)).sum();
            assert_eq!(read, replies, "every reply was read");
        });
    });
}

/// Takes in what arrived, and says how many replies that completed.
fn receive(reader: &mut ReplyReader, bytes: &[u8]) -> usize {
    reader.room()[..bytes.len()].copy_from_slice(bytes);
    reader.filled(bytes.len());
    let mut replies = 0;
    while let Some(reply) = reader.next().expect("well-formed replies") {
        black_box(reply);
        replies += 1;
    }
    replies
}

criterion_group!(benches, encoding, decoding);
criterion_main!(benches);
