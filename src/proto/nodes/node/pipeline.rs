//! The commands that a node has not answered. The order of the replies decides what each answers,
//! since RESP has no request ids.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Node, State};
use crate::moment::Moment;
use crate::outcome::NodeOutcome;
use crate::proto::command::Shape;
use crate::proto::fifo::Fifo;
use crate::proto::index::RoundId;
use crate::proto::kind::{Lost, Vote};
use crate::proto::limits::ROUNDS_USUAL;
use crate::proto::request::{InFlight, Question, Request};
use crate::proto::smooth::smooth;

/// A node with this many commands past their timeout is overloaded: it gets no new SET or extension
/// until none is late (R18).
const TIMED_OUT_COMMANDS_MAX: usize = 512;
/// So is a node that leaves a command unanswered for this long, or for twice its timeout if that is
/// longer. TCP retransmissions and the fork of a large process take less.
const TIMED_OUT_FOR_MAX: Duration = Duration::from_secs(1);
/// The most commands that wait for a connection.
const QUEUED_COMMANDS_MAX: usize = 8_192;
/// A node that has left so many commands unanswered is not sent what others are to be told.
const UNANSWERED_TO_NOTIFY_MAX: usize = 8_192;
/// A connection that owes replies and is silent for this long is dropped (R5 keeps it so far).
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A machine with much to do answers late many times, and clients that think a near master far
/// stand in different queues.
const LATENCY_SAMPLES_MIN: u32 = 16;

pub(crate) struct Pipeline {
    /// Commands handed out and not answered, oldest first.
    in_flight: Fifo<InFlight>,
    /// How many at the front of `in_flight` are past their timeout: never more than there are.
    timed_out: usize,
    /// Rounds whose command waits for the connection, or for room in the socket.
    queue: VecDeque<RoundId>,
    /// Commands lost with the last connection that were not handled yet. The node reconnects only
    /// after that.
    lost: VecDeque<(RoundId, Lost)>,
    pub(super) last_reply_at: Moment,
    /// Whether replies read now may have waited in the socket for a long time.
    is_read_late: bool,
    /// Smoothed time from command to reply.
    latency_nanos: Option<u64>,
    /// The shortest time from command to reply on this connection, and how many times were
    /// measured, those at the same moment once. Only replies that a waiting client also gets are
    /// measured.
    least_nanos: u64,
    samples: u32,
    timeout_nanos: u64,
}

impl Pipeline {
    pub(super) fn new(timeout: Duration) -> Pipeline {
        Pipeline {
            in_flight: Fifo::with_room(ROUNDS_USUAL),
            timed_out: 0,
            queue: VecDeque::new(),
            lost: VecDeque::new(),
            last_reply_at: Moment::from_nanos(0),
            is_read_late: false,
            latency_nanos: None,
            least_nanos: u64::MAX,
            samples: 0,
            timeout_nanos: u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// How many commands were sent and not answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// How many commands have not been answered, those included that were not sent or are lost.
    pub(crate) fn unanswered(&self) -> usize {
        self.in_flight.len() + self.queue.len() + self.lost.len()
    }

    /// The usual time from command to reply.
    pub(crate) fn latency(&self) -> Option<Duration> {
        self.latency_nanos.map(Duration::from_nanos)
    }

    /// Whether another command may wait for the connection.
    pub(super) fn has_room(&self) -> bool {
        self.queue.len() < QUEUED_COMMANDS_MAX
    }

    /// When the next of these commands is late if no reply arrives.
    pub(super) fn due(&self) -> Option<Moment> {
        self.in_flight.get(self.timed_out).map(|next| next.sent_at.after_nanos(self.timeout_nanos))
    }

    /// Since when the node has been silent while it owes replies.
    pub(crate) fn silent_since(&self) -> Option<Moment> {
        self.in_flight.first().map(|oldest| oldest.sent_at.max(self.last_reply_at))
    }

    /// When the node will have been silent for too long.
    pub(super) fn silent_until(&self) -> Option<Moment> {
        Some(self.silent_since()?.after(SILENCE_MAX))
    }

    /// Adds a latency sample. An answer that may have waited in the socket gives none: its time
    /// says when it was read, not when the node answered. Nor does one that exceeds the timeout.
    #[inline]
    fn note_latency(&mut self, nanos: u64) {
        if !self.is_read_late && nanos <= self.timeout_nanos {
            smooth(&mut self.latency_nanos, nanos);
        }
    }

    /// The connection is lost, and with it all commands: those that were sent, `unsent` ones that
    /// were not handed out, and those that waited for it.
    pub(crate) fn lose(&mut self, unsent: Vec<RoundId>) {
        self.timed_out = 0;
        let sent = self.in_flight.take_all().into_iter().filter_map(|sent| sent.request.lost());
        let unsent = unsent.into_iter().chain(std::mem::take(&mut self.queue));
        self.lost = sent.chain(unsent.map(|round| (round, Lost::Unsent))).collect();
    }

    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// The rounds whose command may run on the current connection, or ran on the last one.
    pub(crate) fn rounds(&self) -> impl Iterator<Item = RoundId> {
        let rounds = self.in_flight.iter().filter_map(|sent| sent.request.round());
        let may_have_run = |lost: &&(RoundId, Lost)| matches!(lost, (_, Lost::Sent));
        rounds.chain(self.lost.iter().filter(may_have_run).map(|(round, _)| *round))
    }

    /// A command is handed out at `sent_at`.
    #[inline(always)]
    pub(crate) fn sent(&mut self, request: Request, sent_at: Moment) {
        self.in_flight.push(InFlight { request, sent_at });
    }

    /// The round that the next reply answers, if it answers one, and when its command was sent.
    #[inline(always)]
    pub(crate) fn next_round(&self) -> Option<(RoundId, Moment)> {
        match self.in_flight.first() {
            Some(InFlight { request: Request::Round(round, _), sent_at }) => Some((round, sent_at)),
            _ => None,
        }
    }

    /// What the next reply answers.
    pub(crate) fn next_request(&self) -> Option<Request> {
        Some(self.in_flight.first()?.request)
    }

    /// The shortest time from command to reply on this connection; `None` until so many were
    /// measured that chance does not decide.
    pub(crate) fn least_latency(&self) -> Option<Duration> {
        (self.samples >= LATENCY_SAMPLES_MIN).then(|| Duration::from_nanos(self.least_nanos))
    }

    pub(crate) fn forget_least_latency(&mut self) {
        (self.least_nanos, self.samples) = (u64::MAX, 0);
    }

    #[inline(always)]
    pub(crate) fn is_in_time(&self, nanos: u64) -> bool {
        nanos <= self.timeout_nanos
    }

    /// The next reply came, for the round that [`next_round`](|node| node.pipeline.next_round())
    /// returned.
    #[inline(always)]
    pub(crate) fn drop_next(&mut self) {
        self.in_flight.drop_first();
    }

    /// Whether another command may be sent that tells others of a turn.
    pub(crate) fn has_room_to_notify(&self) -> bool {
        self.in_flight() < UNANSWERED_TO_NOTIFY_MAX
    }

    /// Whether the command of such a round waits for the connection.
    pub(crate) fn waits_for_any(&self, is_it: impl Fn(RoundId) -> bool) -> bool {
        self.queue.iter().any(|round| is_it(*round))
    }

    /// Takes the request that a reply at `now` answers.
    #[inline]
    pub(crate) fn take_answered(&mut self, now: Moment) -> Option<InFlight> {
        let answered = self.in_flight.take_first()?;
        self.timed_out = self.timed_out.saturating_sub(1);
        self.note_reply(now, answered.sent_at);
        Some(answered)
    }

    #[inline(always)]
    fn note_reply(&mut self, now: Moment, sent_at: Moment) {
        let nanos = now.nanos_since(sent_at);
        let is_another = self.last_reply_at != now;
        self.samples = self.samples.saturating_add(u32::from(is_another));
        self.least_nanos = self.least_nanos.min(nanos);
        self.last_reply_at = now;
        self.note_latency(nanos);
    }

    /// Takes a check of the clock, if it is next and nothing is late. Returns when it was sent.
    #[inline(always)]
    pub(super) fn take_check(&mut self, now: Moment) -> Option<Moment> {
        let InFlight { request, sent_at } = self.in_flight.first()?;
        match request {
            Request::About(Question::Time) if !self.has_timed_out() => {}
            _ => return None,
        }
        self.in_flight.drop_first();
        self.note_reply(now, sent_at);
        Some(sent_at)
    }

    #[inline]
    pub(crate) fn has_timed_out(&self) -> bool {
        self.timed_out > 0
    }

    /// Whether a command sent now would probably be answered much too late. Ask after the node's
    /// replies were read.
    pub(crate) fn is_far_behind(&self, now: Moment) -> bool {
        let Pipeline { in_flight, timed_out, timeout_nanos, .. } = self;
        if *timed_out == 0 {
            return false;
        }
        let twice = Duration::from_nanos(timeout_nanos.saturating_mul(2));
        let timed_out_for_max = TIMED_OUT_FOR_MAX.max(twice);
        let is_old = |oldest: InFlight| now.steadily_since(oldest.sent_at) >= timed_out_for_max;
        *timed_out >= TIMED_OUT_COMMANDS_MAX || in_flight.first().is_some_and(is_old)
    }

    /// Until [`reading_in_time`](|node| node.pipeline.reading_in_time()), the age of a reply is no
    /// latency sample.
    pub(crate) fn reading_late(&mut self, since: Option<Moment>) {
        let first = self.in_flight.first().filter(|first| since >= Some(first.sent_at));
        if let (Some(since), Some(first)) = (since, first) {
            self.note_latency(since.nanos_since(first.sent_at));
        }
        self.is_read_late = true;
    }

    pub(crate) fn reading_in_time(&mut self) {
        self.is_read_late = false;
    }

    /// A round's command has to wait for the connection, or for room in the socket.
    pub(crate) fn wait(&mut self, round: RoundId) {
        self.queue.push_back(round);
    }

    /// Takes the rounds whose commands waited.
    pub(crate) fn take_waiting(&mut self) -> VecDeque<RoundId> {
        std::mem::take(&mut self.queue)
    }

    /// Withdraws a round whose command waits.
    pub(crate) fn retract(&mut self, is_it: impl Fn(&RoundId) -> bool) -> Option<RoundId> {
        // Usually the wanted one is near the end; when many fail at once, each is the first.
        let queue = &mut self.queue;
        let is_first = queue.front().is_some_and(&is_it);
        let at = if is_first { Some(0) } else { queue.iter().rposition(is_it) };
        queue.remove(at?)
    }

    #[cold]
    pub(crate) fn is_lost(&self, now: Moment) -> bool {
        self.silent_until().is_some_and(|until| now >= until)
    }
}

impl Node {
    /// When the command was sent that the next reply answers, if one is owed.
    pub fn awaited_since(&self) -> Option<Moment> {
        Some(self.pipeline.in_flight.first()?.sent_at)
    }

    /// Whether the next reply is the server's time. If so, the clock is to be read again before
    /// that is passed in.
    #[inline]
    pub fn is_telling_time(&self) -> bool {
        let next = self.pipeline.in_flight.first();
        next.is_some_and(|it| matches!(it.request, Request::About(question) if question.is_time()))
    }

    /// The meaning of an integer in the next reply.
    #[inline(never)]
    pub fn awaits(&self) -> Shape {
        self.pipeline.next_request().map_or(Shape::Number, Request::shape)
    }

    /// Replies came in time; this is the last one's vote and its latency.
    #[inline(always)]
    pub(crate) fn note_in_time(&mut self, now: Moment, vote: Vote, nanos: u64) {
        self.pipeline.last_reply_at = now;
        self.note_vote(vote);
        self.pipeline.note_latency(nanos);
    }

    /// The last vote, with its time unless its reply was read late: it says when that was.
    #[inline(always)]
    pub(crate) fn note_vote(&mut self, vote: Vote) {
        self.last_vote = vote;
        if self.pipeline.is_read_late {
            self.last_vote = vote.without_latency();
        }
    }

    /// Whether it is ready and has answered every command: anything it sends now was not requested.
    pub fn is_idle(&self) -> bool {
        self.state() == State::Ready && self.pipeline.in_flight.is_empty()
    }

    /// The next request whose reply is past its timeout at `now`; counts it as late.
    pub(crate) fn next_timed_out(&mut self, now: Moment) -> Option<Request> {
        let (State::Ready | State::Limited) = self.state() else {
            return None;
        };
        let Pipeline { in_flight, timed_out, timeout_nanos, .. } = &mut self.pipeline;
        let next = in_flight.get(*timed_out)?;
        (now >= next.sent_at.after_nanos(*timeout_nanos)).then(|| {
            *timed_out += 1;
            self.errors.timeouts += 1;
            next.request
        })
    }

    /// The next command that was lost with the last connection, and how that ended.
    pub(crate) fn next_lost(&mut self) -> Option<(RoundId, Lost, NodeOutcome)> {
        let (round, lost) = self.pipeline.lost.pop_front()?;
        Some((round, lost, self.link.last_failure()))
    }
}
