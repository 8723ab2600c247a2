//! A turn of a server's event loop: connections are accepted, commands are read and run.

use super::World;
use super::clock::{MICRO, MILLI};
use super::debts::released;
use super::fences::{Asks, FENCE, asks};
use super::forms::form;
use super::network::{ClientEnd, Connection, ServerEnd, Trust, Way, Yes};
use super::newcomers::is_sighting;
use super::node::Who;
use super::queue::Event;
use super::rare::Rare;
use super::redis::{Change, ChangeKind, compared, is_queue};
use super::server::random_name;
use super::timeline;
use super::wire::{self, Reply};
use crate::scripts::{EXTEND_OR_SET, HASHES};

/// What no client of a lock server expects, from its first byte on.
const POISONS: [&[u8]; 2] = [b"HTTP/1.1 400 Bad Request\r\n", b"*-7\r\n"];
/// Errors that a reply may be for no reason that lasts.
const STRAYS: [&str; 4] = [
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "ERR out of luck",
];

/// How often a server has forgotten its scripts, of a thousand times that it needs one.
const FORGETS: u32 = 30;

/// The first word behind the keys.
fn token_of_script<'a>(words: &[&'a [u8]]) -> Option<&'a [u8]> {
    let count: usize = std::str::from_utf8(words.get(2)?).ok()?.parse().ok()?;
    words.get(3 + count).copied()
}

impl World {
    /// Has the node's process look at its connections.
    pub fn wake_node(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        let at = self.now.max(it.frozen_until) + 5 * MICRO;
        if it.turn_at.is_none_or(|turn_at| at < turn_at) {
            it.turn_at = Some(at);
            self.queue.push(at, Event::NodeTurn(node));
        }
    }

    /// One turn of a server's event loop.
    pub fn node_turn(&mut self, node: usize, at: u64) {
        if self.nodes[node].turn_at != Some(at) {
            return;
        }
        self.nodes[node].turn_at = None;
        if !self.nodes[node].is_running(self.now) {
            if self.nodes[node].is_up {
                self.wake_node(node);
            }
            return;
        }
        self.update_state(node);
        let mut connections = self.nodes[node].connections.clone();
        if connections.len() > 1 {
            let first = self.choices.below(connections.len() as u32) as usize;
            connections.rotate_left(first);
        }
        for id in connections {
            match self.connections[id].server_end {
                ServerEnd::Backlog => self.accept(node, id),
                ServerEnd::Accepted => {}
                ServerEnd::Absent | ServerEnd::Gone => continue,
            }
            self.read_commands(node, id);
        }
        self.tell_ends(node);
        let connections = &self.connections;
        self.nodes[node].connections.retain(|id| connections[*id].reaches_server());
    }

    /// What has ended since the last turn.
    fn update_state(&mut self, node: usize) {
        let now = self.now;
        let it = &mut self.nodes[node];
        it.redis.server.is_loading = now < it.loading_until;
        if it.redis.server.is_loading {
            self.rare.hit(Rare::Loading);
        }
        if now >= it.refuses_until {
            it.redis.server.refusals.clear();
        }
        let is_promoted = it.redis.server.is_replica && now >= it.replica_until;
        if is_promoted && self.is_faulty {
            self.may_resync(node);
        }
        if is_promoted {
            self.servers += 1;
            let now = self.now;
            let it = &mut self.nodes[node];
            it.promoted_at = Some(now);
            // It parts from its master's history, and may have taken over its data before.
            it.redis.server.is_replica = false;
            it.redis.server.second_offset = 1;
            it.incarnation += 1;
            it.redis.server.replication_id = random_name(3, self.servers);
        }
    }

    fn accept(&mut self, node: usize, id: usize) {
        self.connections[id].server_end = ServerEnd::Accepted;
        let is_barred = self.is_barred(self.connections[id].client, node);
        let it = &mut self.nodes[node];
        self.connections[id].incarnation = it.incarnation;
        let session = &mut self.connections[id].session;
        session.id = it.next_session;
        session.is_barred = is_barred;
        it.next_session += 1;
        if it.redis.server.refuses(super::server::Refusal::Clients) {
            self.rare.hit(Rare::ErrorClients);
            self.transmit(id, Way::Down, b"-ERR max number of clients reached\r\n");
            self.end_server(id);
        }
    }

    /// The server closes its end.
    pub fn end_server(&mut self, id: usize) {
        let connection = &mut self.connections[id];
        connection.server_end = ServerEnd::Gone;
        connection.up.discard();
        if connection.client_end != ClientEnd::Closed {
            self.end_pipe(id, Way::Down);
        }
    }

    /// Runs the commands that have arrived on a connection, all or some of them.
    fn read_commands(&mut self, node: usize, id: usize) {
        let is_partial = self.choices.chance(self.plan.wire.partial);
        let mut budget = if is_partial { 1 + self.choices.below(3) } else { u32::MAX };
        let mut input = std::mem::take(&mut self.input);
        input.clear();
        input.extend_from_slice(self.connections[id].up.peek());
        let (mut words, mut out, mut at) = (Vec::new(), Vec::new(), 0);
        while budget > 0 && self.connections[id].reaches_server() {
            let Some(length) = wire::command(&input[at..], &mut words) else {
                break;
            };
            let cut: Vec<&[u8]> = words.iter().map(|word| &input[at..][word.clone()]).collect();
            // Read before it is run: what it does may end this very connection.
            self.connections[id].up.consume(length);
            self.run_command(node, id, &cut, &mut out);
            at += length;
            budget -= 1;
        }
        let is_complete = wire::command(&input[at..], &mut words).is_none();
        self.input = input;
        self.reply(id, &out, at > 0);
        if !self.connections[id].reaches_server() {
            return;
        }
        if !is_complete {
            self.wake_node(node);
        } else if self.connections[id].up.has_ended {
            // What is left is an incomplete command: it is discarded.
            self.end_server(id);
        }
    }

    fn reply(&mut self, id: usize, out: &[u8], has_read: bool) {
        let client = self.connections[id].client;
        if self.connections[id].client_end != ClientEnd::Closed && !out.is_empty() {
            self.transmit(id, Way::Down, out);
        }
        if has_read {
            // There may be room again for what the client could not send.
            let at = self.arrival();
            if self.connections[id].client_end == ClientEnd::Established {
                self.wake_client(client, at);
            }
        }
    }

    /// A script that the server keeps, in the place of its hash; and keeps what is sent as a text.
    fn with_text<'a>(&mut self, node: usize, words: &[&'a [u8]]) -> Option<Vec<&'a [u8]>> {
        let [verb @ (b"EVAL" | b"EVALSHA"), script, rest @ ..] = words else {
            return None;
        };
        let forgets = *verb == b"EVALSHA" && self.is_faulty && self.choices.chance(FORGETS);
        let kept = &mut self.nodes[node].redis.server.kept_scripts;
        if forgets {
            kept.clear();
            self.rare.hit(Rare::ScriptsForgotten);
        }
        if *verb == b"EVAL" {
            let known = HASHES.iter().find(|(text, _)| text.as_bytes() == *script);
            kept.extend(known.map(|(text, _)| *text).filter(|text| !kept.contains(text)));
            return None;
        }
        let known = HASHES.iter().find(|(_, hash)| hash.as_bytes() == *script);
        let (text, _) = known.filter(|(text, _)| kept.contains(text))?;
        Some([&[b"EVAL", text.as_bytes()], rest].concat())
    }

    fn run_command(&mut self, node: usize, id: usize, words: &[&[u8]], out: &mut Vec<u8>) {
        let with_text = self.with_text(node, words);
        let words = with_text.as_deref().unwrap_or(words);
        self.settle_debts(id, words);
        let wall = self.nodes[node].wall(self.now);
        let connection = &mut self.connections[id];
        let mut session = std::mem::take(&mut connection.session);
        let it = &mut self.nodes[node];
        it.redis.open.clear();
        let sessions = it.connections.iter().map(|id| self.connections[*id].session.id);
        it.redis.open.extend(sessions.filter(|other| *other > 0).chain([session.id]));
        let stray = self.is_faulty && self.choices.chance(self.plan.stray_error);
        let is_hash = words[0] == b"EVALSHA";
        let reply = match stray {
            _ if is_hash => Reply::error("NOSCRIPT No matching script. Please use EVAL."),
            true => Reply::error(self.choices.pick(&STRAYS)),
            false => self.nodes[node].redis.execute(&mut session, words, wall),
        };
        self.connections[id].session = session;
        if is_hash && let Some(token) = token_of_script(words) {
            self.checker.note_not_run(token, self.connections[id].slot);
        }
        self.timeline.note(self.now, || {
            let text = format!("{reply:?}");
            let shown = text.get(..60).unwrap_or(&text);
            format!("node {node} ({wall}) runs {} for {id}: {shown}", timeline::command(words))
        });
        if let Some(token) = released(words) {
            self.checker.note_cleared(self.now, node, token);
        }
        if !stray && !is_hash {
            let changes = std::mem::take(&mut self.nodes[node].redis.changes);
            self.check_changes(node, id, words, &changes);
            self.check_memory(node, id, words, &reply);
            self.note_counted(node, words, &reply, &changes);
            self.note_said(node, id, words, &reply);
            self.note_yes(
                node,
                id,
                words,
                &reply,
                changes.iter().any(|it| it.kind == ChangeKind::Delete),
            );
            self.nodes[node].redis.changes = changes;
            self.kill(node, id, words, &reply);
        } else if let [b"CLIENT", b"KILL", _, old] = words {
            self.spare(node, old);
        }
        if let [b"TIME"] = words {
            let said = matches!(reply, Reply::Array(_)).then_some(wall);
            let connection = &mut self.connections[id];
            connection.times.push_back((connection.answered, said));
        }
        self.note_situation(node, id, words, &reply);
        self.connections[id].answered += 1;
        self.digest.add(self.now);
        self.digest.add(id as u64);
        self.push(node, id, &reply, out);
        self.digest.add(out.len() as u64);
        if std::mem::take(&mut self.nodes[node].is_poisonous) {
            let sent = self.connections[id].down.sent() + out.len();
            let poison = self.choices.pick(&POISONS);
            self.connections[id].poisoned.get_or_insert(sent + poison.len());
            out.extend_from_slice(poison);
            self.rare.hit(Rare::Poisoned);
        }
    }

    /// Writes a reply, and what its command has others told.
    fn push(&mut self, node: usize, id: usize, reply: &Reply, out: &mut Vec<u8>) {
        let own = self.connections[id].session.id;
        let protocol = self.connections[id].session.protocol;
        let pushes = std::mem::take(&mut self.nodes[node].redis.listeners.pushes);
        let is_before = self.plan.pushes_first;
        if !is_before {
            reply.write(out, protocol);
        }
        for (session, push) in pushes {
            if session == own {
                push.write(out, protocol);
                continue;
            }
            self.push_to(node, session, &push);
        }
        if is_before {
            reply.write(out, protocol);
        }
        self.watch_ends(node);
    }

    pub fn push_to(&mut self, node: usize, session: u64, push: &Reply) {
        let is_it = |id: &&usize| {
            self.connections[**id].session.id == session && self.connections[**id].reaches_server()
        };
        if let Some(id) = self.nodes[node].connections.iter().find(is_it).copied() {
            let mut bytes = Vec::new();
            push.write(&mut bytes, self.connections[id].session.protocol);
            self.timeline.note(self.now, || format!("node {node} pushes {push:?} to {id}"));
            if self.connections[id].client_end != ClientEnd::Closed {
                self.transmit(id, Way::Down, &bytes);
            }
        }
    }

    /// A server tells of keys that have ended some time after their end.
    fn watch_ends(&mut self, node: usize) {
        let Some(end) = self.nodes[node].redis.first_end() else {
            return;
        };
        let end = u64::try_from(end).unwrap_or(0).saturating_add(1).saturating_mul(MILLI);
        let at = self.nodes[node].clock.when(end).max(self.now) + self.plan.ends_late;
        if self.nodes[node].ends_at.is_none_or(|ends_at| at < ends_at || ends_at < self.now) {
            self.nodes[node].ends_at = Some(at);
            self.queue.push(at, Event::Ends(node));
        }
    }

    /// Tells of watched keys that have ended.
    pub fn tell_ends(&mut self, node: usize) {
        if self.nodes[node].redis.first_end().is_none() {
            return;
        }
        if self.nodes[node].is_running(self.now) {
            self.tell_changes(node, Vec::new());
        }
    }

    /// Tells of changes that no client of this crate has made, and of watched keys that have ended.
    pub fn tell_changes(&mut self, node: usize, changes: Vec<Change>) {
        let wall = self.nodes[node].wall(self.now);
        let sessions = self.nodes[node].connections.iter();
        let open = sessions.map(|id| self.connections[*id].session.id).filter(|id| *id > 0);
        let open = open.collect();
        let redis = &mut self.nodes[node].redis;
        redis.open = open;
        redis.changes = changes;
        redis.listeners.pushes.clear();
        redis.tell_changes(None, wall);
        for (session, push) in std::mem::take(&mut redis.listeners.pushes) {
            self.push_to(node, session, &push);
        }
        self.watch_ends(node);
    }

    /// Who asks on this connection.
    pub fn who(&self, id: usize) -> Who {
        let Connection { client, role_told_at, evictions_told_at, .. } = self.connections[id];
        let is_marking = self.plan.is_marking(client);
        Who { connection: id, role_told_at, evictions_told_at, is_marking }
    }

    /// Keeps a yes, to compare it with what the client makes of it.
    fn note_yes(&mut self, node: usize, id: usize, words: &[&[u8]], reply: &Reply, deletes: bool) {
        if let Some(form) = form(words) {
            return self.note_form_yes(node, id, &form, reply);
        }
        let (token, key, is_extension) = match (words, reply) {
            _ if matches!(asks(words), Some(Asks::Raise { .. })) => return,
            ([b"EVAL", _, b"2", _, queue, ..], _) if is_queue(queue) => return,
            ([b"EVAL", _, b"2", key, FENCE, token, ..], Reply::Integer(vote)) if *vote != 0 => {
                (token, key, false)
            }
            ([b"SET", key, token, ..], Reply::Status("OK")) => (token, key, false),
            ([b"EVAL", _, b"1", key, token, ..], Reply::Integer(1 | 2)) if !deletes => {
                (token, key, true)
            }
            _ => return,
        };
        let Ok(token) = <[u8; 40]>::try_from(*token) else {
            return;
        };
        let key = (self.connections[id].session.db, key.to_vec());
        let who = self.who(id);
        let connection = &mut self.connections[id];
        let (index, told_at) = (connection.answered, connection.role_told_at);
        let known = self.nodes[node].memory(self.now, &key, &token, who);
        let memory = if connection.said_evicts { Trust::No } else { known };
        let role = self.nodes[node].role(told_at);
        let (is_healed, at) = (matches!(reply, Reply::Integer(2)), self.now);
        let yes = Yes { index, token, is_extension, is_healed, at, memory, role };
        connection.yeses.push_back(yes);
    }

    /// Ends the connection that a `CLIENT KILL` is about, with what has not been read of it.
    fn kill(&mut self, node: usize, by: usize, words: &[&[u8]], reply: &Reply) {
        let is_kill = words.len() == 4 && words[1].eq_ignore_ascii_case(b"KILL");
        if !is_kill {
            return;
        }
        let target = self.nodes[node].redis.killed;
        let is_target =
            |id: &&usize| Some(self.connections[**id].session.id) == target && target.is_some();
        match (reply, self.nodes[node].connections.iter().find(is_target).copied()) {
            (Reply::Error(_), _) => {
                self.rare.hit(Rare::KillRefused);
                self.spare(node, words[3]);
            }
            (_, Some(id)) => {
                self.rare.hit(Rare::KillBarrier);
                self.check_kill(by, id);
                self.end_server(id);
            }
            (_, None) => {}
        }
    }

    /// A client ends its own connections when it has lost them, and another client's only for a
    /// lock that it was handed and has given up (R12).
    fn check_kill(&mut self, by: usize, id: usize) {
        let (by, victim) = (&self.connections[by], &self.connections[id]);
        let (client, owner) = (by.client, victim.client);
        let may = match client == owner {
            true => victim.client_end == ClientEnd::Closed,
            false => self.checker.has_given_up_anothers(client, by.slot),
        };
        if !may {
            self.fail("KILL", || format!("client {client} ends a connection of client {owner}"));
        }
    }

    /// A connection outlives its `CLIENT KILL`: what is under way on it may still be executed.
    fn spare(&mut self, node: usize, id: &[u8]) {
        let incarnation = self.nodes[node].incarnation;
        let is_it = |it: &&mut Connection| {
            let is_of_process = it.node == node && it.incarnation == incarnation;
            is_of_process && it.session.id.to_string().as_bytes() == id
        };
        if let Some(spared) = self.connections.iter_mut().find(is_it) {
            spared.outlived_kill = true;
        }
    }

    fn note_situation(&mut self, node: usize, id: usize, words: &[&[u8]], reply: &Reply) {
        match (reply, words) {
            (Reply::Error(text), _) => {
                self.rare.hit_error(text);
                let is_delete = matches!(words[0], b"DELEX" | b"DELIFEQ");
                if is_delete && text.starts_with("NOPERM") {
                    let is_probe = compared(words) == Some(&[b'0'; 40]);
                    self.rare.hit_if(is_probe, Rare::DeleteForbidden);
                    self.rare.hit_if(!is_probe, Rare::DeleteRefused);
                }
            }
            (Reply::Integer(0), [b"EVAL", script, _, _, _, _]) => {
                self.rare.hit_if(*script == EXTEND_OR_SET.as_bytes(), Rare::HealRefused);
            }
            (Reply::Status("OK"), [b"SET", key, ..]) if is_sighting(key) => {
                self.rare.hit(Rare::Sighted);
            }
            (Reply::Integer(1), [b"DELEX", ..]) => self.rare.hit(Rare::ReleasedByDelex),
            (Reply::Integer(1), [b"DELIFEQ", ..]) => self.rare.hit(Rare::ReleasedByDelifeq),
            (Reply::Verbatim(_), [b"INFO", b"replication"]) => {
                let server = &self.nodes[node].redis.server;
                self.connections[id].role_told_at = self.now;
                self.rare.hit_if(server.is_replica, Rare::Demoted);
                let is_promoted = !server.is_replica && server.second_offset != -1;
                self.rare.hit_if(is_promoted, Rare::Promoted);
            }
            (Reply::Verbatim(_), [b"INFO", b"stats"]) => {
                let now = self.now;
                let told = &mut self.connections[id].evictions_told_at;
                *told = Some((told.map_or(now, |(first, _)| first), now));
            }
            (Reply::Verbatim(_), [b"INFO", b"memory"]) => {
                let server = &self.nodes[node].redis.server;
                self.connections[id].said_evicts = server.evicts();
            }
            _ => {}
        }
    }
}
