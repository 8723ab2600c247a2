//! The handshake: its steps, their commands, and what their answers mean.

use super::{Effect, Node, is_forbidden};
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, ServerErrorKind, Unfit};
use crate::proto::command::{Command, Credentials, Reply, Section, ServerError, ServerInfo, Trial};
use crate::proto::request::{HandshakeStep, Question};

/// The steps that every connection takes after the first, in order.
const COMMON: [HandshakeStep; 7] = [
    // In front of all that the server says about itself, so that no flush is missed.
    HandshakeStep::Track,
    HandshakeStep::Info(Section::Server),
    HandshakeStep::Info(Section::Replication),
    HandshakeStep::Info(Section::Memory),
    HandshakeStep::Info(Section::Persistence),
    HandshakeStep::Info(Section::Stats),
    // After the role: at this time the server certainly was what it says.
    HandshakeStep::Time,
];

/// Why a server has refused the number of a database.
const NO_SUCH_DATABASE: &str =
    "the server has fewer databases than the address needs (databases in redis.conf, usually 16)";

/// Why a server has refused `HELLO`.
const NO_HELLO: &str = "the client needs HELLO 3, which servers have from Redis 6.0 on";

impl Node {
    /// The steps of a handshake with this node.
    pub(crate) fn steps(&self) -> impl Iterator<Item = HandshakeStep> + use<> {
        let (settings, asks) = (self.guard.settings(), self.guard.asks_for_sighting());
        let select = (settings.db != 0).then_some(HandshakeStep::Select);
        let sighting = asks.then_some(HandshakeStep::Sighting);
        let marker = self.guard.is_distrusted().then_some(HandshakeStep::Marker);
        let last = sighting.into_iter().chain(marker).chain([HandshakeStep::Probe]);
        [HandshakeStep::Hello].into_iter().chain(select).chain(COMMON).chain(last)
    }

    pub(crate) fn question_command(&self, question: Question) -> Command<'_> {
        match question {
            Question::Handshake(step) => self.step_command(step),
            Question::Time => Command::Time,
            Question::Look(section) => Command::Info(section),
            Question::Marker => self.marker_command(),
            Question::Probe(with) => Command::Probe { key: self.config.probe_key.as_bytes(), with },
            Question::Sight => self.guard.sight_command(),
        }
    }

    fn step_command(&self, step: HandshakeStep) -> Command<'_> {
        match step {
            HandshakeStep::Hello => Command::Hello {
                credentials: self
                    .credentials
                    .as_ref()
                    .map(|it| Credentials { user: it.user.as_deref(), password: &it.password }),
                name: self.config.client_name.as_bytes(),
            },
            HandshakeStep::Select => Command::Select { db: self.guard.settings().db },
            HandshakeStep::Track => Command::Track,
            HandshakeStep::Info(section) => Command::Info(section),
            HandshakeStep::Time => Command::Time,
            HandshakeStep::Sighting => {
                Command::Sighting { key: self.config.sighting_key.as_bytes() }
            }
            HandshakeStep::Marker => self.marker_command(),
            HandshakeStep::Probe => {
                Command::Try { key: self.config.probe_key.as_bytes(), trial: Trial::Plain }
            }
        }
    }

    fn marker_command(&self) -> Command<'_> {
        let key = self.config.marker_key.as_bytes();
        Command::Marker { key, id: self.guard.flushes.id() }
    }

    pub(super) fn handle_handshake_reply(
        &mut self,
        now: Moment,
        step: HandshakeStep,
        sent_at: Moment,
        reply: Reply,
    ) -> Effect {
        self.link.note_heard();
        match (step, reply) {
            (HandshakeStep::Time, Reply::Error(error)) if denies_service(error.kind) => {
                return self.handle_handshake_error(step, error);
            }
            (HandshakeStep::Time, reply) => {
                if let Reply::Time(time) = reply {
                    self.guard.sightings.note_time(time);
                }
                return self.handle_time(now, sent_at, reply);
            }
            (_, Reply::Error(error)) => return self.handle_handshake_error(step, error),
            (HandshakeStep::Hello, Reply::Hello { client_id }) => {
                self.guard.identity.client_id = client_id;
            }
            (HandshakeStep::Select, Reply::Ok) => {}
            (HandshakeStep::Track, Reply::Ok) => self.guard.flushes.note_told(),
            (HandshakeStep::Info(_), Reply::Info(info)) => self.guard.identity.server.add(*info),
            (HandshakeStep::Info(Section::Replication), Reply::Replication(reported)) => {
                self.guard.identity.server.replication = reported;
            }
            (HandshakeStep::Info(Section::Memory), Reply::Memory(max, evicts_nothing)) => {
                self.guard.identity.server.note_memory(max, evicts_nothing);
            }
            (HandshakeStep::Info(Section::Stats), Reply::Stats(evicted)) => {
                self.guard.identity.server.evicted = evicted;
            }
            (HandshakeStep::Sighting, reply) if is_value(&reply) => {
                self.guard.sightings.note_stored(reply);
            }
            (HandshakeStep::Marker, reply) if is_value(&reply) => {
                self.guard.flushes.note_marker(&reply);
            }
            (HandshakeStep::Probe, Reply::Integer(0)) if self.is_read_too_late(now, sent_at) => {
                return Effect::RepeatHandshake;
            }
            (HandshakeStep::Probe, Reply::Integer(0)) => return Effect::HandshakeDone,
            (HandshakeStep::Probe, Reply::Missing(command)) => {
                self.guard.identity.missing = Some(command);
                return Effect::HandshakeDone;
            }
            _ => return Effect::UNEXPECTED,
        }
        Effect::Nothing
    }

    /// Whether a young server may be old by now: nobody has read its answers for long. It is asked
    /// again once.
    fn is_read_too_late(&mut self, now: Moment, sent_at: Moment) -> bool {
        let is_late = now.steadily_since(sent_at) > self.config.node_timeout;
        is_late && self.guard.may_be_young() && self.link.repeat_handshake()
    }

    fn handle_handshake_error(&mut self, step: HandshakeStep, mut error: ServerError) -> Effect {
        let kind = error.kind;
        // The probe's key prefix may be outside the user's permissions; errors of the locks' own
        // keys will show that. The server's message names the command, and maybe the user, or what
        // may not be accessed.
        let is_foreign_key =
            kind == ServerErrorKind::Permission && error.message.contains(" access ");
        if step == HandshakeStep::Hello && kind == ServerErrorKind::Auth {
            // The code is enough, and the rest may contain the password in another form.
            let code = error.message.split(' ').next().unwrap_or_default();
            match code {
                // It has no secret. A password such as "wrong" would be masked in it.
                "WRONGPASS" => {
                    error.message = "WRONGPASS: the user or the password is wrong".into();
                    self.errors.keep(error, None);
                }
                "NOAUTH" => {
                    error.message = "NOAUTH Authentication required.".into();
                    self.keep_error(error);
                }
                code => {
                    error.message = code.into();
                    self.keep_error(error);
                }
            }
        } else {
            if step == HandshakeStep::Hello {
                error.message = format!("{}: {NO_HELLO}", error.message).into();
            }
            if step == HandshakeStep::Select && error.message.contains("DB index") {
                error.message = format!("{}: {NO_SUCH_DATABASE}", error.message).into();
            }
            self.keep_error(error);
        }
        match step {
            // Whether that is enough is decided at the end.
            HandshakeStep::Track if is_forbidden(kind) => Effect::Nothing,
            // Without it, nobody knows which database was flushed.
            HandshakeStep::Marker if !denies_service(kind) => Effect::Nothing,
            // Without it, the client waits for the whole time.
            HandshakeStep::Sighting if !denies_service(kind) => {
                self.note_sighting_refused();
                Effect::Nothing
            }
            // What the server does not report cannot be relied on.
            HandshakeStep::Info(_) if is_forbidden(kind) => {
                let version = self.guard.identity.server.version.take();
                self.guard.identity.server = ServerInfo { version, ..ServerInfo::default() };
                Effect::Nothing
            }
            HandshakeStep::Probe => {
                self.guard.identity.runs_no_scripts = is_forbidden(kind) && !is_foreign_key;
                // A replica and a loading server refuse the script as well.
                Effect::Fail(match kind {
                    ServerErrorKind::ReadOnly => NodeOutcome::Unfit(Unfit::Replica),
                    ServerErrorKind::Loading => NodeOutcome::Unfit(Unfit::Loading),
                    ServerErrorKind::Cluster => NodeOutcome::Unfit(Unfit::Cluster),
                    kind if is_forbidden(kind) => return Effect::HandshakeDone,
                    kind => NodeOutcome::Server(kind),
                })
            }
            _ => Effect::Fail(NodeOutcome::Server(kind)),
        }
    }
}

/// Whether it may be the value of a key. Another one's text may look like anything.
pub(super) fn is_value(reply: &Reply) -> bool {
    matches!(
        reply,
        Reply::Nil
            | Reply::Sighting(_)
            | Reply::Marker(_)
            | Reply::Info(_)
            | Reply::Replication(_)
            | Reply::Memory(..)
            | Reply::Stats(_)
            | Reply::Owned(_)
    )
}

fn denies_service(kind: ServerErrorKind) -> bool {
    matches!(kind, ServerErrorKind::Auth | ServerErrorKind::MaxClients)
}
