//! A turn of a client's event loop: read, look at the time, send, take what has ended.
//!
//! The loop is that of the multiplexer, with two differences: the sockets are pipes, and the
//! process may be held up between any two steps.

use std::io::ErrorKind;
use std::ops::Range;

use muxlock::error::ProtocolError;
use muxlock::node::NodeOutcome;
use muxlock::proto::{Action, Command, Grant, NodeEvent, Push, Reply, Section, Shape, WaitMessage};
use muxlock::resp::{self, meaning};
use muxlock::{LockToken, Moment};

use super::World;
use super::client::{Stage, Step, What};
use super::clock::{MICRO, MILLI};
use super::forms::as_plain;
use super::keep::is_new_renewal;
use super::looks::check_looked;
use super::network::{Asked, ClientEnd, Way};
use super::queue::Event;
use super::rare::Rare;
use super::timeline::Short;
use super::work::digits;

/// What a socket may have to send before the node is told to be blocked.
const UNSENT_BYTES_MAX: usize = 2 * 1024;
/// Reads from one node in one turn.
const READS_PER_TURN_MAX: usize = 16;
/// An engine that has this many turns at one moment is spinning.
const TURNS_PER_MOMENT_MAX: u32 = 64;

impl World {
    /// One turn of a client's event loop, or the rest of one that was held up.
    pub fn client_turn(&mut self, client: usize, at: u64) {
        let it = &mut self.clients[client];
        if at != it.wake_at {
            return;
        }
        it.wake_at = u64::MAX;
        loop {
            match self.clients[client].stage {
                Stage::Read => {
                    for slot in 0..self.plan.nodes {
                        self.look_at(client, slot);
                    }
                    self.clients[client].stage = Stage::Time;
                }
                Stage::Time => {
                    let now = self.client_now(client);
                    // As the event loop does, so that what is noted as due has to be right.
                    let engine = &mut self.clients[client].engine;
                    if engine.advance(now) {
                        engine.handle_timeout(now);
                    }
                    self.check_told(client);
                    self.clients[client].stage = Stage::Flush;
                }
                Stage::Flush => {
                    if !self.flush(client) {
                        return;
                    }
                    self.clients[client].stage = Stage::Take;
                }
                Stage::Take => {
                    self.may_cancel_ended(client);
                    if self.take(client) {
                        self.clients[client].stage = Stage::Flush;
                    } else {
                        self.clients[client].stage = Stage::Read;
                        break;
                    }
                }
            }
            if self.may_pause(client) {
                return;
            }
        }
        self.check_turn(client);
        self.sleep(client);
    }

    /// Arranges for the next turn when something is due.
    fn sleep(&mut self, client: usize) {
        let it = &mut self.clients[client];
        (it.turns, it.spun_at) =
            if it.spun_at == self.now { (it.turns + 1, self.now) } else { (0, self.now) };
        if it.turns > TURNS_PER_MOMENT_MAX {
            let turns = it.turns;
            self.fail("NO-SPIN", || format!("client {client}: {turns} turns at one moment"));
            return;
        }
        if let Some(due) = it.engine.poll_timeout() {
            let mut at = it.clock.when(due.as_nanos());
            if self.choices.chance(self.plan.process.late_timer) {
                at += self.choices.magnitude(10 * MICRO, 10 * MILLI);
            }
            self.wake_client(client, at);
        }
    }

    /// Does what a socket is ready for.
    fn look_at(&mut self, client: usize, slot: usize) {
        let Some(id) = self.clients[client].slots[slot].connection else {
            return;
        };
        match self.connections[id].client_end {
            ClientEnd::Connecting => return,
            ClientEnd::Refused => {
                return self.drop_socket(client, slot, ErrorKind::ConnectionRefused);
            }
            ClientEnd::Established => {}
            ClientEnd::Closed => unreachable!("a closed socket belongs to nobody"),
        }
        if !std::mem::replace(&mut self.clients[client].slots[slot].is_connected, true) {
            let now = self.client_now(client);
            self.clients[client].engine.handle_node(now, slot, NodeEvent::Connected);
        }
        let unsent = std::mem::take(&mut self.clients[client].slots[slot].unsent);
        if !unsent.is_empty() {
            self.write(client, slot, &unsent);
        }
        if self.clients[client].slots[slot].unsent.is_empty() {
            let now = self.client_now(client);
            self.clients[client].engine.handle_node(now, slot, NodeEvent::Writable);
        }
        self.receive(client, slot, id);
        self.look_beside(client, slot);
    }

    /// The server may have answered on a second connection. Nothing else was sent there.
    fn look_beside(&mut self, client: usize, slot: usize) {
        let it = &mut self.clients[client].slots[slot];
        let answered = it.answered_beside.take();
        if answered.is_none() || answered != it.connection {
            return;
        }
        let now = self.client_now(client);
        let engine = &mut self.clients[client].engine;
        self.rare.hit_if(engine.node(slot).is_lost_if_another_answers(), Rare::AnsweredBeside);
        engine.handle_node(now, slot, NodeEvent::AnsweredBeside);
    }

    fn connect_beside(&mut self, client: usize, slot: usize, silent_since: Option<Moment>) {
        let Some(id) = self.clients[client].slots[slot].connection else {
            return;
        };
        let opened_at = self.clients[client].engine.last_now();
        let beside = &mut self.connections[id].beside;
        let is_of = |since| beside.is_some_and(|(opened_at, _)| opened_at > since);
        if silent_since.is_some_and(is_of) {
            return;
        }
        // It is made, and then asked: two round trips.
        let at = self.arrival() + 4 * self.distance(client);
        self.connections[id].beside = Some((opened_at, at));
        self.queue.push(at, Event::Beside(id));
    }

    fn receive(&mut self, client: usize, slot: usize, id: usize) {
        for _ in 0..READS_PER_TURN_MAX {
            let readable = self.connections[id].down.readable();
            if readable == 0 {
                if self.connections[id].down.has_ended {
                    self.drop_socket(client, slot, ErrorKind::UnexpectedEof);
                } else {
                    self.may_surprise(client, slot, id);
                }
                return;
            }
            let is_partial = self.choices.chance(self.plan.wire.partial);
            let count = if is_partial {
                1 + self.choices.below(readable as u32) as usize
            } else {
                readable
            };
            let room = self.clients[client].slots[slot].reader.room();
            let count = count.min(room.len());
            room[..count].copy_from_slice(&self.connections[id].down.peek()[..count]);
            self.connections[id].down.consume(count);
            self.clients[client].slots[slot].reader.filled(count);
            if !self.pass_replies(client, slot, id) {
                return;
            }
            if count < readable && is_partial {
                self.rare.hit(Rare::PartialRead);
                self.wake_client(client, self.now + 50 * MICRO);
                return;
            }
        }
        self.wake_client(client, self.now);
    }

    /// Passes complete replies on to the engine. Returns whether the socket is still there.
    fn pass_replies(&mut self, client: usize, slot: usize, id: usize) -> bool {
        loop {
            self.pass_grants(client, slot, id);
            if self.pass_told(client, slot, id) {
                continue;
            }
            if self.clients[client].slots[slot].reader.is_at_push() {
                match self.pass_push(client, slot, id) {
                    Some(true) => continue,
                    Some(false) => return true,
                    None => return false,
                }
            }
            match self.clients[client].slots[slot].reader.next() {
                Ok(None) => return true,
                Ok(Some(reply)) => {
                    self.note_reply(client, slot, id);
                    let now = self.client_now(client);
                    self.note_told(client, slot, id);
                    let is_vote = self.clients[client].engine.node(slot).awaits() == Shape::Vote;
                    if is_vote && reply == Reply::Nil {
                        self.note_refused(client, slot);
                    }
                    self.timeline.note(self.now, || {
                        format!("client {client} reads {reply:?} from node {slot}")
                    });
                    let engine = &mut self.clients[client].engine;
                    engine.handle_reply(now, slot, meaning(reply, || engine.node(slot).awaits()));
                }
                Err(error) => {
                    self.refuse_bytes(client, slot, error);
                    return false;
                }
            }
        }
    }

    /// Passes a server's time on, if it comes next. Returns whether it does.
    fn pass_told(&mut self, client: usize, slot: usize, id: usize) -> bool {
        let Some(time) = self.clients[client].slots[slot].reader.time() else {
            return false;
        };
        self.note_reply(client, slot, id);
        let now = self.client_now(client);
        self.note_told(client, slot, id);
        let text = || format!("client {client} reads {time:?} from node {slot}");
        self.timeline.note(self.now, text);
        self.clients[client].engine.handle_node(now, slot, NodeEvent::Told(time));
        true
    }

    /// Passes a push on. Returns whether one was complete; `None` if the socket is gone.
    fn pass_push(&mut self, client: usize, slot: usize, id: usize) -> Option<bool> {
        let now = self.client_now(client);
        let it = &mut self.clients[client];
        let is_answer = match it.slots[slot].reader.next_push() {
            Ok(None) => return Some(false),
            Ok(Some(push)) => {
                self.timeline
                    .note(self.now, || format!("client {client} is told {push:?} by node {slot}"));
                it.engine.handle_push(now, slot, push);
                self.rare.hit_if(push == Push::Flushed, Rare::FlushTold);
                matches!(push, Push::Subscribed(_))
            }
            Err(error) => {
                self.refuse_bytes(client, slot, error);
                return None;
            }
        };
        if is_answer {
            self.note_reply(client, slot, id);
        }
        Some(true)
    }

    fn refuse_bytes(&mut self, client: usize, slot: usize, error: ProtocolError) {
        self.timeline
            .note(self.now, || format!("client {client} refuses what node {slot} says: {error:?}"));
        let now = self.client_now(client);
        self.close(client, slot);
        let outcome = NodeOutcome::Protocol(error);
        self.clients[client].engine.handle_node(now, slot, NodeEvent::Disconnected(outcome));
    }

    /// Those that may be passed on together.
    fn pass_grants(&mut self, client: usize, slot: usize, id: usize) {
        let reader = &mut self.clients[client].slots[slot].reader;
        let grants: Vec<Grant> = reader.grants().collect();
        grants.iter().for_each(|_| self.note_reply(client, slot, id));
        let now = self.client_now(client);
        if !grants.is_empty() {
            self.timeline
                .note(self.now, || format!("client {client} reads {grants:?} from node {slot}"));
        }
        let mut grants = grants.into_iter();
        let engine = &mut self.clients[client].engine;
        engine.advance(now);
        loop {
            engine.handle_grants(slot, usize::MAX, || grants.next());
            // What answers no lock comes as any other reply.
            let Some(other) = grants.next() else { return };
            engine.handle_reply(now, slot, meaning(other.into(), || engine.node(slot).awaits()));
        }
    }

    /// A reply that nobody asked for, on a connection that owes none.
    fn may_surprise(&mut self, client: usize, slot: usize, id: usize) {
        let connection = &self.connections[id];
        let is_idle = connection.commands == connection.replies && connection.commands > 0;
        // Nothing comes in the middle of something else.
        let is_within = !self.clients[client].slots[slot].reader.is_empty();
        if !self.surprises.contains(&id) || !is_idle || is_within {
            return;
        }
        self.surprises.retain(|other| *other != id);
        self.timeline.note(self.now, || format!("client {client} gets a surplus +OK from {slot}"));
        let reader = &mut self.clients[client].slots[slot].reader;
        reader.room()[..5].copy_from_slice(b"+OK\r\n");
        reader.filled(5);
        self.connections[id].poisoned = Some(0);
        self.rare.hit(Rare::Surplus);
        self.pass_replies(client, slot, id);
    }

    fn drop_socket(&mut self, client: usize, slot: usize, kind: ErrorKind) {
        self.timeline.note(self.now, || format!("client {client} loses node {slot}: {kind}"));
        self.close(client, slot);
        let now = self.client_now(client);
        let outcome = NodeOutcome::Disconnected(kind);
        self.clients[client].engine.handle_node(now, slot, NodeEvent::Disconnected(outcome));
    }

    pub fn close(&mut self, client: usize, slot: usize) {
        let it = &mut self.clients[client].slots[slot];
        it.unsent.clear();
        it.reader.clear();
        it.is_connected = false;
        if let Some(id) = it.connection.take() {
            self.close_connection(id);
        }
    }

    /// Carries out what the engine asks for; `false` if the process was held up before the end.
    fn flush(&mut self, client: usize) -> bool {
        while !self.clients[client].steps.is_empty() || self.gather(client) {
            while let Some(step) = self.clients[client].steps.pop_front() {
                match step {
                    Step::Connect(slot) => self.connect(client, slot),
                    Step::Beside(slot, since) => self.connect_beside(client, slot, since),
                    Step::Close(slot) => {
                        if let Some(id) = self.clients[client].slots[slot].connection {
                            self.check_duplicate(client, slot, id);
                        }
                        self.close(client, slot);
                    }
                    Step::Send { slot, from, to, what } => self.send(client, slot, from..to, what),
                }
                if self.may_pause(client) {
                    return false;
                }
            }
        }
        true
    }

    /// Takes the engine's actions, in order; says whether there is anything to do.
    fn gather(&mut self, client: usize) -> bool {
        // Its type is that of the encoder's buffer, which needs no name here.
        let mut encoded = Default::default();
        let mut failure = None;
        let mut handed_out = Vec::new();
        let (mut fenced, mut raised) = (Vec::new(), Vec::new());
        let it = &mut self.clients[client];
        let in_quarantine = it.slots_in_quarantine(self.plan.node_timeout);
        let is_guarding = self.plan.is_guarding(client);
        it.batch.clear();
        // Since then the engine may have begun a renewal, whatever held the process up.
        let begun = it.read_first.take().unwrap_or(it.told);
        it.passes += 1;
        let take_drawn = it.drawn();
        let mut all_drawn = Vec::new();
        while let Some(action) = it.engine.poll_action() {
            // What is too late to be sent makes a round fail, and the next one may begin.
            for (token, drawn) in take_drawn() {
                self.checker.draw(client, token, drawn);
                all_drawn.push((token, drawn));
            }
            match action {
                Action::Connect { node } => it.steps.push_back(Step::Connect(node)),
                Action::ConnectBeside { node, silent_since } => {
                    it.steps.push_back(Step::Beside(node, silent_since));
                }
                Action::Close { node } => it.steps.push_back(Step::Close(node)),
                Action::Send { nodes, command } => {
                    resp::encode(&command, &mut encoded);
                    let form = command;
                    let command = as_plain(&form);
                    let (from, to) = (it.batch.len(), encoded.len());
                    it.batch.extend_from_slice(&encoded[from..]);
                    let of = nodes.iter().map(|slot| 1 << slot).sum::<u64>() & in_quarantine;
                    if let Some(token) = token_of(&command) {
                        failure = failure.or(self.checker.note_sent(client, token));
                        if let Command::Extend { .. } | Command::Heal { .. } = command {
                            let sent = nodes.iter().map(|slot| 1 << slot).sum();
                            if is_new_renewal(&mut it.operations, token, sent) {
                                self.checker.start_extension(begun, &digits(token));
                            }
                        }
                    }
                    let mut set = None;
                    match command {
                        Command::AcquireFenced { token, proposal, .. } => {
                            fenced.push((*token, proposal));
                        }
                        Command::Confirm { token, .. } => {
                            self.checker.note_uncountable(token, of);
                            raised.push((nodes, *token));
                        }
                        _ => {}
                    }
                    match command {
                        Command::Acquire { token, ttl, .. }
                        | Command::AcquireFenced { token, ttl, .. } => {
                            self.checker.note_uncountable(token, of);
                            let asked = self.checker.asked_at(token);
                            if is_guarding {
                                let times = (asked, it.told);
                                let looked =
                                    check_looked(&it.looks, times, it.passes, nodes, token);
                                failure = failure.or(looked);
                            }
                            set = Some(ttl.as_millis());
                            let late =
                                self.checker.note_sets(it.told, nodes, token, ttl.as_millis());
                            failure = failure.or(late);
                            handed_out.push((nodes, *token, false));
                        }
                        Command::Extend { token, .. } | Command::Heal { token, .. } => {
                            self.checker.note_uncountable(token, of);
                            if let Command::Heal { .. } = command {
                                failure = failure.or(self.checker.note_heal(it.told, token));
                            }
                            let asked = self.checker.asked_at(token);
                            if is_guarding {
                                let times = (asked, it.told);
                                let looked =
                                    check_looked(&it.looks, times, it.passes, nodes, token);
                                failure = failure.or(looked);
                            }
                        }
                        Command::Time => {
                            for slot in nodes.iter() {
                                it.looks[slot].clock_at = Some(it.told);
                                it.looks[slot].clock_in = it.passes;
                            }
                        }
                        Command::Info(Section::Replication) => {
                            let told = it.told;
                            nodes.iter().for_each(|slot| it.looks[slot].role_at = Some(told));
                        }
                        Command::Release { token, .. }
                        | Command::Wait(WaitMessage::ReleaseAtQueue { token, .. }) => {
                            failure = failure
                                .or(self.checker.note_release(client, it.told, nodes, token));
                            handed_out.push((nodes, *token, true));
                        }
                        _ => {}
                    }
                    let what = match (token_of(&command), &command) {
                        (Some(token), _) => What::Lock(digits(token), set),
                        (None, Command::Time) => What::Time(it.steady),
                        (None, Command::Confirm { .. }) => What::Raise,
                        _ => What::Other,
                    };
                    let send = |slot| Step::Send { slot, from, to, what };
                    it.steps.extend(nodes.iter().map(send));
                    self.timeline.note(self.now, || {
                        let what = match form {
                            Command::OfKind(form) => format!("{:?} of {:?}: ", form.step, form.key),
                            _ => String::new(),
                        };
                        let shown = describe(&command);
                        format!("client {client} sends {what}{shown} to {nodes:?}")
                    });
                }
            }
        }
        if let Some(broken) = it.engine.broken_invariant() {
            failure = failure.or(Some(("INVARIANT", broken)));
        }
        let has_steps = !it.steps.is_empty();
        for piece in it.batch.chunks_exact(8) {
            let piece = piece.try_into().map_or(0, u64::from_le_bytes);
            self.digest.add(piece);
        }
        self.note_drawn(client, all_drawn);
        if let Some((rule, text)) = failure {
            self.fail(rule, || text);
        }
        for (token, proposal) in fenced {
            self.note_fenced(&token, proposal);
        }
        for (nodes, token) in raised {
            self.check_raise(client, nodes, &token);
        }
        for (nodes, token, is_release) in handed_out {
            if is_release {
                self.note_released_sets(client, nodes, &token);
            } else {
                self.check_debts(client, nodes, &token);
            }
        }
        has_steps
    }

    fn connect(&mut self, client: usize, slot: usize) {
        self.close(client, slot);
        if self.plan.has_sentinels {
            self.ask_sentinels(client, slot);
        }
        let id = self.new_connection(client, slot);
        self.clients[client].slots[slot].connection = Some(id);
    }

    fn send(&mut self, client: usize, slot: usize, bytes: Range<usize>, what: What) {
        let Some(id) = self.clients[client].slots[slot].connection else {
            return;
        };
        if !self.clients[client].slots[slot].is_connected {
            // The kernel would take no byte of it.
            return self.fail("PAIRING", || {
                format!("client {client} sends to node {slot}, which it is not connected to")
            });
        }
        let connection = &mut self.connections[id];
        match what {
            What::Lock(token, set) => {
                connection.asked.push_back(Asked { place: connection.commands, token, set });
            }
            What::Time(sent) => connection.time_asked.push_back(sent),
            What::Raise => connection.raises.push_back((connection.commands, self.now)),
            What::Other => {}
        }
        connection.commands += 1;
        let bytes = self.clients[client].batch[bytes].to_vec();
        self.write(client, slot, &bytes);
        if let What::Lock(token, set) = what {
            self.may_cut(id, token, set.is_some());
            self.may_be_held_up(id, token, set.is_some());
            if set.is_some() {
                self.may_lose_set(id, token);
            }
        }
        if self.clients[client].slots[slot].unsent.len() > UNSENT_BYTES_MAX {
            self.rare.hit(Rare::Blocked);
            let engine = &mut self.clients[client].engine;
            engine.handle_node(engine.last_now(), slot, NodeEvent::Blocked);
        }
    }

    /// Writes what the kernel takes, and keeps the rest.
    fn write(&mut self, client: usize, slot: usize, bytes: &[u8]) {
        let it = &mut self.clients[client].slots[slot];
        let Some(id) = it.connection else {
            return;
        };
        let up = &self.connections[id].up;
        let free = self.plan.wire.buffer.saturating_sub(up.sent() - up.read);
        let mut count = if it.unsent.is_empty() { bytes.len().min(free) } else { 0 };
        let is_cut = count > 0 && self.choices.chance(self.plan.wire.partial);
        if is_cut {
            count = self.choices.below(count as u32) as usize;
            self.rare.hit(Rare::PartialWrite);
        }
        self.clients[client].slots[slot].unsent.extend_from_slice(&bytes[count..]);
        if is_cut {
            // The kernel had no room for a moment: a short one, when all is well.
            let longest = if self.is_faulty { 5 * MILLI } else { 4 * self.plan.wire.latency };
            let later = self.choices.magnitude(10 * MICRO, longest.min(5 * MILLI));
            self.wake_client(client, self.now + later);
        }
        if count > 0 {
            self.transmit(id, Way::Up, &bytes[..count]);
        }
    }
}

/// Whose lock the command is about, if it is about one.
fn token_of<'a>(command: &Command<'a>) -> Option<&'a LockToken> {
    match command {
        Command::Acquire { token, .. }
        | Command::AcquireFenced { token, .. }
        | Command::Extend { token, .. }
        | Command::Heal { token, .. }
        | Command::Release { token, .. }
        | Command::Wait(WaitMessage::ReleaseAtQueue { token, .. }) => Some(token),
        _ => None,
    }
}

fn describe(command: &Command<'_>) -> String {
    match command {
        Command::Acquire { token, ttl, .. } => {
            format!("SET {} for {} ms", Short(token.as_bytes()), ttl.as_millis())
        }
        Command::AcquireFenced { token, ttl, proposal, .. } => {
            let token = Short(token.as_bytes());
            format!("SET {token} for {} ms, proposing {proposal}", ttl.as_millis())
        }
        Command::Confirm { token, number, .. } => {
            format!("raise {} to {number}", Short(token.as_bytes()))
        }
        Command::Extend { token, ttl, .. } => {
            format!("extend {} to {} ms", Short(token.as_bytes()), ttl.as_millis())
        }
        Command::Heal { token, ttl, .. } => {
            format!("extend or set {} to {} ms", Short(token.as_bytes()), ttl.as_millis())
        }
        Command::Release { token, .. } => format!("release {}", Short(token.as_bytes())),
        other => format!("{other:?}"),
    }
}
