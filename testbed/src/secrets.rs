//! Addresses with passwords in every place, of which no output may show one.

/// Our forms and those of other clients, with `{}` in the place of a password. No server is there.
pub const FORMS: [&str; 79] = [
    // Ours.
    "redis://:{}@127.0.0.1:1",
    "redis://user:{}@127.0.0.1:1/0",
    "redis://{}@127.0.0.1:1",
    "redis://127.0.0.1:1?password={}",
    "redis://127.0.0.1:1?restart_guard={}",
    "redis://127.0.0.1:1?{}=yes",
    "redis://127.0.0.1:1?{}",
    "redis://127.0.0.1:1#{}",
    "redis://127.0.0.1:1/0#{}",
    "redis://user:{}@127.0.0.1:0",
    "redis://user:{}@127.0.0.1:x",
    "redis://user:{}@127.0.0.1:1/x",
    "redis://user:{}@127.0.0.1:1?x=1",
    "redis://user:{}@127.0.0.1:1#x",
    "redis://user:{}@[::1:1",
    "redis://user:{}@[x]:1",
    "redis://user:{}@127.0.0.1:1, redis://:{}@127.0.0.1:2",
    "valkey://:{}@127.0.0.1:1",
    "rediss://:{}@127.0.0.1:1?verify=no",
    "rediss://:{}@127.0.0.1:1?ca=/nonexistent",
    "rediss://127.0.0.1:1?verify={}",
    "redis+sentinel://:{}@127.0.0.1:1,127.0.0.1:2/main",
    "redis+sentinel://:{}@127.0.0.1:1,:{}@127.0.0.1:2/main",
    "redis+sentinel://user:{}@127.0.0.1:1,127.0.0.1:2",
    "redis+sentinel://127.0.0.1:1/main?sentinel_password={}",
    "redis+sentinel://127.0.0.1:1/main?sentinel_password={}&x=1",
    "redis+sentinel://127.0.0.1:1/main?password={}",
    "redis+sentinel://127.0.0.1:1/main#{}",
    "unix://:{}@/nonexistent/s",
    "unix://user:{}@/nonexistent/s?db=0",
    "unix://user:{}@/nonexistent/s?db=x",
    "unix://:{}@nonexistent/s",
    "unix://{}@/nonexistent/s",
    "unix:///:{}@/nonexistent/s",
    "unix:///user:{}@nonexistent/s",
    "unix:///{}@/nonexistent/s",
    "unix://:{}/nonexistent/s",
    "unix:///:{}/nonexistent/s",
    "unix://{}",
    "unix:///nonexistent/s?password={}",
    "unix:///nonexistent/s?{}",
    "unix:///nonexistent/s#{}",
    "unix:///nonexistent/s,password={}",
    "unix:/:{}@/nonexistent/s",
    // redis-rs.
    "redis+unix:///nonexistent/s?db=0&user=u&pass={}",
    "redis+unix:///:{}@nonexistent/s?db=0",
    // redis-py, Celery.
    "unix://user@/nonexistent/s?db=0&password={}",
    "redis://127.0.0.1:1/0?username=u&password={}",
    "redis+socket://:{}@/nonexistent/s?virtual_host=0",
    "redis+socket:///nonexistent/s?password={}",
    "sentinel://:{}@127.0.0.1:1;sentinel://:{}@127.0.0.1:2",
    // node-redis, ioredis.
    "//:{}@127.0.0.1:1/4",
    "redis://:{}@127.0.0.1:1/4?family=4&password={}",
    "redis://default:{}@127.0.0.1:1/?tls=true",
    // go-redis, redsync.
    "unix://user:{}@/nonexistent/s?dial_timeout=5s",
    "redis://user:{}@127.0.0.1:1/3?dial_timeout=3&client_name=x",
    // Jedis, Lettuce, Redisson, Spring.
    "redis-socket://{}@/nonexistent/s",
    "redis-socket://user:{}@/nonexistent/s?database=1",
    "redis-sentinel://{}@127.0.0.1:1,127.0.0.1:2/0#main",
    "redis-sentinel://127.0.0.1:1?sentinelMasterId=main&password={}",
    "redis://{}@127.0.0.1:1/2?timeout=10s",
    "rediss+sentinel://:{}@127.0.0.1:1?x",
    // redis-rb, redis-store, Sidekiq.
    "redis://:{}@127.0.0.1:1/0/cache",
    "unix://user:{}@/nonexistent/s?db=1",
    // hiredis, redis-cli.
    "redis-cli -u redis://user:{}@127.0.0.1:1",
    "-a {} -h 127.0.0.1",
    // StackExchange.Redis, CSRedis, ServiceStack.
    "127.0.0.1:1,password={}",
    "127.0.0.1:1,127.0.0.1:2,ssl=true,password={},abortConnect=false",
    "127.0.0.1:1,user=u,password={},defaultDatabase=0",
    "{}@127.0.0.1:1?db=1",
    // phpredis, predis.
    "tcp://127.0.0.1:1?auth={}",
    "tcp://127.0.0.1:1?auth[user]=u&auth[pass]={}",
    "tls://127.0.0.1:1?password={}&database=0",
    "unix:///nonexistent/s?persistent=1&database=0&auth={}",
    "unix:/nonexistent/s?password={}",
    // What is no address.
    "{}",
    "user:{}",
    "http://:{}@127.0.0.1:1",
    "{\"host\":\"127.0.0.1\",\"password\":\"{}\"}",
];

/// Each piece of a password has this.
const MARK: &str = "zqx";

/// Fails if what is shown of an address has a piece of its password.
///
/// # Panics
///
/// Panics if it has.
#[track_caller]
pub fn check(address: &str, output: &str) {
    let lower = output.to_lowercase();
    let secret = [MARK, "%7a%71", "7a7178"].iter().find(|secret| lower.contains(*secret));
    assert_eq!(secret, None, "of {address:?}, this is shown: {output}");
}
